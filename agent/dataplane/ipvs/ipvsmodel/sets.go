package ipvsmodel

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

// set is an ipset.
type set struct {
	kind    ipvs.SetType
	entries map[ipvs.Entry]bool
}

// Sets implements ipvs.Kernel.
func (k *Kernel) Sets(names []ipvs.SetName) (map[ipvs.SetName][]ipvs.Entry, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "Sets"}); err != nil {
		return nil, err
	}
	out := map[ipvs.SetName][]ipvs.Entry{}
	for _, name := range names {
		if s := k.sets[name]; s != nil {
			out[name] = slices.Sorted(maps.Keys(s.entries))
		}
	}
	return out, nil
}

// Entries lists those of an ipset, sorted.
func (k *Kernel) Entries(name ipvs.SetName) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var out []string
	if s := k.sets[name]; s != nil {
		for e := range s.entries {
			out = append(out, string(e))
		}
	}
	slices.Sort(out)
	return out
}

// ChangeSets implements ipvs.Kernel.
func (k *Kernel) ChangeSets(changes []ipvs.SetChange) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.begin(Call{Method: "ChangeSets", Sets: slices.Clone(changes)}); err != nil {
		return err
	}
	var failed []error // which does not keep the other sets from being changed
	for i := range changes {
		if err := k.addTo(&changes[i]); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	for _, c := range changes {
		for _, e := range c.Remove {
			delete(k.sets[c.Name].entries, e)
		}
	}
	return nil
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
	var failed []error // which does not keep the other sets from being deleted
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

// entry is what an entry of an ipset means.
type entry struct {
	addr     netip.Addr
	protocol string
	port     uint16
	net      netip.Prefix // one address for hash:ip,port,ip
}

// parseEntry reads an entry, and refuses what is not as the kernel would give it
// back.
func (k *Kernel) parseEntry(kind ipvs.SetType, text ipvs.Entry) (entry, error) {
	e := entry{}
	parts := strings.Split(string(text), ",")
	var err error
	if kind == ipvs.BitmapPort {
		var n uint64
		n, err = strconv.ParseUint(string(text), 10, 16)
		e.port = uint16(n)
		return e, err
	}
	if want := len(strings.Split(strings.TrimPrefix(string(kind), "hash:"), ",")); len(parts) != want {
		return e, fmt.Errorf("%d parts, not %d", len(parts), want)
	}
	if e.addr, err = netip.ParseAddr(parts[0]); err != nil {
		return e, err
	}
	canonical := []string{e.addr.String()}
	if len(parts) > 1 {
		protocol, number, _ := strings.Cut(parts[1], ":")
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || !slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
			return e, fmt.Errorf("no protocol:port: %s", parts[1])
		}
		e.protocol, e.port = protocol, uint16(n)
		canonical = append(canonical, fmt.Sprintf("%s:%d", protocol, n))
	}
	if len(parts) > 2 {
		text, err := e.readNet(kind, parts[2])
		if err != nil {
			return e, err
		}
		canonical = append(canonical, text)
	}
	if !k.family.Of(e.addr) || len(parts) > 2 && !k.family.Of(e.net.Addr()) {
		return e, fmt.Errorf("not of %s", k.family)
	}
	if got := strings.Join(canonical, ","); got != string(text) {
		return e, fmt.Errorf("it would be printed as %s", got)
	}
	return e, nil
}

// readNet reads the third part of an entry and returns it as it is printed.
func (e *entry) readNet(kind ipvs.SetType, text string) (string, error) {
	a, err := netip.ParseAddr(text)
	if err == nil {
		e.net = netip.PrefixFrom(a, a.BitLen())
		return a.String(), nil
	}
	if kind == ipvs.HashIPPortIP {
		return "", err
	}
	if e.net, err = netip.ParsePrefix(text); err != nil {
		return "", err
	}
	e.net = e.net.Masked()
	switch e.net.Bits() {
	case 0:
		return "", errors.New("the value of the CIDR parameter of the IP address is invalid")
	case e.net.Addr().BitLen():
		return e.net.Addr().String(), nil
	}
	return e.net.String(), nil
}

// inSet reports whether an ipset holds what directions name of a packet.
func (k *Kernel) inSet(name string, directions []string, p iptablesmodel.Packet) (bool, error) {
	s := k.sets[ipvs.SetName(name)]
	if s == nil {
		return false, fmt.Errorf("no ipset %s", name)
	}
	want := map[ipvs.SetType]int{ipvs.BitmapPort: 1, ipvs.HashIP: 1, ipvs.HashIPPort: 2, ipvs.HashIPPortIP: 3, ipvs.HashIPPortNet: 3}[s.kind]
	if len(directions) != want {
		return false, fmt.Errorf("ipset %s of type %s asked for %q", name, s.kind, directions)
	}
	address := func(i int) netip.Addr {
		if directions[i] == "src" {
			return p.Source
		}
		return p.Destination.Addr()
	}
	if port := map[ipvs.SetType]int{ipvs.HashIPPort: 1, ipvs.HashIPPortIP: 1, ipvs.HashIPPortNet: 1, ipvs.BitmapPort: 0}; s.kind != ipvs.HashIP &&
		directions[port[s.kind]] == "src" {
		return false, fmt.Errorf("ipset %s asked for a source port, which packets here do not have", name)
	}
	if s.kind == ipvs.BitmapPort {
		// The kernel looks up ports of TCP and UDP only in a set of this type.
		return p.Protocol != "sctp" && s.entries[ipvs.Entry(strconv.Itoa(int(p.Destination.Port())))], nil
	}
	text := address(0).String()
	if s.kind == ipvs.HashIP {
		return s.entries[ipvs.Entry(text)], nil
	}
	text += fmt.Sprintf(",%s:%d", p.Protocol, p.Destination.Port())
	if s.kind == ipvs.HashIPPort {
		return s.entries[ipvs.Entry(text)], nil
	}
	for e := range s.entries {
		if rest, ok := strings.CutPrefix(string(e), text+","); ok {
			parsed, err := k.parseEntry(s.kind, e)
			if err != nil {
				return false, fmt.Errorf("ipset %s: %s: %w", name, rest, err)
			}
			if parsed.net.Contains(address(2)) {
				return true, nil
			}
		}
	}
	return false, nil
}
