package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// How many nodes the slices of one namespace may have rendered. A slice may name any node, and
// all nodes wait in one queue: one namespace that names a thousand nodes with each of its changes
// would have those of others wait behind them without end.
const (
	// enqueueRate are nodes a second, and enqueueBurst is for how long unused ones remain
	// available: 1,000 nodes, so that a Service with pods on each of them is served at once.
	enqueueRate  = 20
	enqueueBurst = 50 * time.Second
)

// enqueuePace spaces what the slices of each namespace enqueue, in memory.
type enqueuePace struct {
	clock clock.PassiveClock

	mu         sync.Mutex
	namespaces map[string]*enqueued // guarded by mu; those that would not be as new
	sweep      time.Time            // when to look next for those that would; guarded by mu
}

// enqueued is what a namespace has enqueued.
type enqueued struct {
	bucket bucket
	due    map[string]time.Time // by node, of those that wait for their time
}

func newEnqueuePace(clk clock.PassiveClock) *enqueuePace {
	return &enqueuePace{clock: clk, namespaces: map[string]*enqueued{}}
}

// enqueue enqueues nodes that slices of a namespace name: at once, or when it is their turn. A node
// that waits already takes up this change as well.
func (p *enqueuePace) enqueue(q queue, namespace string, nodes []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	e := p.of(namespace, now)
	for _, node := range nodes {
		if e.due[node].After(now) {
			continue
		}
		wait := max(0, e.bucket.wait(&claim{}, 1, now))
		e.due[node] = now.Add(wait)
		q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}, wait)
	}
}

// of returns what a namespace has enqueued; mu must be held.
func (p *enqueuePace) of(namespace string, now time.Time) *enqueued {
	if !now.Before(p.sweep) {
		for name, e := range p.namespaces {
			for node, due := range e.due {
				if !due.After(now) {
					delete(e.due, node)
				}
			}
			if len(e.due) == 0 && e.bucket.full(now) {
				delete(p.namespaces, name)
			}
		}
		p.sweep = now.Add(enqueueBurst)
	}
	e := p.namespaces[namespace]
	if e == nil {
		e = &enqueued{bucket: bucket{rate: enqueueRate, burst: enqueueBurst}, due: map[string]time.Time{}}
		p.namespaces[namespace] = e
	}
	return e
}
