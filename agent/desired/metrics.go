package desired

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// stages are changes of Services that no sync has taken, and those that one has taken without
// success so far.
type stages[V any] struct{ waiting, applying map[dataplane.ServiceName]V }

func newStages[V any]() stages[V] {
	return stages[V]{waiting: map[dataplane.ServiceName]V{}, applying: map[dataplane.ServiceName]V{}}
}

// take takes all changes except those that still wait.
func (s *stages[V]) take(waits func(dataplane.ServiceName) bool, join func(former, v V) V) {
	left := map[dataplane.ServiceName]V{}
	for name, v := range s.waiting {
		if waits(name) {
			left[name] = v
		} else {
			s.applying[name] = join(s.applying[name], v)
		}
	}
	s.waiting = left
}

// putBack has a change wait again that is being applied.
func (s *stages[V]) putBack(name dataplane.ServiceName, join func(former, v V) V) {
	if v, applying := s.applying[name]; applying {
		s.waiting[name] = join(v, s.waiting[name])
		delete(s.applying, name)
	}
}

// done ends what is being applied.
func (s *stages[V]) done() { s.applying = map[dataplane.ServiceName]V{} }

func (s *stages[V]) count() int {
	n := len(s.waiting)
	for name := range s.applying {
		if _, both := s.waiting[name]; !both {
			n++
		}
	}
	return n
}

// changeLog counts changes, and those that the kernel does not have yet, for metrics.
type changeLog struct {
	since                time.Time // earlier changes do not count as programmed late
	endpoints, services  stages[struct{}]
	endpointsN, serviceN uint64
}

// ChangeTotals are the numbers of changes, and of pending ones.
type ChangeTotals struct {
	Endpoints, Services               uint64
	EndpointsPending, ServicesPending int
}

func (l *changeLog) totals() ChangeTotals {
	return ChangeTotals{
		Endpoints: l.endpointsN, Services: l.serviceN,
		EndpointsPending: l.endpoints.count(), ServicesPending: l.services.count(),
	}
}

func (l *changeLog) endpoint(name dataplane.ServiceName) {
	l.endpointsN++
	l.endpoints.waiting[name] = struct{}{}
}

// note notes a new state of a Service; a nil former or object means none.
func (l *changeLog) note(name dataplane.ServiceName, former, object *v1alpha1.ServiceProxyRules) {
	if former == nil || object == nil || !sameButEndpoints(&former.Spec, &object.Spec) {
		l.serviceN++
		l.services.waiting[name] = struct{}{}
	}
	if object != nil && (former == nil || !sameEndpoints(&former.Spec, &object.Spec)) {
		l.endpoint(name)
	}
}

// triggerOf is when the newest change of endpoints in the object was made; zero: unknown.
func triggerOf(object *v1alpha1.ServiceProxyRules) time.Time {
	t, err := time.Parse(time.RFC3339Nano, object.Annotations[v1alpha1.AnnotationLastChangeTriggerTime])
	if err != nil {
		return time.Time{}
	}
	return t
}

func sameEndpoints(a, b *v1alpha1.ServiceProxyRulesSpec) bool {
	return sameGroups(a.Endpoints, b.Endpoints) && slices.EqualFunc(a.Ports, b.Ports, func(x, y v1alpha1.ServicePort) bool {
		return x.Name == y.Name && x.Protocol == y.Protocol && sameGroups(x.Endpoints, y.Endpoints)
	})
}

func sameGroups(a, b []v1alpha1.EndpointGroup) bool {
	return slices.EqualFunc(a, b, func(g, h v1alpha1.EndpointGroup) bool {
		return g.State == h.State && maps.Equal(g.TargetPorts, h.TargetPorts) &&
			slices.Equal(g.Zones, h.Zones) && slices.Equal(g.Nodes, h.Nodes) && slices.Equal(g.Addresses, h.Addresses)
	})
}

func sameButEndpoints(a, b *v1alpha1.ServiceProxyRulesSpec) bool {
	x, y := *a, *b // shallow: only fields of the copies are set
	x.Ports, y.Ports, x.Endpoints, y.Endpoints, x.EndpointCount, y.EndpointCount = nil, nil, nil, nil, 0, 0
	return equality.Semantic.DeepEqual(x, y) && slices.EqualFunc(a.Ports, b.Ports, func(p, q v1alpha1.ServicePort) bool {
		return p.Name == q.Name && p.Protocol == q.Protocol && p.Port == q.Port && p.NodePort == q.NodePort
	})
}

// maxTriggers bounds what is remembered of a Service that changes while nothing can be
// written.
const maxTriggers = 16

// ProgrammedChanges are the metrics of a family after a success.
type ProgrammedChanges struct {
	Latencies []time.Duration
	NoLocal   noLocal
}
