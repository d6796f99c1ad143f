package controllers

import (
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// How many bytes of NodeProxyRules changes of local endpoints may have written. Each node has a
// share of its own, whatever its size, which no other node uses up: a change waits at most for
// the bytes of the node's object at nodeShare, however many other nodes change. What all nodes have in
// common makes it faster where few change, first come, first served.
const (
	// nodeShare are the bytes a second that each node may always have written, and nodeBurst
	// is for how long unused ones remain available.
	nodeShare = 8 << 10
	nodeBurst = 8 * time.Second
	// commonShare are the bytes a second of all nodes besides, and commonBurst is for how long
	// unused ones remain available.
	commonShare = 1 << 20
	commonBurst = time.Second
	// leastBytes are what each write counts for at least, as the store keeps more of it than
	// its bytes.
	leastBytes = 8 << 10
)

// nodePace spaces the writes of NodeProxyRules by their size. It is in memory: after a restart
// the first change of each node goes at once.
type nodePace struct {
	mu     sync.Mutex
	common bucket               // guarded by mu
	nodes  map[string]*nodeTurn // guarded by mu
}

// nodeTurn is what is known of one node.
type nodeTurn struct {
	lastWrite time.Time
	lastBytes int
	own       bucket
	claim     claim     // of the common share
	until     time.Time // when it was told to ask again
}

func newNodePace() *nodePace {
	return &nodePace{common: bucket{rate: commonShare, burst: commonBurst}, nodes: map[string]*nodeTurn{}}
}

// of returns what is known of a node; mu must be held.
func (p *nodePace) of(node string) *nodeTurn {
	n := p.nodes[node]
	if n == nil {
		n = &nodeTurn{own: bucket{rate: nodeShare, burst: nodeBurst}}
		p.nodes[node] = n
	}
	return n
}

// wait returns after how long a node with so many bytes is to ask again; 0: it may be written.
func (p *nodePace) wait(node string, bytes int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of(node)
	wait := n.lastWrite.Add(render.BytesPace(max(bytes, n.lastBytes))).Sub(now)
	if wait <= 0 {
		wait = p.share(n, max(bytes, leastBytes), now)
	}
	if wait <= 0 {
		n.until = time.Time{}
		return 0
	}
	n.until = now.Add(wait)
	return wait
}

// share returns how long a node must wait for the common share or its own, whichever is sooner;
// mu must be held. The common one comes first, so that the own one is there when others use it up.
func (p *nodePace) share(n *nodeTurn, bytes int, now time.Time) time.Duration {
	common := p.common.wait(&n.claim, bytes, now)
	if common <= 0 {
		return 0
	}
	own := n.own.next.Sub(now)
	if own <= 0 {
		p.common.giveBack(&n.claim)
		return 0
	}
	return min(own, common)
}

// waiting returns for how long a node has been told to wait: until then nothing need be made of
// its local endpoints.
func (p *nodePace) waiting(node string, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[node]
	if n == nil {
		return 0
	}
	return max(0, n.until.Sub(now))
}

// wrote notes that a node was written, whether it had to ask or not.
func (p *nodePace) wrote(node string, bytes int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.of(node)
	n.lastWrite, n.lastBytes, n.until = now, bytes, time.Time{}
	bytes = max(bytes, leastBytes)
	if n.claim.bytes > 0 && !now.Before(n.claim.at) {
		p.common.wrote(&n.claim, bytes, now)
		return
	}
	p.common.giveBack(&n.claim)
	if n.own.next.After(now) { // it has not asked: no change waits for more than one write
		n.own.next = now
	}
	n.own.wrote(&claim{}, bytes, now)
}

// settled notes that nothing of a node need be written.
func (p *nodePace) settled(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[node]; n != nil {
		p.common.giveBack(&n.claim)
		n.until = time.Time{}
	}
}

// forget drops a node that has no rules any more.
func (p *nodePace) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[node]; n != nil {
		p.common.giveBack(&n.claim)
		delete(p.nodes, node)
	}
}
