package tenants

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

const (
	// slower, and larger, are how many times the quiet figure one under attack may be.
	slower, larger = 3, 2
	// pause is what the second tenant may wait whatever the quiet figure is, which is 0.31 s where
	// the machine is quick.
	pause = time.Second
	// pauses is that with all attacks at once, on two processors that also run the API server.
	pauses = 10 * time.Second
	// largest is how many times the quiet memory may be taken with all attacks at once.
	largest = 4
	// noise is how much more than larger allows a program may take, in KiB. Go collects when
	// the heap has doubled and returns memory to the kernel later, so the peak of a program of
	// 20 MB differs by several MB from run to run.
	noise = 16 << 10
	// answered is how long the answer to a probe may take, beyond what a control server takes on
	// the same busy processors: 95 of 100 in each row, which has some 200, and 99 of 100 in all.
	answered = 100 * time.Millisecond
)

// row is how the second tenant and nodeproxy fared.
type row struct {
	name, limit string
	services    int             // of the second tenant, created meanwhile
	waits       []time.Duration // from the creation of a Service to a connection by one node's rules
	probes      []time.Duration
	control     []time.Duration  // of a server that has nothing to do with nodeproxy
	memory      map[string]int64 // KiB, by the program; the larger one of two agents
}

// table is all rows.
type table struct{ rows []row }

func (t *table) add(r row) { t.rows = append(t.rows, r) }

// percentile is the least figure that so many of a hundred do not exceed.
func percentile(of []time.Duration, n int) time.Duration {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, len(sorted)*n/100)]
}

func (t *table) print() {
	// The | has hack/testreport show the lines.
	fmt.Println("| attack | limit | Services | to a connection: median | p99 | probe: p99 | control: p99 | controller | agent |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, r := range t.rows {
		fmt.Printf("| %s | %s | %d | %d ms | %d ms | %d ms | %d ms | %d MB | %d MB |\n", r.name, r.limit, r.services,
			percentile(r.waits, 50).Milliseconds(), percentile(r.waits, 99).Milliseconds(), percentile(r.probes, 99).Milliseconds(), percentile(r.control, 99).Milliseconds(),
			r.memory["controller"]>>10, r.memory["agent"]>>10)
	}
}

// judge compares all rows to the quiet one.
func (t *table) judge(test *testing.T, quiet row) {
	test.Helper()
	usual := percentile(quiet.waits, 99)
	var probes, control []time.Duration
	for _, r := range t.rows {
		most, times := max(slower*usual, pause), int64(larger)
		if r.name == everything {
			most, times = max(slower*usual, pauses), largest
		}
		if p99 := percentile(r.waits, 99); p99 > most {
			test.Errorf("%s: the second tenant waits %s for a Service, more than %s; without an attack %s", r.name, p99, most, usual)
		}
		if p95 := percentile(r.probes, 95); p95 > answered+percentile(r.control, 95) {
			test.Errorf("%s: probes are answered after %s, more than %s after what a control server takes: %s", r.name, p95, answered, percentile(r.control, 95))
		}
		probes, control = append(probes, r.probes...), append(control, r.control...)
		for program, peak := range r.memory {
			if usual := quiet.memory[program]; peak > times*usual+noise {
				test.Errorf("%s: %s takes %d MB, more than %d times the %d MB without an attack and %d MB", r.name, program, peak>>10, times, usual>>10, noise>>10)
			}
		}
	}
	if p99 := percentile(probes, 99); p99 > answered+percentile(control, 99) {
		test.Errorf("all rows: probes are answered after %s, more than %s after what a control server takes: %s", p99, answered, percentile(control, 99))
	}
}
