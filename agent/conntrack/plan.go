package conntrack

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// maxFilters is the most filters of one pass. Each has the kernel look at
	// the whole table once, which pays off only against having all flows of the
	// protocol copied out.
	maxFilters = 4
	// fewEndpoints are searched one by one.
	fewEndpoints = 16
)

// plan says which flows of one family and protocol contradict the rules.
type plan struct {
	protocol  v1alpha1.Protocol
	addresses map[netip.AddrPort]*target
	nodePorts map[uint16]*target
	former    former
	// ownFlows: what was translated by something else than table nat goes on.
	ownFlows bool
	// own are the addresses of this Node.
	own []netip.Addr
	// filters choose the flows that have to be looked at.
	filters []Filter
	// answers reports whether NodePorts answer on an address.
	answers func(netip.Addr) bool
}

// former is what was served and is not any more.
type former struct {
	addresses map[netip.AddrPort]struct{}
	nodePorts map[uint16]struct{}
}

func newFormer() former {
	return former{addresses: map[netip.AddrPort]struct{}{}, nodePorts: map[uint16]struct{}{}}
}

func (f former) len() int { return len(f.addresses) + len(f.nodePorts) }

// target is where flows to an address or node port may go.
type target struct {
	endpoints []netip.AddrPort
	set       map[netip.AddrPort]struct{} // of many endpoints, once asked for
	// unknown: it cannot be told what the kernel does with such flows.
	unknown bool
}

func (t *target) has(e netip.AddrPort) bool {
	if len(t.endpoints) <= fewEndpoints {
		return slices.Contains(t.endpoints, e)
	}
	if t.set == nil {
		t.set = make(map[netip.AddrPort]struct{}, len(t.endpoints))
		for _, e := range t.endpoints {
			t.set[e] = struct{}{}
		}
	}
	_, found := t.set[e]
	return found
}

// judge returns why a flow to the target is stale; empty: it is not. A flow to
// any endpoint that still receives traffic is kept, also if the rules of this
// node would not choose it now: policies and hints are for new flows. One that the
// rules of nat translate goes on in a mode that translates by itself, but not the other way round.
func (t *target) judge(f Flow, ownFlows bool) Reason {
	switch {
	case t.unknown:
		return ""
	case f.OutsideNAT && !ownFlows:
		return OtherMode
	case t.has(f.ReplySource):
		return ""
	case !f.translated():
		return NotTranslated
	case len(t.endpoints) == 0:
		return NoEndpoint
	default:
		return EndpointGone
	}
}

// judge returns why a flow is stale; empty: it is not.
func (p *plan) judge(f Flow) Reason {
	if t := p.addresses[f.Destination]; t != nil {
		return t.judge(f, p.ownFlows)
	}
	port := f.Destination.Port()
	if t := p.nodePorts[port]; t != nil && p.answers(f.Destination.Addr()) {
		return t.judge(f, p.ownFlows)
	}
	// What was never translated has nothing to do with the rules that are gone:
	// it may be to a program on the node.
	if !f.translated() {
		return ""
	}
	_, gone := p.former.addresses[f.Destination]
	if _, found := p.former.nodePorts[port]; gone || found && p.answers(f.Destination.Addr()) {
		return AddressGone
	}
	return ""
}

// usesNodePorts reports whether answers is needed.
func (p *plan) usesNodePorts() bool { return len(p.nodePorts) > 0 || len(p.former.nodePorts) > 0 }

// add has flows to the Service's ports judged.
func (p *plan) add(svc *dataplane.Service, unknown bool) {
	var others map[netip.Addr]struct{} // these Nodes serve them
	if p.ownFlows && svc != nil {
		others = svc.OfOthers(p.own)
	}
	eachServed(svc, p.protocol, func(at served, port *dataplane.Port) {
		t := p.target(at)
		_, left := others[at.address.Addr()]
		switch {
		case unknown || left:
			t.unknown = true
		case t.endpoints == nil:
			t.endpoints = port.Serving
		default: // two claim the same; the rules may do either
			t.endpoints = slices.Concat(t.endpoints, port.Serving)
		}
	})
}

func (p *plan) target(at served) *target {
	if at.nodePort != 0 {
		if p.nodePorts[at.nodePort] == nil {
			p.nodePorts[at.nodePort] = &target{}
		}
		return p.nodePorts[at.nodePort]
	}
	if p.addresses[at.address] == nil {
		p.addresses[at.address] = &target{}
	}
	return p.addresses[at.address]
}

// served is an address with a port, or a node port, that answers.
type served struct {
	address  netip.AddrPort
	nodePort uint16
}

func (s served) filter() Filter {
	if s.nodePort != 0 {
		return Filter{Port: s.nodePort}
	}
	return Filter{Address: s.address.Addr(), Port: s.address.Port()}
}

// eachServed calls f with everything that the Service, which may be nil,
// answers on over a protocol.
func eachServed(svc *dataplane.Service, protocol v1alpha1.Protocol, f func(at served, port *dataplane.Port)) {
	for d := range svc.Destinations() {
		switch {
		case d.Port.Protocol != protocol || d.Repeated:
		case d.Kind == dataplane.NodePort:
			f(served{nodePort: d.Number}, d.Port)
		default:
			f(served{address: d.AddrPort()}, d.Port)
		}
	}
}
