package tenants

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

const (
	// slower (or TENANTS_SLOWER) and larger are how many times the quiet value one under attack may be.
	// What lasts longer than an attack makes a later quiet row slower: by no more than noisier.
	slower, larger, noisier = 3, 2, 2
	// pauses is what the second tenant may wait with all attacks at once. It is more than slower times the
	// quiet value, because they keep the two processors busy that also run the API server.
	pauses = 10 * time.Second
	// mostLines is how many lines of logs an attack may cause, whatever it repeats: one for each Service,
	// and a few for each program.
	mostLines = 60
	// answered is how long the answer to a probe may take, beyond what a control server takes on
	// the same busy processors: 95 of 100 in each row, and 99 of 100 in all. A row has some 300 probes, and
	// its worst three show what else the machine does: beside other tests, 99 of 100 differed by up to 190
	// ms without an attack.
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
	events      map[string]int   // of the attacker's namespace, by object and reason
	lines       int              // of the logs of controller and agents
	usual       int              // of these: one for each Service of the attacker
	repeated    bool             // it took too long, and the next row decides
}

// table is all rows.
type table struct {
	slower time.Duration // times
	rows   []row
}

func newTable(t *testing.T) *table {
	t.Helper()
	times := slower
	if text := os.Getenv("TENANTS_SLOWER"); text != "" {
		var err error
		if times, err = strconv.Atoi(text); err != nil || times < 1 {
			t.Fatalf("TENANTS_SLOWER: %q is not a number of times", text)
		}
	}
	return &table{slower: time.Duration(times)}
}

func (t *table) add(r row) { t.rows = append(t.rows, r) }

// percentile is the least value that so many of a hundred do not exceed.
func percentile(of []time.Duration, n int) time.Duration {
	if len(of) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(of))
	return sorted[min(len(sorted)-1, len(sorted)*n/100)]
}

func (t *table) print() {
	// The | has hack/testreport show the lines.
	fmt.Println("| attack | limit | Services | to a connection: median | p99 | probe: p99 | control: p99 | controller | agent | log lines |")
	fmt.Println("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, r := range t.rows {
		fmt.Println(r)
	}
}

func (r row) String() string {
	name := r.name
	if r.repeated {
		name += " (repeated)"
	}
	return fmt.Sprintf("| %s | %s | %d | %d ms | %d ms | %d ms | %d ms | %d MB | %d MB | %d |", name, r.limit, r.services,
		percentile(r.waits, 50).Milliseconds(), percentile(r.waits, 99).Milliseconds(), percentile(r.probes, 99).Milliseconds(), percentile(r.control, 99).Milliseconds(),
		r.memory["controller"]>>10, r.memory["agent"]>>10, r.lines)
}

// longest is how long the second tenant may wait for a Service in a row: slower times as long as in the
// first one, or in a later one without an attack if the machine has become slower.
func (t *table) longest(name string) time.Duration {
	usual := percentile(t.rows[0].waits, 99)
	for _, r := range t.rows {
		if r.name == quiet && name != quiet {
			usual = max(usual, percentile(r.waits, 99))
		}
	}
	switch name {
	case everything:
		return max(t.slower*usual, pauses)
	case quiet:
		return noisier * usual
	}
	return t.slower * usual
}

// judge compares all rows to those without an attack.
func (t *table) judge(test *testing.T) {
	test.Helper()
	first := t.rows[0]
	usual := percentile(first.waits, 99)
	var probes, control []time.Duration
	for _, r := range t.rows {
		if p99, most := percentile(r.waits, 99), t.longest(r.name); p99 > most && !r.repeated {
			test.Errorf("%s: the second tenant waits %s for a Service, more than %s; without an attack %s", r.name, p99, most, usual)
		}
		if p95 := percentile(r.probes, 95); p95 > answered+percentile(r.control, 95) {
			test.Errorf("%s: probes are answered after %s, more than %s after what a control server takes: %s", r.name, p95, answered, percentile(r.control, 95))
		}
		for what, n := range r.events {
			if n > 1 {
				test.Errorf("%s: %d events %s, more than one in ten minutes", r.name, n, what)
			}
		}
		if most := first.lines + mostLines + r.usual; r.lines > most {
			test.Errorf("%s: %d lines in the logs, more than %d", r.name, r.lines, most)
		}
		probes, control = append(probes, r.probes...), append(control, r.control...)
		for program, peak := range r.memory {
			if usual := first.memory[program]; peak > larger*usual {
				test.Errorf("%s: %s takes %d MB, more than %d times the %d MB without an attack", r.name, program, peak>>10, larger, usual>>10)
			}
		}
	}
	if p99 := percentile(probes, 99); p99 > answered+percentile(control, 99) {
		test.Errorf("all rows: probes are answered after %s, more than %s after what a control server takes: %s", p99, answered, percentile(control, 99))
	}
}
