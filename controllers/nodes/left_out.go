package nodes

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// EventLocalEndpointsLeftOut reports a Service whose local endpoints are not in the rules of some
// node.
const EventLocalEndpointsLeftOut = "LocalEndpointsLeftOut"

// eventsPerNode is how many events one rendering of a node may add.
const eventsPerNode = 10

// LeftOut records the Services whose local endpoints were left out when their nodes were last
// rendered. It only serves events and metrics.
type LeftOut struct {
	metrics *metrics.Metrics
	// inOrder is held from set until the events are added and retracted, so that those of another
	// node for the same Service do not interleave.
	inOrder sync.Mutex

	mu       sync.Mutex
	onNode   map[string][]types.NamespacedName        // guarded by mu
	services map[types.NamespacedName]*leftOutService // guarded by mu
	count    int                                      // of Services on nodes; guarded by mu
}

type leftOutService struct {
	nodes    int
	hasEvent bool // an event reports it, or it does not exist
}

// NewLeftOut returns an empty LeftOut.
func NewLeftOut(m *metrics.Metrics) *LeftOut {
	l := &LeftOut{metrics: m}
	l.reset()
	return l
}

// NewTerm forgets records from before this controller became the leader.
func (l *LeftOut) NewTerm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset()
}

// reset forgets everything; mu must be held.
func (l *LeftOut) reset() {
	l.onNode, l.services, l.count = map[string][]types.NamespacedName{}, map[types.NamespacedName]*leftOutService{}, 0
	l.metrics.ShowLeftOut(0)
}

// set records what is left out of a node. It returns what no event reports yet, and the Services that
// are no longer left out of any node.
func (l *LeftOut) set(node string, list []render.LeftOut) (withoutEvent []render.LeftOut, ended []types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.onNode[node]
	if len(before) == 0 && len(list) == 0 {
		return nil, nil
	}
	now := make([]types.NamespacedName, len(list))
	for i, out := range list {
		now[i] = out.Service
		s := l.services[out.Service]
		if s == nil {
			s = &leftOutService{}
			l.services[out.Service] = s
		}
		s.nodes++
		if !s.hasEvent {
			withoutEvent = append(withoutEvent, out)
		}
	}
	for _, service := range before { // after those that stay have been counted again
		s := l.services[service]
		if s.nodes--; s.nodes == 0 {
			delete(l.services, service)
			ended = append(ended, service)
		}
	}
	l.count += len(now) - len(before)
	if l.onNode[node] = now; len(now) == 0 {
		delete(l.onNode, node)
	}
	l.metrics.ShowLeftOut(l.count)
	return withoutEvent, ended
}

// Reported records whether an event reports a Service: one was added, or the last one was lost. One
// that does not exist counts as reported until it is created: slices may name any number of these,
// which otherwise would all be looked up again at every rendering.
func (l *LeftOut) Reported(service types.NamespacedName, is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.services[service]; s != nil {
		s.hasEvent = is
	}
}
