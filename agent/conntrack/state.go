package conntrack

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// maxFormer bounds how many destinations of ended Services are remembered while the table cannot
// be read.
const maxFormer = 1 << 16

// state is what the kernel's rules of one family do with one protocol, and what of that flows
// have not been compared to yet.
type state struct {
	protocol v1alpha1.Protocol
	services map[dataplane.ServiceName]programmed // those with such ports
	node     dataplane.Node
	// ownFlows: something other than table nat translates flows: the running mode, or one that
	// still serves its former flows.
	ownFlows bool
	work     work
	// applying is what an Apply writes that has not ended, by the name of a Service; nil values remove
	// it. The kernel may have it already, and clients flows to it. applyingAll: it may write anything.
	applying    map[dataplane.ServiceName]*dataplane.Service
	applyingAll bool
	applies     int // that have begun
}

// programmed is what the kernel has of a Service. Either may be nil.
type programmed struct {
	service *dataplane.Service
	// rejected is the newest state if the kernel rejects it, lacks a part of it, or may have a
	// newer one: it is unknown what the kernel does with flows of either.
	rejected *dataplane.Service
	// reduced: service lacks what another Service has.
	reduced bool
}

// work is what flows must be compared to.
type work struct {
	// all: everything, because the rules were wrong or unknown.
	all     bool
	changed sets.Set[dataplane.ServiceName]
	former  sets.Set[Filter] // no longer served
	opened  bool             // something is served that was not: clients that came earlier wait
}

func newWork() work {
	return work{changed: sets.Set[dataplane.ServiceName]{}, former: sets.Set[Filter]{}}
}

func (w *work) empty() bool { return !w.all && len(w.changed)+len(w.former) == 0 }

func (w *work) addFormer(at Filter) {
	if len(w.former) < maxFormer {
		w.former.Insert(at)
	}
}

func newState(protocol v1alpha1.Protocol) *state {
	return &state{protocol: protocol, services: map[dataplane.ServiceName]programmed{}, work: newWork()}
}

// begin records that an Apply begins.
func (s *state) begin(r *dataplane.Ruleset) {
	s.applies++
	s.applyingAll = s.applyingAll || r.Full || r.Recheck || r.Repair
	if s.applying == nil {
		s.applying = map[dataplane.ServiceName]*dataplane.Service{}
	}
	for name := range r.Dirty {
		s.applying[name] = r.Services[name]
	}
}

// busy reports whether an Apply has begun that has not succeeded yet.
func (s *state) busy() bool { return s.applyingAll || len(s.applying) > 0 }

// commit records the result of an Apply.
func (s *state) commit(r *dataplane.Ruleset, result dataplane.Result) {
	s.applying, s.applyingAll = nil, false
	full := r.Full || result.Kind == v1alpha1.SyncFull
	s.work.all = s.work.all || full ||
		r.Recheck || // node ports may answer elsewhere
		s.ownFlows && !result.OwnFlows // nothing serves the former mode's flows any more
	s.node, s.ownFlows = r.Node, result.OwnFlows
	names := sets.KeySet(r.Dirty).Union(sets.KeySet(result.Reduced)) // a change of another Service may reduce one
	if full {
		names = names.Union(sets.KeySet(r.Services))
	}
	for name, p := range s.services {
		if full || p.rejected != nil || p.reduced { // it may be programmed now
			names.Insert(name)
		}
	}
	for name := range names {
		desired, reduced := r.Services[name], result.Reduced[name]
		_, rejected := result.Rejected[name]
		_, unfinished := result.Unfinished[name]
		if reduced != nil {
			desired, rejected = reduced, false
		}
		if desired != nil && !slices.ContainsFunc(desired.Ports, func(p dataplane.Port) bool { return p.Protocol == s.protocol }) {
			desired = nil
		}
		if _, preserved := r.Preserve[name]; rejected || unfinished || preserved {
			s.reject(name, desired)
		} else {
			s.program(name, desired, reduced != nil)
		}
	}
}

