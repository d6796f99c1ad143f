package conntrack

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// maxFilters bounds the filters of one pass. For each, the kernel scans the whole table,
	// which is only cheaper than copying all flows of the protocol if there are few.
	maxFilters = 4
	// fewEndpoints are searched one by one.
	fewEndpoints = 16
)

// plan decides which flows of one family and protocol contradict the rules. Its keys are
// destinations: an address with a port, or a port alone, which is a node port.
type plan struct {
	protocol v1alpha1.Protocol
	targets  map[Filter]*target
	former   sets.Set[Filter] // no longer served
	// unknown: it is unknown what the kernel does with any flow.
	unknown bool
	// applies is how many Applies had begun, work what the plan is for.
	applies int
	work    work
	// nodePorts: there are any, so answers is needed.
	nodePorts bool
	// ownFlows: flows that are not translated by table nat are valid.
	ownFlows bool
	// own are the addresses of this Node.
	own []netip.Addr
	// filters select the flows to check.
	filters []Filter
	// answers reports whether NodePorts answer on an address.
	answers func(netip.Addr) bool
}

// target is where flows to a destination may go.
type target struct {
	endpoints []*endpoints // of each Service that claims it: any of them may win
	// unknown: it is unknown what the kernel does with such flows.
	unknown bool
}

// endpoints are those of one Service port, shared by its destinations.
type endpoints struct {
	list []netip.AddrPort
	set  sets.Set[netip.AddrPort] // of many, built on first use
}

func (e *endpoints) has(a netip.AddrPort) bool {
	if len(e.list) <= fewEndpoints {
		return slices.Contains(e.list, a)
	}
	if e.set == nil {
		e.set = sets.New(e.list...)
	}
	return e.set.Has(a)
}

// lists are the endpoints of a port: of UDP those that receive traffic anywhere, else those that
// traffic policy Cluster selects, and those of policy Local.
type lists []*endpoints

func listsOf(port *dataplane.Port) lists {
	if port.Protocol == v1alpha1.ProtocolUDP {
		return lists{{list: port.Serving}}
	}
	return lists{{list: port.Cluster}, {list: port.Local}}
}

// at returns where flows to a destination of the port may go. With policy Local external addresses
// have both lists: pods and the node itself reach all endpoints by them.
func (l lists) at(d *dataplane.Destination) []*endpoints {
	switch {
	case len(l) == 1:
		return l
	case !d.Local:
		return l[:1]
	case d.Kind == dataplane.ClusterIP:
		return l[1:]
	default:
		return l
	}
}

func (t *target) has(a netip.AddrPort) bool {
	return slices.ContainsFunc(t.endpoints, func(e *endpoints) bool { return e.has(a) })
}

func (t *target) empty() bool {
	return !slices.ContainsFunc(t.endpoints, func(e *endpoints) bool { return len(e.list) > 0 })
}

// judge returns why a flow to the target is stale; empty: it is not. A UDP flow to any endpoint
// that still gets traffic is valid, even if the rules of this node would not select it now: policies
// and hints apply to new flows. A TCP connection without an answer is as good as new. A mode that
// translates flows itself preserves those of table nat, but not the other way round.
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
	case t.empty():
		return NoEndpoint
	default:
		return EndpointGone
	}
}

// judge returns why a flow is stale; empty: it is not.
func (p *plan) judge(f Flow) Reason {
	if p.unknown {
		return ""
	}
	address := f.Destination.Addr()
	full, nodePort := Filter{address, f.Destination.Port()}, Filter{Port: f.Destination.Port()}
	if t := p.targets[full]; t != nil {
		return t.judge(f, p.ownFlows)
	}
	if t := p.targets[nodePort]; t != nil && p.answers(address) {
		return t.judge(f, p.ownFlows)
	}
	// Removed rules never translated the others: those may be to a program on the node.
	if f.translated() && (p.former.Has(full) || p.former.Has(nodePort) && p.answers(address)) {
		return AddressGone
	}
	return ""
}

// add makes the plan judge flows to the ports of a Service, which may be nil.
func (p *plan) add(svc *dataplane.Service, unknown bool) {
	var others sets.Set[netip.Addr] // served by these Nodes
	if p.ownFlows && svc != nil {
		others = svc.OfOthers(p.own)
	}
	var last *dataplane.Port // all destinations of a port follow each other
	var of lists             // those of last
	eachServed(svc, p.protocol, func(at Filter, d dataplane.Destination) {
		if d.Port != last {
			last, of = d.Port, listsOf(d.Port)
		}
		t := p.targets[at]
		if t == nil {
			t = &target{}
			p.targets[at] = t
			p.nodePorts = p.nodePorts || !at.Address.IsValid()
		}
		if unknown || others.Has(at.Address) {
			t.unknown = true
		} else {
			t.endpoints = append(t.endpoints, of.at(&d)...)
		}
	})
}

// eachServed calls f with each destination that a Service, which may be nil, serves over a protocol.
func eachServed(svc *dataplane.Service, protocol v1alpha1.Protocol, f func(at Filter, d dataplane.Destination)) {
	for d := range svc.Destinations() {
		if d.Port.Protocol == protocol && !d.Repeated {
			f(Filter{d.Address, d.Number}, d)
		}
	}
}

// nodePortsAnswer returns on which addresses NodePorts answer: on those of the node's interfaces
// (local) that the settings select.
func nodePortsAnswer(family dataplane.Family, node *dataplane.Node, local []netip.Addr) (func(netip.Addr) bool, error) {
	nodePorts, err := dataplane.NodePortsOf(family, node)
	if err != nil {
		return nil, err
	}
	own := sets.New(local...)
	return func(a netip.Addr) bool {
		// All of 127.0.0.0/8 is local, but with ranges only addresses of interfaces have rules.
		return (own.Has(a) || a.IsLoopback() && len(nodePorts.Ranges) == 0) && nodePorts.AnswerOn(a)
	}, nil
}
