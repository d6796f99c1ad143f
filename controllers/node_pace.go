package controllers

import (
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// How many bytes of NodeProxyRules changes of local endpoints may have written. Each node has a
// share of its own, so that no other node delays what is small; the rest of all nodes comes out
// of what they have in common, first come, first served.
const (
	// nodeShare are the bytes a second that each node may always have written, for objects
	// of ownShareBytes at most.
	nodeShare     = 8 << 10
	ownShareBytes = 64 << 10
	// commonShare are the bytes a second of all nodes besides.
	commonShare = 1 << 20
	// commonBurst is for how long unused parts of commonShare remain available.
	commonBurst = time.Second
	// leastBytes are what each write counts for at least, as the store keeps more of it than
	// its bytes.
	leastBytes = 8 << 10
)

// nodePace spaces the writes of NodeProxyRules by their size. It is in memory: after a restart
// the first change of each node goes at once, within the common share.
type nodePace struct {
	mu    sync.Mutex
	next  time.Time            // when what is taken of the common share will have come in; guarded by mu
	nodes map[string]*nodeTurn // guarded by mu
}

// nodeTurn is what is known of one node.
type nodeTurn struct {
	lastWrite time.Time
	lastBytes int
	// reserved are bytes of the common share that the node has taken and not written yet,
	// which it may do at. 0: none.
	reserved int
	at       time.Time
	until    time.Time // when it was told to ask again
}

func newNodePace() *nodePace { return &nodePace{nodes: map[string]*nodeTurn{}} }

// wait returns after how long a node with so many bytes is to ask again; 0: it may be written.
func (p *nodePace) wait(node string, bytes int, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[node]
	if n == nil {
		n = &nodeTurn{}
		p.nodes[node] = n
	}
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

// share returns how long a node must wait for its own or the common share; mu must be held.
func (p *nodePace) share(n *nodeTurn, bytes int, now time.Time) time.Duration {
	own := n.lastWrite.Add(timeFor(bytes, nodeShare)).Sub(now)
	if small := bytes <= ownShareBytes; small && own <= 0 {
		p.giveBack(n)
		return 0
	} else if !small {
		own = time.Duration(1<<63 - 1)
	}
	if n.reserved == 0 {
		n.at, n.reserved = later(p.next, now.Add(-commonBurst)), bytes
		p.next = n.at.Add(timeFor(bytes, commonShare))
	}
	return min(own, n.at.Sub(now))
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
	n := p.nodes[node]
	if n == nil {
		n = &nodeTurn{}
		p.nodes[node] = n
	}
	if n.reserved > 0 { // for what was to be written when it asked
		p.next = p.next.Add(timeFor(max(bytes, leastBytes)-n.reserved, commonShare))
	}
	*n = nodeTurn{lastWrite: now, lastBytes: bytes}
}

// settled notes that nothing of a node need be written.
func (p *nodePace) settled(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[node]; n != nil {
		p.giveBack(n)
		n.until = time.Time{}
	}
}

// forget drops a node that has no rules any more.
func (p *nodePace) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.nodes[node]; n != nil {
		p.giveBack(n)
		delete(p.nodes, node)
	}
}

// giveBack returns what a node has taken of the common share; mu must be held.
func (p *nodePace) giveBack(n *nodeTurn) {
	p.next = p.next.Add(-timeFor(n.reserved, commonShare))
	n.reserved = 0
}

// timeFor is how long so many bytes take at a rate a second.
func timeFor(bytes, rate int) time.Duration {
	return time.Duration(bytes) * time.Second / time.Duration(rate)
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
