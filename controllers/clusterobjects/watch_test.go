package clusterobjects

import (
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// A failure is looked at once, and is forgotten when it has not come again.
func TestPolicyWatchFailures(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Unix(1_000_000, 0))
	looks := 0
	w := &policyWatch{clock: clk, changed: func() { looks++ }, failures: map[string]time.Time{}}
	check := func(what string, wantLooks int, want ...string) {
		t.Helper()
		if synced, got := w.state(); synced || !slices.Equal(got, want) || looks != wantLooks {
			t.Errorf("%s: synced %t, failures %q, %d looks; want %q and %d", what, synced, got, looks, want, wantLooks)
		}
	}
	w.fail("b")
	w.fail("a")
	w.fail("a")
	check("initially", 2, "a", "b")
	clk.SetTime(clk.Now().Add(failureAge))
	w.fail("a")
	check("both last", 2, "a", "b")
	clk.SetTime(clk.Now().Add(time.Second))
	check("one has not come again", 2, "a")
	w.fail("b")
	check("it has after all", 3, "a", "b")
}
