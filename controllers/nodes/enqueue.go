package nodes

import (
	"context"
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
// nodes wait in one queue: a namespace that names a thousand nodes with each of its changes would
// delay those of others without end. Ordinary changes grow with the cluster: a Service may have
// pods on each node, and a DaemonSet may replace a tenth of them at a time.
const (
	enqueueRate  = 20  // nodes a second at least
	enqueueBurst = 500 // nodes in a row at least
	// After enqueueAtOnce nodes the others follow at enqueueSpacedBy per second, or at the rate if
	// that is more, so that changes of other namespaces are rendered between them.
	enqueueAtOnce   = 50
	enqueueSpacedBy = 200
	// enqueueSweep is how often the Nodes are counted.
	enqueueSweep = time.Minute
)

// enqueuePace spaces what the slices of each namespace enqueue. It is in memory.
type enqueuePace struct {
	reader client.Reader // reads come from the cache
	clock  clock.PassiveClock

	mu         sync.Mutex
	namespaces map[string]*enqueued // guarded by mu; those that are not full
	sweep      time.Time            // when to forget full ones next; guarded by mu
	fresh      pacing.Bucket        // a full one; guarded by mu
}

// enqueued is what a namespace has enqueued.
type enqueued struct {
	bucket  pacing.Bucket
	spacing pacing.Bucket
	due     map[string]time.Time // by node, of those that wait for their time
}

func newEnqueuePace(reader client.Reader, clk clock.PassiveClock) *enqueuePace {
	return &enqueuePace{reader: reader, clock: clk, namespaces: map[string]*enqueued{}}
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

// enqueue enqueues nodes that slices of a namespace name, at once or when it is their turn. A node
// that already waits includes this change.
func (p *enqueuePace) enqueue(ctx context.Context, q watches.Queue, namespace string, nodes []string) {
	nodes = p.known(ctx, nodes)
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	e := p.of(ctx, namespace, now)
	for _, node := range nodes {
		request := reconcile.Request{NamespacedName: types.NamespacedName{Name: node}}
		if due := e.due[node]; due.After(now) {
			// The queue has one time for a node: a sooner one may have replaced this.
			q.AddAfter(request, due.Sub(now))
			continue
		}
		wait := max(0, e.bucket.Wait(&pacing.Claim{}, 1, now), e.spacing.Wait(&pacing.Claim{}, 1, now))
		e.due[node] = now.Add(wait)
		q.AddAfter(request, wait)
	}
}

// of returns what a namespace has enqueued; mu must be held.
func (p *enqueuePace) of(ctx context.Context, namespace string, now time.Time) *enqueued {
	if !now.Before(p.sweep) {
		p.resize(ctx)
		for name, e := range p.namespaces {
			for node, due := range e.due {
				if !due.After(now) {
					delete(e.due, node)
				}
			}
			if len(e.due) == 0 && e.bucket.Full(now) {
				delete(p.namespaces, name)
			}
		}
		p.sweep = now.Add(enqueueSweep)
	}
	e := p.namespaces[namespace]
	if e == nil {
		e = &enqueued{
			bucket: p.fresh, due: map[string]time.Time{},
			spacing: spacing(p.fresh.Rate),
		}
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
		even := spacing(rate)
		e.spacing.Rate, e.spacing.Burst = even.Rate, even.Burst
	}
}

// spacing returns the bucket that spaces the nodes of a namespace with such a long-term rate.
func spacing(rate int) pacing.Bucket {
	rate = max(rate, enqueueSpacedBy)
	return pacing.Bucket{Rate: rate, Burst: pacing.TimeFor(enqueueAtOnce, rate)}
}
