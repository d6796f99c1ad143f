package ipvsmodel

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// set is an ipset.
type set struct {
	kind    ipvs.SetType
	entries map[ipvs.Entry]bool
}

// Sets implements ipvs.Kernel.
func (k *Kernel) Sets(names []ipvs.SetName) (map[ipvs.SetName][]ipvs.Entry, error) {
	out := map[ipvs.SetName][]ipvs.Entry{}
	err := k.call(Call{Method: "Sets"}, func() error {
		for _, name := range names {
			if s := k.sets[name]; s != nil {
				out[name] = slices.Sorted(maps.Keys(s.entries))
			}
		}
		return nil
	})
	return out, err
}

// ChangeSets implements ipvs.Kernel.
func (k *Kernel) ChangeSets(changes []ipvs.SetChange) error {
	return k.call(Call{Method: "ChangeSets", Sets: slices.Clone(changes)}, func() error {
		var failed []error // the other sets are changed nevertheless
		for i := range changes {
			failed = append(failed, k.addTo(&changes[i]))
		}
		if err := errors.Join(failed...); err != nil {
			return err
		}
		for _, c := range changes {
			for _, e := range c.Remove {
				delete(k.sets[c.Name].entries, e)
			}
		}
		return nil
	})
}

func (k *Kernel) addTo(c *ipvs.SetChange) error {
	s := k.sets[c.Name]
	switch {
	case len(c.Name) > 31:
		return &ipvs.SetError{Set: c.Name, Err: errors.New("the name is too long")}
	case s == nil && !c.Create:
		return &ipvs.SetError{Set: c.Name, Err: fs.ErrNotExist}
	case s == nil:
		s = &set{kind: c.Type, entries: map[ipvs.Entry]bool{}}
		k.sets[c.Name] = s
	case s.kind != c.Type:
		return &ipvs.SetError{Set: c.Name, Err: fmt.Errorf("it is of type %s, not %s", s.kind, c.Type)}
	}
	for _, e := range c.Add {
		if _, err := k.parseEntry(s.kind, e); err != nil {
			return &ipvs.SetError{Set: c.Name, Entry: e, Err: err}
		}
		s.entries[e] = true
	}
	return nil
}

// DeleteSets implements ipvs.Kernel.
func (k *Kernel) DeleteSets(names []ipvs.SetName) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var failed []error // the other sets are deleted nevertheless
	for _, name := range names {
		err := k.begin(Call{Method: "DeleteSets", Name: string(name)})
		if err == nil && k.sets[name] != nil && k.Tables.AsksSet(string(name)) {
			err = &ipvs.SetError{Set: name, Err: errors.New("it is in use by a kernel component")}
		}
		if err != nil {
			failed = append(failed, err)
			continue
		}
		delete(k.sets, name)
	}
	return errors.Join(failed...)
}

// parseEntry reads an entry. It rejects what the kernel would return differently.
func (k *Kernel) parseEntry(kind ipvs.SetType, text ipvs.Entry) (ipvs.Element, error) {
	e, err := ipvs.ParseElement(kind, text)
	if err != nil {
		return e, err
	}
	network := e.Second.IsValid()
	if network {
		e.Second = e.Second.Masked()
	}
	switch printed := e.Entry(kind); {
	case printed != text:
		return e, fmt.Errorf("it would be printed as %s", printed)
	case e.Addr.IsValid() && !k.family.Of(e.Addr) || network && !k.family.Of(e.Second.Addr()):
		return e, fmt.Errorf("not of %s", k.family)
	case e.Protocol != 0 && dataplane.ProtocolOf(e.Protocol) == "":
		return e, fmt.Errorf("protocol %d", e.Protocol)
	case network && e.Second.Bits() == 0:
		return e, errors.New("the value of the CIDR parameter of the IP address is invalid")
	}
	return e, nil
}

// inSet reports whether an ipset has the parts of a packet that directions name.
func (k *Kernel) inSet(name string, directions []string, p kernelmodel.Packet) (bool, error) {
	s := k.sets[ipvs.SetName(name)]
	if s == nil {
		return false, fmt.Errorf("no ipset %s", name)
	}
	if len(directions) != 1+strings.Count(string(s.kind), ",") {
		return false, fmt.Errorf("ipset %s of type %s asked for %q", name, s.kind, directions)
	}
	port := 1
	if s.kind == ipvs.BitmapPort {
		port = 0
	}
	if s.kind != ipvs.HashIP && directions[port] == "src" {
		return false, fmt.Errorf("ipset %s asked for a source port, which packets here do not have", name)
	}
	address := func(i int) netip.Addr {
		if directions[i] == "src" {
			return p.Source
		}
		return p.Destination.Addr()
	}
	e := ipvs.Element{Addr: address(0), Protocol: dataplane.ProtocolNumber(keyOf(p).Protocol), Port: p.Destination.Port()}
	switch s.kind {
	case ipvs.BitmapPort:
		// The kernel looks up ports of TCP and UDP only in a set of this type.
		return p.Protocol != "sctp" && s.entries[e.Entry(s.kind)], nil
	case ipvs.HashIP, ipvs.HashIPPort:
		return s.entries[e.Entry(s.kind)], nil
	}
	for candidate := range s.entries {
		if !strings.HasPrefix(string(candidate), string(e.Entry(ipvs.HashIPPort))+",") {
			continue
		}
		parsed, err := k.parseEntry(s.kind, candidate)
		if err != nil {
			return false, fmt.Errorf("ipset %s: entry %s: %w", name, candidate, err)
		}
		if parsed.Second.Contains(address(2)) {
			return true, nil
		}
	}
	return false, nil
}
