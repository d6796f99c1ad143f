package controllers

import "time"

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
