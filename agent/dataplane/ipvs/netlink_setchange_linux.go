package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
)

// growName is the set that takes the place of one that is too small; IPv6 has
// its own.
func (s *sets) growName() SetName {
	if s.family == unix.AF_INET6 {
		return "NODEPROXY-6-LARGER-SET"
	}
	return "NODEPROXY-LARGER-SET"
}

// ChangeSets implements Kernel.
func (s *sets) ChangeSets(changes []SetChange) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed []error
	for _, c := range changes {
		if err := s.fill(c); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	for _, c := range changes {
		if err := s.change(nl.IPSET_CMD_DEL, c.Name, c.Type, removals(c)); err != nil {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// removals are what is to be removed, but for what is the same for the kernel as
// what was added.
func removals(c SetChange) []Entry {
	return slices.DeleteFunc(slices.Clone(c.Remove), func(e Entry) bool {
		text, ok := strings.CutSuffix(string(e), noMatchSuffix)
		return ok && slices.Contains(c.Add, Entry(text))
	})
}

// fill makes a set where it has to, and adds entries.
func (s *sets) fill(c SetChange) error {
	if !c.Create && len(c.Add) == 0 {
		return nil
	}
	if err := s.ensure(c); err != nil {
		return err
	}
	err := s.change(nl.IPSET_CMD_ADD, c.Name, c.Type, c.Add)
	if !errors.Is(err, errFull) || c.Type == BitmapPort {
		return err
	}
	if err := s.grow(c); err != nil {
		return err
	}
	return s.change(nl.IPSET_CMD_ADD, c.Name, c.Type, c.Add)
}

// ensure makes the set if it has to, and makes sure that it is of the right type.
func (s *sets) ensure(c SetChange) error {
	want := setHeader{kind: c.Type, family: s.familyOf(c.Type)}
	if c.Create {
		err := s.create(c.Name, c.Type, roomFor(len(c.Add)))
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	if has, ok := s.headers[c.Name]; ok && has.kind == want.kind && !c.Create {
		return nil
	}
	has, _, err := s.read(c.Name, false)
	switch {
	case err != nil:
		return &SetError{Set: c.Name, Err: setReason(err)}
	case has.kind != want.kind || has.family != want.family:
		return &SetError{Set: c.Name, Err: fmt.Errorf("it is one of %s, but has to be one of %s: %s", has.what(), want.what(), deleteIt(c.Name))}
	}
	s.headers[c.Name] = has
	return nil
}

// roomFor is how many entries a set is made for that gets so many at first. As long
// as kube-proxy's sets could hold them it is what those are made for: kube-proxy
// takes no set over that was made otherwise.
func roomFor(entries int) int {
	if entries <= maxElem {
		return maxElem
	}
	return 1 << bits.Len(uint(2*entries-1))
}

// create makes a set. The error wraps EEXIST where there is one: the kernel would
// take one of the other family for the same.
func (s *sets) create(name SetName, t SetType, room int) error {
	revision, err := s.revision(t)
	if err != nil {
		return err
	}
	var options []byte
	if t == BitmapPort {
		options = nlattr.Append(options, attrPortFrom|nlattr.NetByteOrder, []byte{0, 0})
		options = nlattr.Append(options, attrPortTo|nlattr.NetByteOrder, []byte{0xff, 0xff})
	} else {
		options = appendNumber(options, attrHashSize, hashSize)
		options = appendNumber(options, attrMaxElem, room)
	}
	body := nlattr.AppendText(named(name), attrTypeName, string(t))
	body = nlattr.Append(body, attrRevision, []byte{revision})
	body = nlattr.Append(body, attrFamily, []byte{s.familyOf(t)})
	body = nlattr.Append(body, attrData|nlattr.Nested, options)
	if err := s.request(nl.IPSET_CMD_CREATE, nl.GetIpsetFlags(nl.IPSET_CMD_CREATE)|unix.NLM_F_EXCL, body, nil); err != nil {
		return &SetError{Set: name, Err: fmt.Errorf("making it: %w", err)}
	}
	s.headers[name] = setHeader{kind: t, family: s.familyOf(t), maxElem: room}
	return nil
}

// change adds or deletes entries. The kernel follows a message that it rejects up
// to the entry that is wrong, so its entries are tried one by one then.
func (s *sets) change(command int, name SetName, t SetType, entries []Entry) error {
	for batch := range slices.Chunk(entries, batchEntries) {
		if len(batch) > 1 && s.send(command, name, t, batch) == nil {
			continue
		}
		for _, e := range batch {
			if err := s.send(command, name, t, []Entry{e}); err != nil {
				if errors.Is(err, unix.ENOENT) && command == nl.IPSET_CMD_DEL {
					return nil // without the set there is no entry
				}
				return &SetError{Set: name, Entry: e, Err: err}
			}
		}
	}
	return nil
}

// send sends one message that adds or deletes entries. Those that are there, or
// missing, do not count.
func (s *sets) send(command int, name SetName, t SetType, entries []Entry) error {
	var list []byte
	for i, e := range entries {
		x, err := parseElement(t, e)
		if err != nil {
			return err
		}
		data := appendNumber(x.encode(t), attrLine, i+1)
		list = nlattr.Append(list, attrData|nlattr.Nested, data)
	}
	body := named(name)
	if len(entries) == 1 {
		body = append(body, list...)
	} else {
		// With the number of the line, which is where the kernel says what is wrong.
		body = nlattr.Append(body, attrLine, binary.NativeEndian.AppendUint32(nil, 0))
		body = nlattr.Append(body, attrEntries|nlattr.Nested, list)
	}
	return s.request(command, nl.GetIpsetFlags(command), body, nil)
}

// grow puts a larger set with the same entries in the place of one that is full.
// Rules that use it see the new one from then on.
func (s *sets) grow(c SetChange) error {
	header, entries, err := s.read(c.Name, true)
	if err == nil {
		err = s.destroy(s.growName()) // left by an agent that was killed
	}
	if err == nil {
		err = s.create(s.growName(), c.Type, roomFor(max(header.maxElem, len(entries)+len(c.Add))))
	}
	if err == nil {
		err = s.change(nl.IPSET_CMD_ADD, s.growName(), c.Type, entries)
	}
	if err == nil {
		body := nlattr.AppendText(named(c.Name), attrOtherName, string(s.growName()))
		err = s.request(nl.IPSET_CMD_SWAP, nl.GetIpsetFlags(nl.IPSET_CMD_SWAP), body, nil)
	}
	if err = errors.Join(err, s.destroy(s.growName())); err != nil {
		return &SetError{Set: c.Name, Err: fmt.Errorf("it takes %d entries alone, and a larger one cannot take its place: %w", header.maxElem, setReason(err))}
	}
	s.headers[c.Name] = setHeader{kind: header.kind, family: header.family}
	return nil
}

// destroy deletes a set. It may be missing.
func (s *sets) destroy(name SetName) error {
	delete(s.headers, name)
	err := s.request(nl.IPSET_CMD_DESTROY, nl.GetIpsetFlags(nl.IPSET_CMD_DESTROY), named(name), nil)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// DeleteSets implements Kernel. Those that cannot be deleted do not keep others
// from being.
func (s *sets) DeleteSets(names []SetName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed []error
	for _, name := range append(slices.Clone(names), s.growName()) {
		if err := s.destroy(name); err != nil {
			failed = append(failed, &SetError{Set: name, Err: fmt.Errorf("deleting it: %w", setReason(err))})
		}
	}
	return errors.Join(failed...)
}
