package pacing

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bucket paces writes by their bytes, which become available at a rate. A write waits for the bytes
// taken before it, not for its own: any size is possible, and later writes wait. A write that must
// wait takes its bytes at once, so that each waits for its own time and none is overtaken. The zero
// value of Next is a full bucket. Not safe for concurrent use.
type Bucket struct {
	Rate  int           // bytes a second
	Burst time.Duration // for how long bytes that nothing uses remain available
	Next  time.Time     // when all bytes taken will have become available
}

// Claim is what one object has taken of a bucket and not written yet.
type Claim struct {
	Bytes int       // 0: nothing
	At    time.Time // when it may be written
}

// Wait returns how long a write of so many bytes must wait, and takes the bytes unless an earlier
// call has; zero or less: it need not.
func (b *Bucket) Wait(c *Claim, bytes int, now time.Time) time.Duration {
	if c.Bytes == 0 {
		c.At, c.Bytes = slices.MaxFunc([]time.Time{b.Next, now.Add(-b.Burst)}, time.Time.Compare), bytes
		b.Next = c.At.Add(TimeFor(bytes, b.Rate))
	} else if at := b.Next.Add(-TimeFor(c.Bytes, b.Rate)); at.Before(c.At) {
		c.At = at // others have given theirs back
	}
	return c.At.Sub(now)
}

// Wrote notes that so many bytes were written, whatever was taken for them.
func (b *Bucket) Wrote(c *Claim, bytes int, now time.Time) {
	b.Next = slices.MaxFunc([]time.Time{b.Next, now.Add(-b.Burst)}, time.Time.Compare).Add(TimeFor(bytes-c.Bytes, b.Rate))
	*c = Claim{}
}

// GiveBack returns bytes that were taken and will not be written.
func (b *Bucket) GiveBack(c *Claim) {
	b.Next = b.Next.Add(-TimeFor(c.Bytes, b.Rate))
	*c = Claim{}
}

// Full reports whether the bucket is like a new one.
func (b *Bucket) Full(now time.Time) bool { return !b.Next.After(now.Add(-b.Burst)) }

// Buckets are buckets of one rate, by key. Full ones are forgotten. Not safe for concurrent use.
type Buckets struct {
	rate  int // bytes a second
	burst time.Duration
	least int // bytes that each write counts for at least
	all   map[string]*Bucket
	sweep time.Time // when to forget full ones next
}

// NewBuckets returns buckets of a rate in bytes per second; each write counts for the least at least.
func NewBuckets(rate int, burst time.Duration, least int) *Buckets {
	return &Buckets{rate: rate, burst: burst, least: least, all: map[string]*Bucket{}}
}

// Of returns the bucket of a key.
func (b *Buckets) Of(key string, now time.Time) *Bucket {
	if !now.Before(b.sweep) {
		maps.DeleteFunc(b.all, func(_ string, one *Bucket) bool { return one.Full(now) })
		b.sweep = now.Add(b.burst)
	}
	one := b.all[key]
	if one == nil {
		one = &Bucket{Rate: b.rate, Burst: b.burst}
		b.all[key] = one
	}
	return one
}

// Wait is Bucket.Wait for a key.
func (b *Buckets) Wait(key string, c *Claim, bytes int, now time.Time) time.Duration {
	return b.Of(key, now).Wait(c, max(bytes, b.least), now)
}

// Wrote is Bucket.Wrote for a key.
func (b *Buckets) Wrote(key string, c *Claim, bytes int, now time.Time) {
	b.Of(key, now).Wrote(c, max(bytes, b.least), now)
}

// GiveBack is Bucket.GiveBack for a key.
func (b *Buckets) GiveBack(key string, c *Claim) {
	if one := b.all[key]; one != nil {
		one.GiveBack(c)
	}
	*c = Claim{}
}

// TimeFor is how long so many bytes take at a rate per second.
func TimeFor(bytes, rate int) time.Duration {
	return time.Duration(bytes) * time.Second / time.Duration(rate)
}

// Throttle lets Services pass one by one, with a pause between them, those of each namespace in turn. It
// is in memory: after a restart those that wait ask again.
type Throttle struct {
	interval time.Duration

	mu     sync.Mutex // guards everything below
	next   time.Time  // when the next one may pass
	number uint64     // of the last that has asked
	// waiting are the numbers of the Services that wait, in order, by namespace, and ofService those of
	// all. 0: it may pass.
	waiting   map[string][]uint64
	ofService map[types.NamespacedName]uint64
}

// NewThrottle returns a Throttle for a rate.
func NewThrottle(perSecond int) *Throttle {
	return &Throttle{interval: time.Second / time.Duration(perSecond), waiting: map[string][]uint64{}, ofService: map[types.NamespacedName]uint64{}}
}

// Wait returns when a Service must ask again; 0: it may pass, until Done is called.
func (p *Throttle) Wait(key types.NamespacedName, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	number, known := p.ofService[key]
	if known && number == 0 {
		return 0
	}
	if !known {
		p.number++
		number = p.number
		p.ofService[key] = number
		p.waiting[key.Namespace] = append(p.waiting[key.Namespace], number)
	}
	// The first to ask when one may pass does: those before it are late.
	if !now.Before(p.next) {
		p.remove(key.Namespace, number)
		p.ofService[key] = 0
		p.next = now.Add(p.interval)
		return 0
	}
	rank, _ := slices.BinarySearch(p.waiting[key.Namespace], number)
	before := 0
	for _, numbers := range p.waiting {
		before += min(len(numbers), rank)
	}
	return p.next.Sub(now) + time.Duration(before)*p.interval
}

// remove has one wait no longer. The caller holds mu.
func (p *Throttle) remove(namespace string, number uint64) {
	numbers := p.waiting[namespace]
	rank, found := slices.BinarySearch(numbers, number)
	if !found {
		return
	}
	if p.waiting[namespace] = slices.Delete(numbers, rank, rank+1); len(p.waiting[namespace]) == 0 {
		delete(p.waiting, namespace)
	}
}

// Done forgets a Service that has passed, or need not.
func (p *Throttle) Done(key types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	number, known := p.ofService[key]
	if !known {
		return
	}
	delete(p.ofService, key)
	p.remove(key.Namespace, number)
}

// NewTerm forgets all Services: those that still wait ask again. The time when the next one may
// pass stays.
func (p *Throttle) NewTerm() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.waiting)
	clear(p.ofService)
}
