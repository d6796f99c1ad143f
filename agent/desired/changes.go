package desired

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// changeLog counts changes that have come and those that the kernel does not
// hold yet, for metrics.
type changeLog struct {
	since             time.Time // changes from before do not count as programmed late
	endpoints, parts  pendingChanges
	endpointsN, partN uint64
}

// pendingChanges are Services with changes that no sync has taken, and those
// that one has taken without success so far.
type pendingChanges struct {
	waiting, applying map[dataplane.ServiceName]struct{}
}

func newPendingChanges() pendingChanges {
	return pendingChanges{waiting: map[dataplane.ServiceName]struct{}{}, applying: map[dataplane.ServiceName]struct{}{}}
}

func newChangeLog(now time.Time) changeLog {
	return changeLog{since: now, endpoints: newPendingChanges(), parts: newPendingChanges()}
}

// take takes all changes but those that wait.
func (p *pendingChanges) take(waits func(dataplane.ServiceName) bool) {
	left := map[dataplane.ServiceName]struct{}{}
	for name := range p.waiting {
		if waits(name) {
			left[name] = struct{}{}
		} else {
			p.applying[name] = struct{}{}
		}
	}
	p.waiting = left
}

func (p *pendingChanges) count() int {
	n := len(p.waiting)
	for name := range p.applying {
		if _, both := p.waiting[name]; !both {
			n++
		}
	}
	return n
}

// ChangeTotals are the figures of a changeLog.
type ChangeTotals struct {
	Endpoints, Services               uint64
	EndpointsPending, ServicesPending int
}

// Totals returns how many changes there were, and how many are pending.
func (l *changeLog) Totals() ChangeTotals {
	return ChangeTotals{
		Endpoints: l.endpointsN, Services: l.partN,
		EndpointsPending: l.endpoints.count(), ServicesPending: l.parts.count(),
	}
}

func (l *changeLog) endpoint(name dataplane.ServiceName) {
	l.endpointsN++
	l.endpoints.waiting[name] = struct{}{}
}

func (l *changeLog) service(name dataplane.ServiceName) {
	l.partN++
	l.parts.waiting[name] = struct{}{}
}

// noteChange notes a new state of a Service; a nil former or object stands for
// none. The caller holds mu.
func (s *Store) noteChange(name dataplane.ServiceName, former, object *v1alpha1.ServiceProxyRules) {
	if former == nil || object == nil {
		s.changes.service(name)
		if object == nil {
			for _, f := range s.families {
				delete(f.triggers.waiting, name) // nothing is programmed any more
			}
			return
		}
	} else if !sameButEndpoints(&former.Spec, &object.Spec) {
		s.changes.service(name)
	}
	if former == nil || !sameEndpoints(&former.Spec, &object.Spec) {
		s.changes.endpoint(name)
	}
	trigger := triggerOf(object)
	if trigger.Before(s.changes.since) || former != nil && !trigger.After(triggerOf(former)) {
		return
	}
	for _, f := range s.families {
		f.triggers.add(name, trigger)
	}
}

