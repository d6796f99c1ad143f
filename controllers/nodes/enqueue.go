package nodes

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
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// How many nodes the slices of one namespace may have rendered. A slice may name any node, and all
// nodes share one queue: a namespace whose every change names a thousand nodes would delay all
// others. Ordinary changes grow with the cluster: a Service may have pods on each node, and a
// DaemonSet may replace a tenth of them at a time.
const (
	enqueueRate  = 20  // nodes a second at least
	enqueueBurst = 500 // nodes in a row at least
	// enqueueAtOnce is how many are in the queue at a time; the others follow when one of them is
	// rendered. More would be rendered no faster, and changes of other namespaces would wait for
	// all of them.
	enqueueAtOnce = 8
	// enqueueSweep is how often the Nodes are counted.
	enqueueSweep = time.Minute
)

// enqueuePace limits the rate at which the slices of each namespace enqueue nodes. It is in memory.
type enqueuePace struct {
	reader client.Reader // reads come from the cache
	clock  clock.PassiveClock

	mu         sync.Mutex
	queue      watches.Queue          // guarded by mu
	namespaces map[string]*enqueued   // without those whose bucket is full; guarded by mu
	by         map[string][]*enqueued // those that have enqueued a node; guarded by mu
	sweep      time.Time              // when to forget full ones next; guarded by mu
	fresh      pacing.Bucket          // of a new namespace; guarded by mu
}

// enqueued are the nodes of a namespace.
type enqueued struct {
	bucket pacing.Bucket
	queued map[string]time.Time // in the queue, with the time when each is due
	next   []string             // to enqueue next, in order
	waits  map[string]struct{}  // those in next
}

func newEnqueuePace(reader client.Reader, clk clock.PassiveClock) *enqueuePace {
	return &enqueuePace{reader: reader, clock: clk, namespaces: map[string]*enqueued{}, by: map[string][]*enqueued{}}
}

// known returns the nodes of a slice that exist or have rules. Other names would fill the queue
// without bound. A Node that is created later is rendered then.
func (p *enqueuePace) known(ctx context.Context, names []string) []string {
	node, rules := &corev1.Node{}, &v1alpha1.NodeProxyRules{}
	var out []string
	for _, name := range names {
		key := client.ObjectKey{Name: name}
		found, err := objects.Get(ctx, p.reader, key, node)
		if err == nil && !found {
			found, err = objects.Get(ctx, p.reader, key, rules)
		}
		if found || err != nil { // only a cache that has stopped fails
			out = append(out, name)
		}
	}
	return out
}

// enqueue enqueues nodes that slices of a namespace name, at once or when the namespace may. A node
// that already waits will include this change.
func (p *enqueuePace) enqueue(ctx context.Context, q watches.Queue, namespace string, nodes []string) {
	nodes = p.known(ctx, nodes)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = q
	now := p.clock.Now()
	e := p.of(ctx, namespace, now)
	for _, node := range nodes {
		if due, is := e.queued[node]; is {
			// The queue has one time for a node: a sooner one may have replaced this.
			q.AddAfter(nodeRequest(node), max(0, due.Sub(now)))
			continue
		}
		if _, waits := e.waits[node]; !waits {
			e.next, e.waits[node] = append(e.next, node), struct{}{}
		}
	}
	p.follow(e, now)
}

// began records that a node has left the queue.
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

// follow enqueues the next nodes while few are in the queue; mu must be held.
func (p *enqueuePace) follow(e *enqueued, now time.Time) {
	for len(e.next) > 0 && len(e.queued) < enqueueAtOnce {
		node := e.next[0]
		e.next = e.next[1:]
		delete(e.waits, node)
		wait := max(0, e.bucket.Wait(&pacing.Claim{}, 1, now))
		e.queued[node] = now.Add(wait)
		p.by[node] = append(p.by[node], e)
		p.queue.AddAfter(nodeRequest(node), wait)
	}
}

func nodeRequest(node string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
}

// of returns the nodes of a namespace; mu must be held.
func (p *enqueuePace) of(ctx context.Context, namespace string, now time.Time) *enqueued {
	if !now.Before(p.sweep) {
		p.resize(ctx)
		maps.DeleteFunc(p.namespaces, func(_ string, e *enqueued) bool {
			return len(e.queued) == 0 && len(e.next) == 0 && e.bucket.Full(now)
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

// resize adapts all buckets to the number of Nodes; mu must be held.
func (p *enqueuePace) resize(ctx context.Context) {
	var nodes corev1.NodeList
	if err := p.reader.List(ctx, &nodes); err != nil {
		log.FromContext(ctx).Error(err, "Nodes could not be counted")
	}
	rate, burst := max(enqueueRate, len(nodes.Items)/20), max(enqueueBurst, 2*len(nodes.Items))
	p.fresh = pacing.Bucket{Rate: rate, Burst: pacing.TimeFor(burst, rate)}
	for _, e := range p.namespaces {
		e.bucket.Rate, e.bucket.Burst = p.fresh.Rate, p.fresh.Burst
	}
}
