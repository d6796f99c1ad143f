package nodes

import (
	"cmp"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// How many bytes of NodeProxyRules the changes of local endpoints may write. The object of a node
// has those of all namespaces, and is written when one of the changed namespaces has bytes left, so
// that a namespace that changes continuously does not delay others. In addition, each node has a
// share of its own: however many nodes one namespace changes, a change waits at most for the bytes
// of the node's object at nodeShare.
const (
	// nodeShare are the bytes per second that each node may always write, and nodeBurst is how long
	// unused ones remain available.
	nodeShare = 8 << 10
	nodeBurst = 8 * time.Second
	// nodesShare are the bytes per second that the changes of one namespace may write on all nodes
	// together, and nodesBurst is how long unused ones remain available: 4 MiB.
	nodesShare = 512 << 10
	nodesBurst = 8 * time.Second
	// leastNodeBytes is the minimum that each write counts for, because etcd stores more than the
	// bytes of the object.
	leastNodeBytes = 8 << 10
	// othersBytes is the most that a write counts for besides the local endpoints of the namespace
	// that changed: the size of others is not its responsibility.
	othersBytes = 24 << 10
	// behindRetry is how soon a node is rendered again whose rules in the cache are older than our write.
	behindRetry = 20 * time.Millisecond
	// nodeRenderPause is how long a waiting node is not rendered again. It is short: a change of
	// another namespace may have to be written at once.
	nodeRenderPause = 100 * time.Millisecond
)

// nodePace spaces the writes of NodeProxyRules by their size. It is in memory: after a restart the
// first change of each node is written at once.
type nodePace struct {
	mu         sync.Mutex
	namespaces *pacing.Buckets       // guarded by mu
	nodes      map[string]*nodeQuota // guarded by mu
}

// nodeQuota is the bytes that one node may write.
type nodeQuota struct {
	lastWrite time.Time
	lastBytes int
	own       pacing.Bucket
	claims    map[string]*pacing.Claim // of the shares of namespaces
	rendered  time.Time                // when it last had to wait
	// writing is the generation of its rules that was written last, or is being written.
	writing int64
	// uid and version are of its rules as last written.
	uid     types.UID
	version string
}

func newNodePace() *nodePace {
	return &nodePace{namespaces: pacing.NewBuckets(nodesShare, nodesBurst, leastNodeBytes), nodes: map[string]*nodeQuota{}}
}

// of returns the budget of a node; mu must be held.
func (p *nodePace) of(node string) *nodeQuota {
	n := p.nodes[node]
	if n == nil {
		n = &nodeQuota{own: pacing.Bucket{Rate: nodeShare, Burst: nodeBurst}, claims: map[string]*pacing.Claim{}}
		p.nodes[node] = n
	}
	return n
}

// wait returns after how long a node whose rules have so many bytes must ask again; 0: it may be
// written now. Changed are the namespaces whose local endpoints have changed, with the bytes of each.
func (p *nodePace) wait(node string, bytes int, changed map[string]int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of(node)
	wait := n.lastWrite.Add(render.NodePace(max(bytes, n.lastBytes))).Sub(now)
	if wait <= 0 {
		wait = p.share(n, bytes, changed, now)
	}
	if wait <= 0 {
		n.rendered = time.Time{}
		return 0
	}
	n.rendered = now
	return wait
}

// share returns how long a node must wait for the share of one of the namespaces or its own,
// whichever is sooner; mu must be held. Its own is used last, to be available when namespaces have
// used up theirs.
func (p *nodePace) share(n *nodeQuota, bytes int, changed map[string]int, now time.Time) time.Duration {
	for namespace, c := range n.claims {
		if _, still := changed[namespace]; !still { // changed back
			p.giveBack(n, namespace, c)
		}
	}
	own := n.own.Next.Sub(now)
	wait := own
	for namespace, its := range changed {
		c := n.claims[namespace]
		if c == nil {
			c = &pacing.Claim{}
			n.claims[namespace] = c
		}
		until := p.namespaces.Wait(namespace, c, min(bytes, its+othersBytes), now)
		if until <= 0 {
			return 0
		}
		wait = min(wait, until)
	}
	if own <= 0 {
		p.giveAllBack(n)
	}
	return wait
}

// waiting returns for how long a node need not be rendered, however its local endpoints change.
func (p *nodePace) waiting(node string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, cmp.Or(p.nodes[node], &nodeQuota{}).rendered.Add(nodeRenderPause).Sub(now))
}

