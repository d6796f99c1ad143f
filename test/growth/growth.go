package growth

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// most is how many times as long ten times the input may take: a step of O(n log n)
	// takes 13 times as long, one of O(n²) 100 times. The rest is for memory that no
	// cache holds any more.
	most = 40
	// repeats is how often each size is measured. The fastest counts, here and in other tests: all
	// else that a machine does makes a run slower, never faster.
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

// Size is how large a Service is: so many ports, each with so many endpoints at each of so many
// external IPs.
type Size struct{ Ports, Addresses, Endpoints int }

func (s Size) allowed() bool {
	limit, _ := v1alpha1.ServiceSize{Ports: s.Ports, Addresses: s.Addresses, Endpoints: s.Endpoints, PortEndpoints: s.Ports * s.Endpoints}.Excess()
	return limit == ""
}

// Service fails the test if step takes disproportionately longer with a larger Service, whatever is 10
// or 100 times as large in it, alone or together, within the limits. Each port may cost what it has
// addresses and endpoints, but not their product. Step is given what prepare made for a size.
func Service[T any](t *testing.T, prepare func(Size) T, step func(T)) {
	t.Helper()
	type measured struct {
		input T
		took  time.Duration
	}
	sizes := map[Size]measured{} // 10 and 100 addresses with 90 and 900 endpoints show their product best
	for _, ports := range []int{1, 10, 100} {
		for _, addresses := range []int{1, 10, 100} {
			for _, endpoints := range []int{9, 90, 900} {
				if s := (Size{ports, addresses, endpoints}); s.allowed() {
					input := prepare(s)
					sizes[s] = measured{input, fastest(input, step)}
				}
			}
		}
	}
	for small, few := range sizes {
		for larger := 1; larger < 8; larger++ { // bits: what is ten times as large
			ports, addresses, endpoints := larger&1, larger>>1&1, larger>>2&1
			large := Size{small.Ports * (1 + 9*ports), small.Addresses * (1 + 9*addresses), small.Endpoints * (1 + 9*endpoints)}
			many, found := sizes[large]
			if !found {
				continue
			}
			limit := time.Duration(most)
			if ports+max(addresses, endpoints) == 2 {
				limit *= 10
			}
			for round := 0; many.took > limit*few.took && round < rounds; round++ {
				few.took, many.took = fastest(few.input, step), fastest(many.input, step)
			}
			if many.took > limit*few.took {
				t.Errorf("%+v takes %v, and %+v takes %v: more than %d times as long", small, few.took, large, many.took, limit)
			}
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

// fastest measures without garbage collection, whose time depends on what other tests have left.
func fastest[T any](input T, step func(T)) time.Duration {
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
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
