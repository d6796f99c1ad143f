package controllers

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// How many nodes the slices of one namespace may have rendered. A slice may name any node, and
// all nodes wait in one queue: one namespace that names a thousand nodes with each of its changes
// would have those of others wait behind them without end. What is ordinary grows with the cluster:
// a Service may have pods on each node, and a DaemonSet may replace a tenth of them at a time.
const (
	enqueueRate  = 20  // nodes a second at least
	enqueueBurst = 500 // nodes in a row at least
	// enqueueAtOnce are in the queue at a time; the others follow when one of them is rendered.
	// More would be rendered no faster, and whatever another namespace changes would wait for
	// all of them.
	enqueueAtOnce = 8
	// enqueueSweep is how often the Nodes are counted.
	enqueueSweep = time.Minute
)

// enqueuePace spaces what the slices of each namespace enqueue, in memory.
type enqueuePace struct {
	reader client.Reader // reads come from the cache
	clock  clock.PassiveClock

	mu         sync.Mutex
	queue      queue                  // of the one controller; guarded by mu
	namespaces map[string]*enqueued   // guarded by mu; those that would not be as new
	by         map[string][]*enqueued // which of them have a node in the queue; guarded by mu
	sweep      time.Time              // when to look next for those that would; guarded by mu
	fresh      bucket                 // a full one; guarded by mu
}

// enqueued is what a namespace has enqueued.
type enqueued struct {
	bucket bucket
	queued map[string]time.Time // when each node that is in the queue is due
	next   []string             // those that follow
	waits  map[string]struct{}  // the same
}

func newEnqueuePace(reader client.Reader, clk clock.PassiveClock) *enqueuePace {
	return &enqueuePace{reader: reader, clock: clk, namespaces: map[string]*enqueued{}, by: map[string][]*enqueued{}}
}

// known returns those of the nodes that a slice names which there are, or which have rules. Names of
// others would be without bound in the queue. A Node that comes later has itself rendered.
func (p *enqueuePace) known(ctx context.Context, names []string) []string {
	node, rules := &corev1.Node{}, &v1alpha1.NodeProxyRules{}
	var out []string
	for _, name := range names {
		key := client.ObjectKey{Name: name}
		found, err := get(ctx, p.reader, key, node)
		if err == nil && !found {
			found, err = get(ctx, p.reader, key, rules)
		}
		if found || err != nil { // only a cache that has stopped fails
			out = append(out, name)
		}
	}
	return out
}

// enqueue enqueues nodes that slices of a namespace name: at once, or when it is their turn. A node
// that waits already takes up this change as well.
func (p *enqueuePace) enqueue(ctx context.Context, q queue, namespace string, nodes []string) {
	nodes = p.known(ctx, nodes)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = q
	now := p.clock.Now()
	e := p.of(ctx, namespace, now)
	for _, node := range nodes {
		if due, is := e.queued[node]; is {
			// The queue has one time for a node: a sooner one may have taken the place of this.
			q.AddAfter(nodeRequest(node), max(0, due.Sub(now)))
			continue
		}
		if _, waits := e.waits[node]; !waits {
			e.next, e.waits[node] = append(e.next, node), struct{}{}
		}
	}
	p.follow(e, now)
}

// began notes that a node has left the queue.
func (p *enqueuePace) began(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	by := p.by[node]
	delete(p.by, node)
	for _, e := range by {
		delete(e.queued, node)
		p.follow(e, now)
	}
}

// follow enqueues what follows, as long as few nodes are in the queue; mu must be held.
func (p *enqueuePace) follow(e *enqueued, now time.Time) {
	for len(e.next) > 0 && len(e.queued) < enqueueAtOnce {
		node := e.next[0]
		e.next = e.next[1:]
		delete(e.waits, node)
		wait := max(0, e.bucket.wait(&claim{}, 1, now))
		e.queued[node] = now.Add(wait)
		p.by[node] = append(p.by[node], e)
		p.queue.AddAfter(nodeRequest(node), wait)
	}
}

func nodeRequest(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

// of returns what a namespace has enqueued; mu must be held.
func (p *enqueuePace) of(ctx context.Context, namespace string, now time.Time) *enqueued {
	if !now.Before(p.sweep) {
		p.resize(ctx)
		maps.DeleteFunc(p.namespaces, func(_ string, e *enqueued) bool {
			return len(e.queued) == 0 && len(e.next) == 0 && e.bucket.full(now)
		})
		p.sweep = now.Add(enqueueSweep)
	}
	e := p.namespaces[namespace]
	if e == nil {
		e = &enqueued{bucket: p.fresh, queued: map[string]time.Time{}, waits: map[string]struct{}{}}
		p.namespaces[namespace] = e
	}
	return e
}

// resize has all buckets go by the number of Nodes; mu must be held.
func (p *enqueuePace) resize(ctx context.Context) {
	var nodes corev1.NodeList
	if err := p.reader.List(ctx, &nodes); err != nil {
		log.FromContext(ctx).Error(err, "Nodes could not be counted")
	}
	rate, burst := max(enqueueRate, len(nodes.Items)/20), max(enqueueBurst, 2*len(nodes.Items))
	p.fresh = bucket{rate: rate, burst: timeFor(burst, rate)}
	for _, e := range p.namespaces {
		e.bucket.rate, e.bucket.burst = p.fresh.rate, p.fresh.burst
	}
}