// writes records that the rules of a node are about to be updated.
func (p *nodePace) writes(stored *v1alpha1.NodeProxyRules) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of(stored.Name).writing = stored.Generation + 1
}

// written records what an update of rules returned.
func (p *nodePace) written(rules *v1alpha1.NodeProxyRules) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of(rules.Name)
	n.uid, n.version = rules.UID, rules.ResourceVersion
}

// behind reports whether rules in the cache are older than the last write. A change that reverts that write
// would seem to be there already, and isOwn has nothing render the node when the cache catches up.
func (p *nodePace) behind(cached *v1alpha1.NodeProxyRules) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[cached.Name]
	return n != nil && n.uid == cached.UID && n.version != "" && objects.Older(cached.ResourceVersion, n.version)
}

// isOwn reports whether an update of rules is one that writes has announced. To render the node again
// because of it would find what has changed meanwhile, and write that, again and again: the changes of
// a namespace would no longer wait in enqueuePace. If another program has written that generation, our
// update has failed, after which the node is rendered again.
func (p *nodePace) isOwn(before, after client.Object) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[after.GetName()]
	return n != nil && before.GetGeneration() != after.GetGeneration() && after.GetGeneration() == n.writing &&
		maps.Equal(unstamped(before), unstamped(after))
}

// unstamped are the annotations of rules but for the time of the write.
func unstamped(rules client.Object) map[string]string {
	out := maps.Clone(rules.GetAnnotations())
	delete(out, v1alpha1.AnnotationWritten)
	return out
}

// wrote records a write of a node, whether or not it had to ask.
func (p *nodePace) wrote(node string, bytes int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of(node)
	n.lastWrite, n.lastBytes, n.rendered = now, bytes, time.Time{}
	charged := false
	for namespace, c := range n.claims {
		if now.Before(c.At) {
			continue
		}
		p.namespaces.Wrote(namespace, c, min(bytes, c.Bytes), now)
		delete(n.claims, namespace)
		charged = true
	}
	p.giveAllBack(n)
	if charged {
		return
	}
	if n.own.Next.After(now) { // it did not ask; a change waits for one write at most
		n.own.Next = now
	}
	n.own.Wrote(&pacing.Claim{}, max(bytes, leastNodeBytes), now)
}

// settled records that a node has nothing to write.
func (p *nodePace) settled(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[node]; n != nil {
		p.giveAllBack(n)
		n.rendered = time.Time{}
	}
}

// forget drops a node whose rules are gone.
func (p *nodePace) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(node)
}

// retain drops all nodes but those of the requests.
func (p *nodePace) retain(all []reconcile.Request) {
	named := make(map[string]struct{}, len(all))
	for _, request := range all {
		named[request.Name] = struct{}{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for node := range p.nodes {
		if _, found := named[node]; !found {
			p.drop(node)
		}
	}
}

// drop drops a node; mu must be held.
func (p *nodePace) drop(node string) {
	if n := p.nodes[node]; n != nil {
		p.giveAllBack(n)
		delete(p.nodes, node)
	}
}

// giveAllBack returns the bytes that a node has taken and not written; mu must be held.
func (p *nodePace) giveAllBack(n *nodeQuota) {
	for namespace, c := range n.claims {
		p.giveBack(n, namespace, c)
	}
}

// giveBack returns the bytes that a node has taken of a namespace's share; mu must be held.
func (p *nodePace) giveBack(n *nodeQuota, namespace string, c *pacing.Claim) {
	p.namespaces.GiveBack(namespace, c)
	delete(n.claims, namespace)
}

// changedNamespaces returns the namespaces whose local endpoints differ, with their bytes after the
// change.
func changedNamespaces(before, after []v1alpha1.ServiceLocalEndpoints) map[string]int {
	of := func(all []v1alpha1.ServiceLocalEndpoints) map[string][]v1alpha1.ServiceLocalEndpoints {
		out := map[string][]v1alpha1.ServiceLocalEndpoints{}
		for _, s := range all {
			out[s.Namespace] = append(out[s.Namespace], s)
		}
		return out
	}
	was, is := of(before), of(after)
	changed := map[string]int{}
	for namespace, services := range is {
		if !equality.Semantic.DeepEqual(services, was[namespace]) {
			changed[namespace] = 0
			for i := range services {
				changed[namespace] += services[i].MaxBytes()
			}
		}
	}
	for namespace := range was {
		if _, found := is[namespace]; !found {
			changed[namespace] = 0
		}
	}
	return changed
}
