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

const (
	// hashSize is the initial size of sets, and maxElem their minimum capacity, both as
	// kube-proxy's.
	hashSize = 1024
	maxElem  = 65536
	// batchEntries is the number of entries in one message, which the kernel limits to 64
	// KiB.
	batchEntries = 400
)

// growName is the set that replaces one that is too small; IPv6 has its own.
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
		failed = append(failed, s.fill(c))
	}
	if err := errors.Join(failed...); err != nil {
		return err
	}
	for _, c := range changes {
		failed = append(failed, s.change(nl.IPSET_CMD_DEL, c.Name, c.Type, removals(c)))
	}
	return errors.Join(failed...)
}

// removals returns the entries to remove, except those that the kernel does not distinguish
// from added ones.
func removals(c SetChange) []Entry {
	return slices.DeleteFunc(slices.Clone(c.Remove), func(e Entry) bool {
		text, ok := strings.CutSuffix(string(e), noMatchSuffix)
		return ok && slices.Contains(c.Add, Entry(text))
	})
}

// fill creates a set if needed, and adds entries.
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

// ensure creates the set if needed, and checks its type.
func (s *sets) ensure(c SetChange) error {
	want := setHeader{kind: c.Type, family: s.familyOf(c.Type)}
	if c.Create {
		err := s.create(c.Name, c.Type, capacityFor(len(c.Add)))
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
		return &SetError{Set: c.Name, Err: fmt.Errorf("it has %s, not %s: %s", has.what(), want.what(), deleteIt(c.Name))}
	}
	s.headers[c.Name] = has
	return nil
}

// capacityFor returns the capacity of a set that gets so many entries initially. It is that of
// kube-proxy's sets as long as possible: kube-proxy takes over no others.
func capacityFor(entries int) int {
	if entries <= maxElem {
		return maxElem
	}
	return 1 << bits.Len(uint(2*entries-1))
}

// create creates a set. The error wraps EEXIST if it exists: the kernel would accept one of
// the other family as the same.
func (s *sets) create(name SetName, t SetType, capacity int) error {
	revision, err := s.revision(t)
	if err != nil {
		return err
	}
	var options []byte
	if t == BitmapPort {
		options = nlattr.Append(options, nl.IPSET_ATTR_PORT_FROM|nlattr.NetByteOrder, []byte{0, 0})
		options = nlattr.Append(options, nl.IPSET_ATTR_PORT_TO|nlattr.NetByteOrder, []byte{0xff, 0xff})
	} else {
		options = appendNumber(options, nl.IPSET_ATTR_HASHSIZE, hashSize)
		options = appendNumber(options, nl.IPSET_ATTR_MAXELEM, capacity)
	}
	body := nlattr.AppendText(named(name), nl.IPSET_ATTR_TYPENAME, string(t))
	body = nlattr.Append(body, nl.IPSET_ATTR_REVISION, []byte{revision})
	body = nlattr.Append(body, nl.IPSET_ATTR_FAMILY, []byte{s.familyOf(t)})
	body = nlattr.Append(body, nl.IPSET_ATTR_DATA|nlattr.Nested, options)
	if err := s.request(nl.IPSET_CMD_CREATE, nl.GetIpsetFlags(nl.IPSET_CMD_CREATE)|unix.NLM_F_EXCL, body, nil); err != nil {
		return &SetError{Set: name, Err: fmt.Errorf("create it: %w", err)}
	}
	s.headers[name] = setHeader{kind: t, family: s.familyOf(t), maxElem: capacity}
	return nil
}

// change adds or deletes entries. The kernel executes a rejected message up to the wrong
// entry, so the entries are then tried one by one.
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

// send sends one message that adds or deletes entries, which may exist or be missing.
func (s *sets) send(command int, name SetName, t SetType, entries []Entry) error {
	var list []byte
	for i, e := range entries {
		x, err := ParseElement(t, e)
		if err != nil {
			return err
		}
		data := appendNumber(x.encode(t), nl.IPSET_ATTR_LINENO, i+1)
		list = nlattr.Append(list, nl.IPSET_ATTR_DATA|nlattr.Nested, data)
	}
	body := named(name)
	if len(entries) == 1 {
		body = append(body, list...)
	} else {
		// The kernel reports the wrong entry in the number of the line.
		body = nlattr.Append(body, nl.IPSET_ATTR_LINENO, binary.NativeEndian.AppendUint32(nil, 0))
		body = nlattr.Append(body, nl.IPSET_ATTR_ADT|nlattr.Nested, list)
	}
	return s.request(command, nl.GetIpsetFlags(command), body, nil)
}

// grow replaces a full set by a larger one with the same entries, also in rules that use it.
func (s *sets) grow(c SetChange) error {
	header, entries, err := s.read(c.Name, true)
	if err == nil {
		err = s.destroy(s.growName()) // left by a killed agent
	}
	if err == nil {
		err = s.create(s.growName(), c.Type, capacityFor(max(header.maxElem, len(entries)+len(c.Add))))
	}
	if err == nil {
		err = s.change(nl.IPSET_CMD_ADD, s.growName(), c.Type, entries)
	}
	if err == nil {
		body := nlattr.AppendText(named(c.Name), nl.IPSET_ATTR_SETNAME2, string(s.growName()))
		err = s.request(nl.IPSET_CMD_SWAP, nl.GetIpsetFlags(nl.IPSET_CMD_SWAP), body, nil)
	}
	if err = errors.Join(err, s.destroy(s.growName())); err != nil {
		return &SetError{Set: c.Name, Err: fmt.Errorf("it is limited to %d entries and cannot be replaced by a larger one: %w", header.maxElem, setReason(err))}
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

// DeleteSets implements Kernel. If one cannot be deleted, it deletes the others nevertheless.
func (s *sets) DeleteSets(names []SetName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failed []error
	for _, name := range append(slices.Clone(names), s.growName()) {
		if err := s.destroy(name); err != nil {
			failed = append(failed, &SetError{Set: name, Err: fmt.Errorf("delete it: %w", setReason(err))})
		}
	}
	return errors.Join(failed...)
}
