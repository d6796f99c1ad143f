package e2e

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// chosenVariable names the rows to run, comma-separated; empty: all.
const chosenVariable = "E2E"

// row is something that is done to a cluster.
type row struct {
	// name is how E2E names it, title how the table does.
	name, title string
	// needed means that other rows build on it: it is run whatever E2E selects, and
	// if it fails, nothing after it is run.
	needed bool
	// targets states where connections are made meanwhile, none of which may fail;
	// nil: none are.
	targets func(r *run) []load.Target
	// pace is how many are begun in a second, if not the usual number.
	pace int
	// do does it, and checks it.
	do func(r *run)
}

func (r *row) rate() int { return cmp.Or(r.pace, pace) }

// run is a row under way.
type run struct {
	*testing.T
	*world
	row     row
	load    *load.Load
	begun   time.Time
	tried   int // connections that the row itself has made
	failed  int // of those
	remarks []string
}

// remark adds to the last column of the table.
func (r *run) remark(format string, args ...any) {
	r.remarks = append(r.remarks, fmt.Sprintf(format, args...))
}

// work runs rows in their order. Lines of the table begin with "|", by which
// hack/test.sh finds them in the output.
func (w *world) work(t *testing.T, rows []row) {
	chosen := choose(t)
	fmt.Printf("| row | lasted | tried | held | failed | remarks |\n| --- | --- | --- | --- | --- | --- |\n")
	begun, tried, failed := time.Now(), 0, 0
	for _, row := range rows {
		if !row.needed && !chosen(row) {
			continue
		}
		r := &run{world: w, row: row}
		ok := t.Run(row.name, func(t *testing.T) { r.T = t; w.one(r) })
		tried, failed = tried+r.tried, failed+r.failed
		if w.ctx.Err() != nil || !ok && row.needed {
			break
		}
	}
	fmt.Printf("| %s in all: %s, %d connections tried, %d failed\n", t.Name(), seconds(time.Since(begun)), tried, failed)
}

// choose reads the chosen rows.
func choose(t *testing.T) func(row) bool {
	t.Helper()
	text := os.Getenv(chosenVariable)
	if text == "" {
		return func(row) bool { return true }
	}
	var known []string
	for _, r := range slices.Concat(clusterRows(), (&migration{}).rows(), (&doctor{}).rows(), (&bundled{}).rows(), chartRows()) {
		known = append(known, r.name)
	}
	chosen := strings.Split(text, ",")
	for _, name := range chosen {
		if !slices.Contains(known, name) {
			t.Fatalf("%s: there is no row %q; there are %s", chosenVariable, name, strings.Join(known, ", "))
		}
	}
	return func(r row) bool { return slices.Contains(chosen, r.name) }
}

// anyChosen reports whether any of the rows of a test is chosen, so that a cluster is
// not started for nothing.
func anyChosen(t *testing.T, rows []row) bool {
	t.Helper()
	return slices.ContainsFunc(rows, choose(t))
}

// one runs a row, and prints how it went.
func (w *world) one(r *run) {
	r.begun = time.Now()
	defer r.print()
	defer func() {
		if r.Failed() {
			w.diagnose(r)
		}
	}()
	if r.row.targets == nil {
		r.row.do(r)
		return
	}
	started, err := load.Start(w.ctx, r.row.rate(), r.row.targets(r))
	r.must(err)
	r.load = started
	defer r.judge()
	r.until(20*time.Second, "all targets answer", func() error { return r.load.WellSince(r.load.Begun()) })
	r.begun = time.Now()
	r.row.do(r)
	since := time.Now()
	r.until(20*time.Second, "all targets answer afterwards", func() error { return r.load.WellSince(since) })
}

// judge ends the load and fails the test if something failed or too little was
// tried.
func (r *run) judge() {
	until := time.Now()
	tried := r.load.Tried(r.begun, until)
	r.load.End()
	failures := r.load.Failures()
	for i, failure := range failures {
		if i == 10 {
			r.Errorf("… and %d more", len(failures)-i)
			break
		}
		r.Errorf("%s after the row began: %s", failure.Begun.Sub(r.begun).Round(time.Millisecond), failure)
	}
	if len(failures) > 0 {
		load.Lost(r, "%d connections failed", len(failures))
	}
	r.tried += r.load.Total()
	r.failed += len(failures)
	if rate, least := float64(tried)/until.Sub(r.begun).Seconds(), leastShare*float64(r.row.rate()); rate < least {
		r.Errorf("%.0f new connections a second were tried, want %.0f at least: this proves too little", rate, least)
	}
}

func (r *run) print() {
	held := 0
	if r.load != nil {
		held, _ = r.load.Held()
		r.remark("slowest answer %s", r.load.Slowest().Round(time.Millisecond))
	}
	remarks := strings.Join(r.remarks, "; ")
	if r.Failed() {
		remarks = strings.TrimSuffix("FAILED, see above; "+remarks, "; ")
	}
	fmt.Printf("| %s | %s | %d | %d | %d | %s |\n", r.row.title, seconds(time.Since(r.begun)), r.tried, held, r.failed, remarks)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// must ends the row on an error.
func (r *run) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// until waits until f returns nil, and returns how long that took.
func (r *run) until(limit time.Duration, what string, f func() error) time.Duration {
	r.Helper()
	begin := time.Now()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return time.Since(begin)
		}
		if time.Since(begin) > limit {
			r.Fatalf("%s: not within %s: %v", what, limit, err)
		}
		select {
		case <-r.ctx.Done():
			r.Fatalf("%s: interrupted: %v", what, err)
		case <-tick.C:
		}
	}
}

// pass lets time pass between two looks. It shows nothing: for what is not to happen
// see agentsLook and its neighbors.
func (r *run) pass(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.ctx.Done():
		r.Fatal(r.ctx.Err())
	case <-timer.C:
	}
}

// kubectl runs it as an administrator and returns what it prints.
func (r *run) kubectl(args ...string) string {
	r.Helper()
	out, err := r.cluster.Kubectl(r.ctx, args...)
	r.must(err)
	return strings.TrimSpace(out)
}
