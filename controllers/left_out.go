package controllers

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// eventLocalEndpointsLeftOut is about a Service whose local endpoints the rules of some node lack.
const eventLocalEndpointsLeftOut = "LocalEndpointsLeftOut"

// eventsPerNode is how many events one rendering of a node may add.
const eventsPerNode = 10

// leftOut are the Services whose local endpoints are left out of the rules of nodes, as last
// rendered. Nothing in it is needed for correct results.
type leftOut struct {
	metrics *metrics
	// inOrder is held from set until its events are added and retracted: those of another node
	// that the same Service is left out of must not come in between.
	inOrder sync.Mutex

	mu       sync.Mutex
	onNode   map[string][]types.NamespacedName        // guarded by mu
	services map[types.NamespacedName]*leftOutService // guarded by mu
	count    int                                      // of Services on nodes; guarded by mu
}

type leftOutService struct {
	nodes int
	said  bool // an event names it
}

func newLeftOut(m *metrics) *leftOut {
	l := &leftOut{metrics: m}
	l.reset()
	return l
}

// newTerm forgets what was left out while another controller led.
func (l *leftOut) newTerm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset()
}

// reset forgets all; mu must be held.
func (l *leftOut) reset() {
	l.onNode, l.services, l.count = map[string][]types.NamespacedName{}, map[types.NamespacedName]*leftOutService{}, 0
	l.metrics.showLeftOut(0)
}

// set notes what is left out of a node. It returns those of it that no event names, and the
// Services that are left out of no node any more.
func (l *leftOut) set(node string, list []render.LeftOut) (unsaid []render.LeftOut, ended []types.NamespacedName) {
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
		if !s.said {
			unsaid = append(unsaid, out)
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
	l.metrics.showLeftOut(l.count)
	return unsaid, ended
}

// say notes that an event names a Service.
func (l *leftOut) say(service types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.services[service]; s != nil {
		s.said = true
	}
}

// unsay notes that the event that named a Service was lost.
func (l *leftOut) unsay(service types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.services[service]; s != nil {
		s.said = false
	}
}

// sayLeftOut adds an event for each Service whose local endpoints are left out of a node, one
// for all nodes, and reports whether all are added. It retracts those of Services that are left out of
// no node any more. A Service that does not exist has no events.
func (r *NodeReconciler) sayLeftOut(ctx context.Context, node string, list []render.LeftOut) (all bool) {
	r.leftOut.inOrder.Lock() // nothing below waits for the API server
	defer r.leftOut.inOrder.Unlock()
	unsaid, ended := r.leftOut.set(node, list)
	for _, key := range ended {
		svc := &corev1.Service{}
		if found, err := get(ctx, r.client, key, svc); err == nil && found {
			r.events.warn(ctx, svc, eventLocalEndpointsLeftOut, actionRender, "")
		}
	}
	events := 0
	for _, out := range unsaid {
		svc := &corev1.Service{}
		if found, err := get(ctx, r.client, out.Service, svc); err != nil || !found { // the cache does not fail
			continue
		}
		if events++; events > eventsPerNode {
			return false
		}
		if !r.events.warn(ctx, svc, eventLocalEndpointsLeftOut, actionRender, "The rules of node "+node+" do not contain its local endpoints: "+out.Why()+
			". Traffic policy Local finds no endpoint there; give the Services of the namespace fewer ports, or spread their pods over more nodes") {
			return false
		}
		r.leftOut.say(out.Service)
	}
	return true
}
