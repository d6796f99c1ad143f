// Package growth shows that the time of a step grows with its input as the input does, and
// not faster. What tenants write is such input.
package growth

import (
	"testing"
	"time"
)

const (
	// most is how many times as long ten times the input may take: a step of O(n log n)
	// takes 13 times as long, one of O(n²) 100 times. The rest is for memory that no
	// cache holds any more.
	most = 40
	// repeats is how often each size is measured; the fastest counts.
	repeats = 5
)

// Linear fails the test if step takes disproportionately longer with ten times the size, from
// size to 10 size and from there to 100 size. It is given what prepare made for a size.
func Linear[T any](t *testing.T, size int, prepare func(size int) T, step func(T)) {
	t.Helper()
	var before time.Duration
	for _, n := range []int{size, 10 * size, 100 * size} {
		input := prepare(n)
		best := time.Duration(0)
		for range repeats {
			begin := time.Now()
			step(input)
			if took := time.Since(begin); best == 0 || took < best {
				best = took
			}
		}
		t.Logf("%d: %v", n, best)
		if before > 0 && best > most*before {
			t.Errorf("%d takes %v, a tenth of it %v: more than %d times as long", n, best, before, most)
		}
		before = best
	}
}
