package iptablesmodel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Balancer is what a kernel has besides its tables: virtual servers, the addresses
// of a device of theirs, and ipsets.
type Balancer interface {
	// Name is the table in steps through virtual servers.
	Name() string
	// Bound reports whether a is an address of the node besides those of its
	// other interfaces.
	Bound(a netip.Addr) bool
	// Choose returns the real servers that a new connection may get, one as
	// probably as another; the zero one stands for a rejection, as do none. Served
	// is false where the destination is no virtual server.
	Choose(p Packet) (reals []netip.AddrPort, served bool)
	// HasSet reports whether there is an ipset of that name.
	HasSet(set string) bool
	// InSet reports whether an ipset has the parts of p that directions name: src or dst
	// for each of its dimensions.
	InSet(set string, directions []string, p Packet) (bool, error)
}

// balance does what the Balancer does to packets that are about to be delivered to the
// node, or have just left one of its processes.
func (w *walk) balance(live []*flow) []*flow {
	if w.Balancer == nil {
		return live
	}
	return w.where(live, func(f *flow) bool { return f.packet.State == "NEW" }, func(flows []*flow) []*flow {
		var out []*flow
		for _, f := range flows {
			out = append(out, w.choose(f)...)
		}
		return out
	})
}

// choose splits a flow by the real servers that it may get.
func (w *walk) choose(f *flow) []*flow {
	reals, served := w.Balancer.Choose(f.packet)
	reject := func(f *flow, why string) {
		f.ended = Rejected
		f.path = append(f.path, Step{w.Balancer.Name(), f.packet.Destination.String(), why, rejects})
	}
	switch {
	case !served:
		return []*flow{f}
	case len(reals) == 0:
		reject(f, "it has no real server")
		return []*flow{f}
	}
	var out []*flow
	for _, real := range reals {
		x := f.clone()
		x.share /= float64(len(reals))
		if !real.IsValid() {
			reject(x, "its scheduler chooses a real server of weight 0")
			out = append(out, x)
			continue
		}
		x.virtual, x.packet.Destination = f.packet.Destination, real
		x.path = append(x.path, Step{w.Balancer.Name(), f.packet.Destination.String(), "real server " + real.String(), real.String()})
		out = append(out, x)
	}
	return out
}

// inSet evaluates --match-set, whose value is the name and the directions.
func (w *walk) inSet(m *match, f *flow) bool {
	if w.Balancer == nil {
		w.fail("an ipset without a model of ipsets: %s", m.value)
		return false
	}
	in, err := w.Balancer.InSet(m.value, m.list, f.packet)
	if err != nil {
		w.fail("%v", err)
	}
	return in
}

// isVirtual reports whether the virtual server that a packet was sent to is that of an
// option of a match.
func (f *flow) isVirtual(option string, m *match) bool {
	switch option {
	case "--vaddr":
		return m.prefix.Contains(f.virtual.Addr())
	case "--vproto":
		return m.value == f.packet.Protocol
	default:
		return m.number == uint64(f.virtual.Port())
	}
}

// checkSets rejects rules that ask an ipset which does not exist.
func (k *Kernel) checkSets(chains map[chainID][]*rule) error {
	for id, rules := range chains {
		for _, r := range rules {
			if m, ok := r.matches["--match-set"]; ok && (k.Balancer == nil || !k.Balancer.HasSet(m.value)) {
				return fmt.Errorf("%s: Set %s doesn't exist", id.name, m.value)
			}
		}
	}
	return nil
}

// AsksSet reports whether some rule asks an ipset, which the kernel does not
// delete then.
func (k *Kernel) AsksSet(set string) bool {
	for _, rules := range k.chains {
		if slices.ContainsFunc(rules, func(r *rule) bool { return r.matches["--match-set"].value == set }) {
			return true
		}
	}
	return false
}

func readDirections(text string) ([]string, error) {
	list := strings.Split(text, ",")
	for _, d := range list {
		if d != "src" && d != "dst" {
			return nil, fmt.Errorf("unknown direction %s", d)
		}
	}
	return list, nil
}