// triggerOf is when the newest change of endpoints in the object was made; zero
// if it does not say.
func triggerOf(object *v1alpha1.ServiceProxyRules) time.Time {
	t, err := time.Parse(time.RFC3339Nano, object.Annotations[v1alpha1.AnnotationLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return t
}

func sameEndpoints(a, b *v1alpha1.ServiceProxyRulesSpec) bool {
	return slices.EqualFunc(a.Ports, b.Ports, func(x, y v1alpha1.ServicePort) bool {
		return x.Name == y.Name && x.Protocol == y.Protocol &&
			slices.EqualFunc(x.Endpoints, y.Endpoints, func(g, h v1alpha1.EndpointGroup) bool {
				return g.State == h.State && slices.Equal(g.Zones, h.Zones) && slices.Equal(g.Nodes, h.Nodes) && slices.Equal(g.Addresses, h.Addresses)
			})
	})
}

func sameButEndpoints(a, b *v1alpha1.ServiceProxyRulesSpec) bool {
	x, y := *a, *b // shallow: only fields of the copies are set
	x.Ports, y.Ports, x.EndpointCount, y.EndpointCount = nil, nil, 0, 0
	return equality.Semantic.DeepEqual(x, y) && slices.EqualFunc(a.Ports, b.Ports, func(p, q v1alpha1.ServicePort) bool {
		return p.Name == q.Name && p.Protocol == q.Protocol && p.Port == q.Port && p.NodePort == q.NodePort
	})
}

// maxTriggers bounds what is remembered of a Service that changes while nothing
// can be written.
const maxTriggers = 16

// triggers are the times of changes of endpoints that a family's kernel does not
// hold yet.
type triggers struct {
	waiting, applying map[dataplane.ServiceName][]time.Time
}

func newTriggers() triggers {
	return triggers{waiting: map[dataplane.ServiceName][]time.Time{}, applying: map[dataplane.ServiceName][]time.Time{}}
}

func (t *triggers) add(name dataplane.ServiceName, at time.Time) {
	if len(t.waiting[name]) < maxTriggers {
		t.waiting[name] = append(t.waiting[name], at)
	}
}

// take takes all changes but those that wait.
func (t *triggers) take(waits func(dataplane.ServiceName) bool) {
	left := map[dataplane.ServiceName][]time.Time{}
	for name, list := range t.waiting {
		if waits(name) {
			left[name] = list
			continue
		}
		list = append(t.applying[name], list...)
		t.applying[name] = list[:min(len(list), maxTriggers)]
	}
	t.waiting = left
}

// ProgrammedChanges are what metrics tell of a family after a success.
type ProgrammedChanges struct {
	Latencies []time.Duration
	NoLocal   noLocal
}

// takeChanges marks all changes that are combined as being applied. The caller holds mu.
func (s *Store) takeChanges() {
	waits := func(name dataplane.ServiceName) bool {
		_, aside := s.aside[name]
		_, dirty := s.dirty[name]
		return aside || dirty
	}
	s.changes.endpoints.take(waits)
	s.changes.parts.take(waits)
	for _, f := range s.families {
		f.triggers.take(waits)
	}
}

// ProgrammedChanges returns what the kernel has come to hold by the last commit.
func (s *Store) ProgrammedChanges() map[dataplane.Family]ProgrammedChanges {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[dataplane.Family]ProgrammedChanges{}
	now, failed := s.clock.Now(), false
	for family, f := range s.families {
		if f.err != nil {
			failed = failed || !s.spared(family)
			continue
		}
		if !f.done {
			continue
		}
		p := ProgrammedChanges{NoLocal: f.noLocal}
		for name, list := range f.triggers.applying {
			if f.services[name] == nil {
				continue
			}
			for _, at := range list {
				p.Latencies = append(p.Latencies, max(0, now.Sub(at)))
			}
		}
		f.triggers.applying = map[dataplane.ServiceName][]time.Time{}
		out[family] = p
	}
	if !failed {
		s.changes.endpoints.applying = map[dataplane.ServiceName]struct{}{}
		s.changes.parts.applying = map[dataplane.ServiceName]struct{}{}
	}
	return out
}

// noLocal counts Service ports whose traffic of one kind stays on the node,
// which has no endpoint for it.
type noLocal struct{ Internal, External int }

func (n *noLocal) add(svc *dataplane.Service, sign int) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		if !p.Available || len(p.Local) > 0 {
			continue
		}
		if svc.InternalLocal {
			n.Internal += sign
		}
		if svc.ExternalLocal && svc.ExternallyAccessible(p) {
			n.External += sign
		}
	}
}

// tally counts a family's Service as svc and no longer as former, either of
// which may be nil.
func (f *familyState) tally(name dataplane.ServiceName, former, svc *dataplane.Service) {
	f.endpoints.add(former, -1)
	f.endpoints.add(svc, +1)
	f.nodePorts += countNodePorts(svc) - countNodePorts(former)
	f.noLocal.add(former, -1)
	f.noLocal.add(svc, +1)
	f.noteCheck(name, svc)
}
