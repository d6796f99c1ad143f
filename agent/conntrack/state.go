package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// maxFormer bounds what is remembered of ended Services while the table cannot
// be read.
const maxFormer = 1 << 16

// state is what the kernel's rules of one family do with one protocol, and what
// of that no flow has been compared to.
type state struct {
	protocol v1alpha1.Protocol
	services map[dataplane.ServiceName]programmed // of those that have such ports
	node     dataplane.Node
	// ownFlows: something else than table nat translates: the mode that runs, or one that
	// still serves what it translated.
	ownFlows bool
	work     work
}

// programmed is what the kernel has of a Service. Either may be nil.
type programmed struct {
	service *dataplane.Service
	// refused is the newest state if the kernel does not take it, or if it may
	// hold a newer one: it cannot be told what it does with flows of either.
	refused *dataplane.Service
	// reduced: service lacks what is another's.
	reduced bool
}

// work is what flows have to be compared to.
type work struct {
	// all: everything, because the rules were not as they should have been, or
	// it is not known what they were.
	all     bool
	changed map[dataplane.ServiceName]struct{}
	former  former
}

func newWork() work {
	return work{changed: map[dataplane.ServiceName]struct{}{}, former: newFormer()}
}

func (w *work) empty() bool { return !w.all && len(w.changed) == 0 && w.former.len() == 0 }

func newState(protocol v1alpha1.Protocol) *state {
	return &state{protocol: protocol, services: map[dataplane.ServiceName]programmed{}, work: newWork()}
}

// commit takes what an Apply has brought to the kernel.
func (s *state) commit(r *dataplane.Ruleset, result dataplane.Result) {
	s.work.all = s.work.all || s.ownFlows && !result.OwnFlows // nothing serves what it translated any more
	s.node, s.ownFlows = r.Node, result.OwnFlows
	names := maps.Clone(r.Dirty)
	if names == nil {
		names = map[dataplane.ServiceName]struct{}{}
	}
	for name, p := range s.services {
		if p.refused != nil || p.reduced { // it may be programmed now
			names[name] = struct{}{}
		}
	}
	for name := range result.Reduced { // by a change of another Service, too
		names[name] = struct{}{}
	}
	s.work.all = s.work.all || r.Recheck // node ports may answer elsewhere
	if r.Full || result.Kind == v1alpha1.SyncFull {
		s.work.all = true
		for name := range r.Services {
			names[name] = struct{}{}
		}
		for name := range s.services {
			names[name] = struct{}{}
		}
	}
	for name := range names {
		wanted := r.Services[name]
		_, refused := result.Rejected[name]
		reduced := result.Reduced[name]
		if reduced != nil {
			wanted, refused = reduced, false
		}
		if !serves(wanted, s.protocol) {
			wanted = nil
		}
		if _, kept := r.Keep[name]; refused || kept {
			s.refuse(name, wanted)
		} else {
			s.program(name, wanted, reduced != nil)
		}
	}
}

// refuse notes that the kernel has what it held of a Service, more or less.
func (s *state) refuse(name dataplane.ServiceName, wanted *dataplane.Service) {
	p := s.services[name]
	if wanted == nil {
		wanted = p.service // other protocols alone are desired
	}
	if wanted != nil {
		s.services[name] = programmed{service: p.service, refused: wanted}
	}
}

// program notes what the kernel has of a Service now.
func (s *state) program(name dataplane.ServiceName, wanted *dataplane.Service, reduced bool) {
	p := s.services[name]
	if p.service == wanted && p.refused == nil {
		return
	}
	now := map[served]*dataplane.Port{}
	eachServed(wanted, s.protocol, func(at served, port *dataplane.Port) { now[at] = port })
	changed := p.refused != nil
	before := 0
	eachServed(p.service, s.protocol, func(at served, port *dataplane.Port) {
		before++
		switch n := now[at]; {
		case n == nil:
			// A TCP connection to what has ended would find no other endpoint.
			if s.protocol == v1alpha1.ProtocolUDP {
				s.work.former.add(at)
			}
			changed = true
		case !slices.Equal(n.Serving, port.Serving):
			changed = true
		}
	})
	if changed || before != len(now) {
		s.work.changed[name] = struct{}{}
	}
	if wanted == nil {
		delete(s.services, name)
	} else {
		s.services[name] = programmed{service: wanted, reduced: reduced}
	}
}

func (f former) add(at served) {
	switch {
	case f.len() >= maxFormer:
	case at.nodePort != 0:
		f.nodePorts[at.nodePort] = struct{}{}
	default:
		f.addresses[at.address] = struct{}{}
	}
}

// take returns the plan for the work that waits, and that work, which does not
// wait any more. The plan does not say yet where NodePorts answer.
func (s *state) take() (*plan, work) {
	w := s.work
	s.work = newWork()
	p := &plan{
		protocol:  s.protocol,
		addresses: make(map[netip.AddrPort]*target, len(s.services)), nodePorts: map[uint16]*target{},
		former: newFormer(), ownFlows: s.ownFlows, own: s.node.Addresses,
	}
	for _, held := range s.services {
		unknown := held.refused != nil
		p.add(held.service, unknown)
		if unknown {
			p.add(held.refused, true)
		}
	}
	// What another Service serves by now is for that one to judge.
	for a := range w.former.addresses {
		if p.addresses[a] == nil {
			p.former.addresses[a] = struct{}{}
		}
	}
	for n := range w.former.nodePorts {
		if p.nodePorts[n] == nil {
			p.former.nodePorts[n] = struct{}{}
		}
	}
	p.filters = s.filters(&w)
	return p, w
}

// filters choose the flows that the work is about, or all.
func (s *state) filters(w *work) []Filter {
	all := []Filter{{}}
	if w.all || len(w.changed)+w.former.len() > 2*maxFilters {
		return all
	}
	chosen := map[Filter]struct{}{}
	for name := range w.changed {
		eachServed(s.services[name].service, s.protocol, func(at served, _ *dataplane.Port) { chosen[at.filter()] = struct{}{} })
	}
	for a := range w.former.addresses {
		chosen[served{address: a}.filter()] = struct{}{}
	}
	for n := range w.former.nodePorts {
		chosen[served{nodePort: n}.filter()] = struct{}{}
	}
	if len(chosen) > maxFilters {
		return all
	}
	return slices.Collect(maps.Keys(chosen))
}

// putBack lets the work wait again, after a pass that failed.
func (s *state) putBack(w work) {
	s.work.all = s.work.all || w.all
	maps.Copy(s.work.changed, w.changed)
	for a := range w.former.addresses {
		s.work.former.add(served{address: a})
	}
	for n := range w.former.nodePorts {
		s.work.former.add(served{nodePort: n})
	}
}

func serves(svc *dataplane.Service, protocol v1alpha1.Protocol) bool {
	return svc != nil && slices.ContainsFunc(svc.Ports, func(p dataplane.Port) bool { return p.Protocol == protocol })
}
