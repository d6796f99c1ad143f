package controllers

import "time"

// How many bytes of ServiceProxyRules the Services of one namespace may have written, created ones
// included. Each namespace has a share for itself: one that uses it up delays its own Services
// alone. It takes changes without end to do so, as the burst is enough for 10,000 small Services, or
// for 3,000 writes of Services of 500 endpoints, which take 10 KiB each.
const (
	// namespaceShare are bytes a second, and namespaceBurst is for how long unused ones remain
	// available: 32 MiB.
	namespaceShare = 512 << 10
	namespaceBurst = 64 * time.Second
	// leastRulesBytes are what each write counts for at least.
	leastRulesBytes = 2 << 10
)

// namespacePace are the buckets of namespaces that are not full. Not safe for concurrent use.
type namespacePace struct {
	buckets map[string]*bucket
	sweep   time.Time // when to look next for full ones
}

func newNamespacePace() *namespacePace { return &namespacePace{buckets: map[string]*bucket{}} }

// of returns the bucket of a namespace.
func (p *namespacePace) of(namespace string, now time.Time) *bucket {
	if !now.Before(p.sweep) {
		for name, b := range p.buckets {
			if b.full(now) {
				delete(p.buckets, name)
			}
		}
		p.sweep = now.Add(namespaceBurst)
	}
	b := p.buckets[namespace]
	if b == nil {
		b = &bucket{rate: namespaceShare, burst: namespaceBurst}
		p.buckets[namespace] = b
	}
	return b
}

// wait is bucket.wait for a Service of a namespace.
func (p *namespacePace) wait(namespace string, c *claim, bytes int, now time.Time) time.Duration {
	return p.of(namespace, now).wait(c, max(bytes, leastRulesBytes), now)
}

// wrote is bucket.wrote for a Service of a namespace.
func (p *namespacePace) wrote(namespace string, c *claim, bytes int, now time.Time) {
	p.of(namespace, now).wrote(c, max(bytes, leastRulesBytes), now)
}

// giveBack is bucket.giveBack for a Service of a namespace.
func (p *namespacePace) giveBack(namespace string, c *claim) {
	if b := p.buckets[namespace]; b != nil {
		b.giveBack(c)
	}
	*c = claim{}
}