// reject records that the kernel has roughly what it had of a Service.
func (s *state) reject(name dataplane.ServiceName, desired *dataplane.Service) {
	p := s.services[name]
	if desired == nil {
		desired = p.service // only other protocols are desired
	}
	if desired != nil {
		s.services[name] = programmed{service: p.service, rejected: desired}
	}
}

// program records what the kernel has of a Service now.
func (s *state) program(name dataplane.ServiceName, desired *dataplane.Service, reduced bool) {
	p := s.services[name]
	if p.service == desired && p.rejected == nil {
		return
	}
	now := map[Filter]dataplane.Destination{}
	eachServed(desired, s.protocol, func(at Filter, d dataplane.Destination) { now[at] = d })
	changed := p.rejected != nil
	known := 0 // destinations that were served before, if they are now
	// All destinations of a port follow each other, are of one port now, and have the same endpoints
	// unless one is the cluster IP.
	var last struct {
		before, after *dataplane.Port
		clusterIP     bool
	}
	var before, after target
	eachServed(p.service, s.protocol, func(at Filter, d dataplane.Destination) {
		n, served := now[at]
		// A TCP connection to a Service that has ended would find no other endpoint.
		if !served && s.protocol == v1alpha1.ProtocolUDP {
			s.work.addFormer(at)
		}
		of := last
		if of.before, of.after, of.clusterIP = d.Port, n.Port, d.Kind == dataplane.ClusterIP; of != last {
			last, before, after = of, target{endpoints: listsOf(d.Port).at(&d)}, target{}
			if served {
				after.endpoints = listsOf(n.Port).at(&n)
			}
			changed = changed || !served || mayHarm(&before, &after)
		}
		if served && (!before.empty() || after.empty()) {
			known++
		}
	})
	opened := known < len(now)
	if changed || opened {
		s.work.changed.Insert(name)
		s.work.opened = s.work.opened || opened
	}
	if desired == nil {
		delete(s.services, name)
	} else {
		s.services[name] = programmed{service: desired, reduced: reduced}
	}
}

// mayHarm reports whether flows to a destination may be stale once other endpoints serve it. Those
// to endpoints that stay are not.
func mayHarm(before, after *target) bool {
	return slices.ContainsFunc(before.endpoints, func(e *endpoints) bool {
		return slices.ContainsFunc(e.list, func(a netip.AddrPort) bool { return !after.has(a) })
	})
}

// take returns the plan for the pending work, which is no longer pending. The plan lacks where
// NodePorts answer.
func (s *state) take() *plan {
	w := s.work
	s.work = newWork()
	return s.planFor(w)
}

// planFor returns the plan for work.
func (s *state) planFor(w work) *plan {
	p := &plan{
		protocol: s.protocol, targets: make(map[Filter]*target, len(s.services)), former: sets.Set[Filter]{},
		ownFlows: s.ownFlows, own: s.node.Addresses, filters: s.filters(&w),
		unknown: s.applyingAll, applies: s.applies, work: w,
	}
	for name, svc := range s.services {
		_, applying := s.applying[name]
		p.add(svc.service, svc.rejected != nil || applying)
		p.add(svc.rejected, true)
	}
	for _, svc := range s.applying {
		p.add(svc, true)
	}
	for at := range w.former {
		if p.targets[at] == nil { // else the Service that serves it now decides
			p.former.Insert(at)
			p.nodePorts = p.nodePorts || !at.Address.IsValid()
		}
	}
	return p
}

// filters select the flows that the work concerns, or all.
func (s *state) filters(w *work) []Filter {
	all := []Filter{{}}
	if w.all || len(w.changed)+len(w.former) > 2*maxFilters {
		return all
	}
	chosen := w.former.Clone()
	for name := range w.changed {
		eachServed(s.services[name].service, s.protocol, func(at Filter, _ dataplane.Destination) { chosen.Insert(at) })
	}
	if len(chosen) > maxFilters {
		return all
	}
	return chosen.UnsortedList()
}

// putBack makes the work of a failed pass pending again.
func (s *state) putBack(w work) {
	s.work.all, s.work.opened = s.work.all || w.all, s.work.opened || w.opened
	s.work.changed = s.work.changed.Union(w.changed)
	for at := range w.former {
		s.work.addFormer(at)
	}
}
