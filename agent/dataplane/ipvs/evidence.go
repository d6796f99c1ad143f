package ipvs

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// evidence is by what virtual servers of ours are known.
type evidence struct {
	config *config
	state  *snapshot
	// known are those of our last Apply.
	known map[Key]dataplane.ServiceName
	// denied are those of others, though it looks otherwise.
	denied map[Key]struct{}
	// stranded are those for NodePorts on addresses that the node no longer has.
	stranded map[Key]struct{}
}

// ours reports whether a virtual server is ours: we have made it, or its address
// is on kube-ipvs0, or an ipset of ours names it.
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
	for _, set := range []string{setClusterIP, setExternalIP, setExternalIPLocal, setLoadBalancer, setNodePortSCTP} {
		if e.state.has(e.config.set(set), keyEntry(k)) {
			return true
		}
	}
	if _, found := e.stranded[k]; found {
		return true
	}
	return e.onNode(k.Addr) && e.nodePort(k)
}

// nodePort reports whether an ipset of ours names the port of a virtual server
// for NodePorts.
func (e *evidence) nodePort(k Key) bool {
	set := setNodePortTCP
	switch k.Protocol {
	case v1alpha1.ProtocolUDP:
		set = setNodePortUDP
	case v1alpha1.ProtocolSCTP:
		return false // it is named with its address
	}
	return e.state.has(e.config.set(set), portEntry(k.Port))
}

func (e *evidence) onNode(a netip.Addr) bool {
	return e.config.onNode(a) || slices.Contains(e.config.nodePortIPs, a)
}

// twins returns the virtual servers on addresses of the node that are like one
// for a NodePort on another address. Those of one NodePort are all alike.
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

// strangers are the virtual servers that are not ours. One that came to an address that
// was bound already is in the way of no other Service there: Services that are served at
// other ports go on.
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
