// Package growth checks that the time of a step grows no faster than its input, such as
// what tenants write.
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
	// rounds is how often sizes are compared before the step is blamed and not the machine.
	rounds = 5
)

// Linear fails the test if step takes disproportionately longer with ten times the size, from
// size to 10 size and from there to 100 size. It is given what prepare made for a size.
func Linear[T any](t *testing.T, size int, prepare func(size int) T, step func(T)) {
	t.Helper()
	for _, n := range []int{size, 10 * size} {
		few, many := compare(prepare(n), prepare(10*n), step)
		t.Logf("%d: %v, %d: %v", n, few, 10*n, many)
		if many > most*few {
			t.Errorf("%d takes %v, and %d takes %v: more than %d times as long", n, few, 10*n, many, most)
		}
	}
}

// compare measures step with a small and a large input, again and again if the machine may be
// what was slow.
func compare[T any](small, large T, step func(T)) (few, many time.Duration) {
	for range rounds {
		few, many = fastest(small, step), fastest(large, step)
		if many <= most*few {
			break
		}
	}
	return few, many
}

func fastest[T any](input T, step func(T)) time.Duration {
	var best time.Duration
	for range repeats {
		begin := time.Now()
		step(input)
		if took := time.Since(begin); best == 0 || took < best {
			best = took
		}
	}
	return best
}
