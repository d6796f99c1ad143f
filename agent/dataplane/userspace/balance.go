package userspace

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// How long an endpoint that has failed rests: twice as long after each failure in a row.
const (
	firstRest   = time.Second
	longestRest = 30 * time.Second
)

// maxAttempts is how many endpoints a connection is tried with, or how often if there are fewer.
const maxAttempts = 4

// longestAttempt is what attempts' time grows to, unless the setting is longer.
const longestAttempt = 2 * time.Second

// attemptTime is how long an endpoint may take to accept: twice as long with each attempt.
func attemptTime(first time.Duration, attempt int) time.Duration {
	return min(first<<(attempt-1), max(first, longestAttempt))
}

// policy is the traffic policy by which the kernel has redirected a connection.
type policy int

const (
	cluster policy = iota
	local
	policies // is how many there are
)

// endpoint is one endpoint of a port, and how it has fared lately.
type endpoint struct {
	address netip.AddrPort
	// gone: it no longer receives traffic on any node. UDP clients are sent to another one.
	gone atomic.Bool
	// failed counts all failures, for metrics.
	failed atomic.Int64

	// The balancer's lock guards everything below.
	listed   [policies]bool
	failures int                 // in a row
	rests    [policies]time.Time // until then, others are preferred
	failing  failing
}

func (e *endpoint) resting(p policy, now time.Time) bool { return now.Before(e.rests[p]) }

// balancer chooses endpoints for one port of a Service: round robin, unless clients stay with theirs.
type balancer struct {
	mu    sync.Mutex // guards everything below
	known map[netip.AddrPort]*endpoint
	lists [policies][]*endpoint
	next  [policies]int // index in the list
	// affinity is nil without session affinity.
	affinity *affinity
	// mayFail: an endpoint may have failed lately.
	mayFail atomic.Bool
}

// set replaces the endpoints. Those that stay keep their state, and serving ones their UDP clients even if no
// policy selects them any more.
func (b *balancer) set(lists [policies][]netip.AddrPort, serving []netip.AddrPort, affinityTimeout time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	former := b.known
	b.known = make(map[netip.AddrPort]*endpoint, len(lists[cluster]))
	for _, e := range former {
		e.listed = [policies]bool{}
	}
	for p, addresses := range lists {
		b.lists[p] = make([]*endpoint, 0, len(addresses))
		for _, address := range addresses {
			e := b.known[address]
			if e == nil {
				if e = former[address]; e == nil {
					e = &endpoint{address: address}
				}
				b.known[address] = e
			}
			if !e.listed[p] {
				e.listed[p] = true
				b.lists[p] = append(b.lists[p], e)
			}
		}
	}
	for _, address := range serving {
		if e := former[address]; e != nil {
			b.known[address] = e
		}
	}
	for address, e := range former {
		if b.known[address] == nil {
			e.gone.Store(true)
		}
	}
	b.affinity = b.affinity.within(affinityTimeout)
}

// pick returns the endpoint to try next for a client, which has tried some; nil: there is none left.
// Endpoints that rest come last, whatever the client's affinity.
func (b *balancer) pick(p policy, client netip.Addr, tried []*endpoint, now time.Time) *endpoint {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.affinity.of(client, now); e != nil && e.listed[p] && !e.resting(p, now) && !slices.Contains(tried, e) {
		b.affinity.stay(client, e, now)
		return e
	}
	list := b.lists[p]
	var last *endpoint
	for i := range list {
		at := (b.next[p] + i) % len(list)
		switch e := list[at]; {
		case slices.Contains(tried, e):
		case !e.resting(p, now):
			b.next[p] = at + 1
			b.affinity.stay(client, e, now)
			return e
		case last == nil || e.rests[p].Before(last.rests[p]):
			last = e
		}
	}
	if last != nil {
		b.affinity.stay(client, last, now)
	}
	return last
}

// failure notes that an endpoint did not accept, and why. It rests unless too many would.
func (b *balancer) failure(e *endpoint, why v1alpha1.EndpointFailure, now time.Time, c *counters) {
	e.failed.Add(1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mayFail.Store(true)
	e.failing.note(why, now, c)
	if e.resting(cluster, now) || e.resting(local, now) {
		return // other connections began before it rested
	}
	e.failures++
	for p := range policies {
		if e.listed[p] && b.mayRest(p, now) {
			e.rests[p] = now.Add(restAfter(e.failures))
		}
	}
}

// mayRest reports whether one more endpoint of a policy may rest.
func (b *balancer) mayRest(p policy, now time.Time) bool {
	resting := 1
	for _, e := range b.lists[p] {
		if e.resting(p, now) {
			resting++
		}
	}
	return resting <= len(b.lists[p])/2
}

// restAfter is how long an endpoint rests after so many failures in a row.
func restAfter(failures int) time.Duration {
	rest := firstRest
	for range failures - 1 {
		if rest *= 2; rest >= longestRest {
			return longestRest
		}
	}
	return rest
}

// success notes that an endpoint has accepted.
func (b *balancer) success(e *endpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.failures, e.rests, e.failing = 0, [policies]time.Time{}, failing{}
}
