package nodes

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// pace is how many new connections and flows are begun in a second where the test
// has the machine to itself.
const pace = 320

// connections are the load of a test.
type connections struct {
	*load.Load
	t        *testing.T
	reported int // failures that are reported
	// least is how many new TCP connections must succeed in a second. Not all of
	// those that are begun are TCP.
	least float64
}

// startLoad makes so many new connections a second and holds others, until the test
// ends.
func startLoad(t *testing.T, pace int, targets []load.Target) *connections {
	t.Helper()
	l, err := load.Start(t.Context(), pace, targets)
	if err != nil {
		t.Fatal(err)
	}
	c := &connections{Load: l, t: t, least: float64(pace) * 5 / 8}
	t.Cleanup(c.End)
	return c
}

// End ends the load and reports the failures that are not yet reported: connections may fail after
// all the test has looked at.
func (l *connections) End() {
	l.t.Helper()
	l.Load.End()
	l.report("at the end")
}

// report fails the test because of the failures that are not yet reported.
func (l *connections) report(name string) {
	l.t.Helper()
	failures := l.Failures()[l.reported:]
	for _, failure := range failures[:min(10, len(failures))] {
		l.t.Errorf("%s: %s", name, failure)
	}
	if len(failures) > 0 {
		load.Lost(l.t, "%s: %d connections failed", name, len(failures))
	}
	l.reported += len(failures)
}

// sticky makes a check that always the same server answers.
func sticky() func(time.Time, string) error {
	var mu sync.Mutex // guards former
	former := ""
	return func(_ time.Time, server string) error {
		mu.Lock()
		defer mu.Unlock()
		before := former
		former = server
		if before != "" && before != server {
			return fmt.Errorf("session affinity is lost: %s answers, before it was %s", server, before)
		}
		return nil
	}
}

// during runs what under load and at least as long as least, and reports how it
// went for the connections. A busy machine gets time to catch up.
func (l *connections) during(name string, least time.Duration, what func()) {
	l.t.Helper()
	start, tcp, udp := time.Now(), l.Answered("tcp"), l.Answered("udp")
	_, asked := l.Held()
	defer l.report(name) // also if what ends the test
	what()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	rate := func() float64 { return float64(l.Answered("tcp")-tcp) / time.Since(start).Seconds() }
	for time.Since(start) < least || rate() < l.least && time.Since(start) < least+load.Patience {
		<-tick.C
	}
	measured, took := rate(), time.Since(start)
	held, questions := l.Held()
	l.t.Logf("%-32s %4.1f s: %5d new TCP connections (%3.0f/s), %4d new UDP flows, %4d questions on %d held, slowest so far %s, failed so far %d",
		name, took.Seconds(), l.Answered("tcp")-tcp, measured, l.Answered("udp")-udp, questions-asked, held, l.Slowest().Round(time.Millisecond), len(l.Failures()))
	if measured < l.least {
		l.t.Errorf("%s: %.0f new TCP connections a second, want %.0f at least: this proves too little", name, measured, l.least)
	}
}
