package ipvs

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// evidence identifies our virtual servers.
type evidence struct {
	config *config
	state  *snapshot
	// known are those that we have added.
	known map[Key]dataplane.ServiceName
	// denied belong to other programs, although they look like ours.
	denied map[Key]struct{}
	// stranded are those for NodePorts on addresses that the node no longer has.
	stranded map[Key]struct{}
}

// ours reports whether a virtual server is ours: we have added it, or its address is on
// kube-ipvs0, or one of our ipsets names it.
func (e *evidence) ours(k Key) bool {
	if _, found := e.known[k]; found {
		return true
	}
	if _, found := e.denied[k]; found {
		return false
	}
	if _, found := e.state.bound[k.Addr]; found {
		return true
	}
	if e.state.names(e.config, k) {
		return true
	}
	if _, found := e.stranded[k]; found {
		return true
	}
	onNode := e.config.onNode(k.Addr) || slices.Contains(e.config.nodePortIPs, k.Addr)
	return onNode && e.nodePort(k)
}

// names reports whether an ipset names a virtual server with its address.
func (s *snapshot) names(c *config, k Key) bool {
	return slices.ContainsFunc([]string{setClusterIP, setExternalIP, setExternalIPLocal, setLoadBalancer, setNodePortSCTP},
		func(set string) bool { return s.has(c.set(set), keyEntry(k)) })
}

// nodePort reports whether an ipset has the port of a virtual server for NodePorts. For
// SCTP none has: its ipset has addresses too.
func (e *evidence) nodePort(k Key) bool {
	return slices.ContainsFunc(nodePortSets, func(s nodePortSet) bool {
		return s.protocol == k.Protocol && e.state.has(e.config.set(s.all), portEntry(k.Port))
	})
}

// twins returns the virtual servers on addresses of the node that equal one for a NodePort
// on another address. All those of one NodePort are equal.
func (e *evidence) twins(k Key) []Key {
	if !e.nodePort(k) || e.ours(k) {
		return nil
	}
	var out []Key
	for _, a := range slices.Concat(e.config.addresses, e.config.nodePortIPs) {
		twin := Key{a, k.Port, k.Protocol}
		if s, found := e.state.servers[twin]; found && s == e.state.servers[k] {
			out = append(out, twin)
		}
	}
	return out
}

// strangers are the virtual servers that are not ours.
type strangers struct {
	keys map[Key]struct{}
	// addresses has one of them for each address that they block.
	addresses map[netip.Addr]Key
}

func newStrangers() strangers {
	return strangers{keys: map[Key]struct{}{}, addresses: map[netip.Addr]Key{}}
}

func (s strangers) add(k Key) {
	s.keys[k] = struct{}{}
	if first, found := s.addresses[k.Addr]; !found || k.Compare(first) < 0 {
		s.addresses[k.Addr] = k
	}
}

// bars returns the one that blocks a virtual server of ours: it has the same key, or an
// address that is to be bound, by which it would become ours.
func (s strangers) bars(p *plannedServer) (Key, bool) {
	if _, found := s.keys[p.Key]; found {
		return p.Key, true
	}
	if !p.bind {
		return Key{}, false
	}
	k, found := s.addresses[p.Key.Addr]
	return k, found
}

// strangers returns the virtual servers that are not ours. One on an address that was
// already bound does not block other ports there: Services that use them continue.
func (e *evidence) strangers() strangers {
	out := newStrangers()
	for k := range e.state.servers {
		if e.ours(k) {
			continue
		}
		if _, bound := e.state.bound[k.Addr]; bound {
			out.keys[k] = struct{}{}
		} else {
			out.add(k)
		}
	}
	return out
}
