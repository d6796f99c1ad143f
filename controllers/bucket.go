package controllers

import (
	"maps"
	"time"
)

// bucket paces writes by their bytes, which come in at a rate. A write needs what was taken before
// it to have come in, not its own bytes: one of any size is possible, and those after it wait.
// Whoever must wait takes its bytes at once, so that each waits for its own time and none is
// passed by. The zero value of next is a full bucket. Not safe for concurrent use.
type bucket struct {
	rate  int           // bytes a second
	burst time.Duration // for how long bytes that nothing uses remain available
	next  time.Time     // when all that is taken will have come in
}

// claim is what one object has taken of a bucket and not written yet.
type claim struct {
	bytes int       // 0: nothing
	at    time.Time // when it may be written
}

// wait returns after how long a write of so many bytes may be made, and takes them, unless an
// earlier call has; none or less: now.
func (b *bucket) wait(c *claim, bytes int, now time.Time) time.Duration {
	if c.bytes == 0 {
		c.at, c.bytes = later(b.next, now.Add(-b.burst)), bytes
		b.next = c.at.Add(timeFor(bytes, b.rate))
	} else if at := b.next.Add(-timeFor(c.bytes, b.rate)); at.Before(c.at) {
		c.at = at // others have given theirs back
	}
	return c.at.Sub(now)
}

// wrote notes that so many bytes were written, whatever was taken for them.
func (b *bucket) wrote(c *claim, bytes int, now time.Time) {
	b.next = later(b.next, now.Add(-b.burst)).Add(timeFor(bytes-c.bytes, b.rate))
	*c = claim{}
}

// giveBack returns what is taken and will not be written.
func (b *bucket) giveBack(c *claim) {
	b.next = b.next.Add(-timeFor(c.bytes, b.rate))
	*c = claim{}
}

// full reports whether a new bucket would be no different.
func (b *bucket) full(now time.Time) bool { return !b.next.After(now.Add(-b.burst)) }

// buckets are buckets of one rate, by a key. Those that are full are forgotten. Not safe for
// concurrent use.
type buckets struct {
	rate  int // bytes a second
	burst time.Duration
	least int // bytes that each write counts for at least
	all   map[string]*bucket
	sweep time.Time // when to look next for full ones
}

func newBuckets(rate int, burst time.Duration, least int) *buckets {
	return &buckets{rate: rate, burst: burst, least: least, all: map[string]*bucket{}}
}

// of returns the bucket of a key.
func (b *buckets) of(key string, now time.Time) *bucket {
	if !now.Before(b.sweep) {
		maps.DeleteFunc(b.all, func(_ string, one *bucket) bool { return one.full(now) })
		b.sweep = now.Add(b.burst)
	}
	one := b.all[key]
	if one == nil {
		one = &bucket{rate: b.rate, burst: b.burst}
		b.all[key] = one
	}
	return one
}

// wait is bucket.wait for a key.
func (b *buckets) wait(key string, c *claim, bytes int, now time.Time) time.Duration {
	return b.of(key, now).wait(c, max(bytes, b.least), now)
}

// wrote is bucket.wrote for a key.
func (b *buckets) wrote(key string, c *claim, bytes int, now time.Time) {
	b.of(key, now).wrote(c, max(bytes, b.least), now)
}

// giveBack is bucket.giveBack for a key.
func (b *buckets) giveBack(key string, c *claim) {
	if one := b.all[key]; one != nil {
		one.giveBack(c)
	}
	*c = claim{}
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
