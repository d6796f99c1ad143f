package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// driftRig is a drift of one family with a clock.
type driftRig struct {
	*drift
	t   *testing.T
	now *clocktesting.FakePassiveClock
}

func newDriftRig(t *testing.T) *driftRig {
	now := clocktesting.NewFakePassiveClock(agenttest.Epoch)
	return &driftRig{newDrift(now, []dataplane.Family{dataplane.IPv4, dataplane.IPv6}), t, now}
}

func (r *driftRig) pass(d time.Duration) { r.now.SetTime(r.now.Now().Add(d)) }

// found lets a comparison of IPv4 find that others have changed what examples
// say, and returns how long the repair waits; negative: nothing to repair.
func (r *driftRig) found(took time.Duration, examples ...string) time.Duration {
	d := dataplane.Difference{Count: len(examples), Examples: examples, Drifted: len(examples) > 0}
	at, drifted := r.compared(map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{dataplane.IPv4: {Value: d}}, r.now.Now(), took)[dataplane.IPv4]
	if !drifted {
		return -1
	}
	return at.Sub(r.now.Now())
}

// mended lets a full write of IPv4 succeed and reports whether that was a repair.
func (r *driftRig) mended() bool {
	return len(r.synced(written(dataplane.Result{Kind: v1alpha1.SyncFull}), false)) > 0
}

// written is the outcome of a write of IPv4.
func written(result dataplane.Result) map[dataplane.Family]dataplane.Outcome[dataplane.Result] {
	return map[dataplane.Family]dataplane.Outcome[dataplane.Result]{dataplane.IPv4: {Value: result}}
}

func TestRepairsInARowWaitLonger(t *testing.T) {
	r := newDriftRig(t)
	var waits []string
	for range 9 {
		wait := r.found(0, "x missing")
		waits = append(waits, wait.String())
		r.pass(wait)
		if !r.mended() {
			t.Fatal("a repair is not counted")
		}
	}
	if diff := cmp.Diff([]string{"0s", "0s", "1s", "2s", "4s", "8s", "16s", "30s", "30s"}, waits); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
	r.pass(20 * time.Second)
	if wait := r.found(0, "x missing"); wait != 10*time.Second {
		t.Errorf("20 s after a repair that asks for 30 s the next waits for %s", wait)
	}
	r.pass(driftQuiet)
	if wait := r.found(0, "x missing"); wait != 0 {
		t.Errorf("after quiet the next waits for %s", wait)
	}
	if r.mended(); r.families[dataplane.IPv4].row != 1 {
		t.Errorf("after quiet the row goes on: %d", r.families[dataplane.IPv4].row)
	}
	if r.families[dataplane.IPv6].row != 0 {
		t.Error("the other family is affected")
	}
}

func TestDriftedTellsOfWhoKeepsUndoing(t *testing.T) {
	r := newDriftRig(t)
	var former []metav1.Condition
	expect := func(when string, want metav1.ConditionStatus) *metav1.Condition {
		t.Helper()
		c := driftedCondition(r.facts(), former)
		switch {
		case c == nil && want != "":
			t.Fatalf("%s: no condition, want %s", when, want)
		case c != nil && c.Status != want:
			t.Fatalf("%s: %+v, want %q", when, c, want)
		case c != nil:
			meta.SetStatusCondition(&former, *c)
		}
		return c
	}
	undo := func(after time.Duration) {
		r.pass(after)
		r.noticed(dataplane.IPv4, dataplane.Change{By: "firewalld, PID 7"})
		r.pass(r.found(0, "chain KUBE-SERVICES missing in nat"))
		r.mended()
	}
	expect("at first", "")
	undo(0)
	expect("after one repair", "")
	undo(time.Second)
	undo(time.Second)
	undo(0)
	expect("after a reload that undoes four times within seconds", "")
	undo(10 * time.Second)
	c := expect("after five times in more than 10 s", metav1.ConditionTrue)
	for _, want := range []string{"IPv4 rules", "at least 3 times since 2026-11-20T", "last: IPv4: chain KUBE-SERVICES missing in nat (changed by firewalld, PID 7)", "up to 30s", "nft monitor"} {
		if !strings.Contains(c.Message, want) {
			t.Errorf("message %q lacks %q", c.Message, want)
		}
	}
	if len(c.Message) > maxMessage {
		t.Errorf("the message has %d bytes", len(c.Message))
	}
	undo(0)
	if c = expect("after six", metav1.ConditionTrue); !strings.Contains(c.Message, "at least 6 times") {
		t.Errorf("message %q", c.Message)
	}
	six := c.Message
	for range 5 {
		undo(0)
		if c = expect("later", metav1.ConditionTrue); c.Message != six {
			t.Errorf("the message changes at each repair: %q", c.Message)
		}
	}
	r.pass(driftQuiet - time.Second)
	expect("not long after the last", metav1.ConditionTrue)
	r.pass(time.Second)
	if c = expect("after quiet", metav1.ConditionFalse); c.Reason != v1alpha1.ReasonNoDrift {
		t.Errorf("%+v", c)
	}
	undo(time.Minute)
	expect("after one more", metav1.ConditionFalse)
}

func TestRepairsAreToldOf(t *testing.T) {
	r := newDriftRig(t)
	if r.mended() {
		t.Error("a full pass that mends nothing counts as a repair")
	}
	for i := range 5 {
		r.pass(time.Hour)
		r.found(0, fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i), fmt.Sprintf("c%d", i), fmt.Sprintf("d%d", i))
		if i == 4 {
			r.noticed(dataplane.IPv4, dataplane.Change{By: "nft, PID 3"})
		}
		r.mended()
	}
	report := r.facts().report
	if report.Repairs != 5 || !report.LastTime.Time.Equal(agenttest.Epoch.Add(5*time.Hour)) {
		t.Errorf("report %+v", report)
	}
	want := []string{"IPv4: a4 (changed by nft, PID 3)", "IPv4: b4 (changed by nft, PID 3)", "IPv4: c4 (changed by nft, PID 3)",
		"IPv4: a3", "IPv4: b3", "IPv4: c3", "IPv4: a2", "IPv4: b2", "IPv4: c2", "IPv4: a1"}
	if diff := cmp.Diff(want, report.Examples); diff != "" {
		t.Errorf("examples (-want +got):\n%s", diff)
	}
}

func TestWhatCountsAsARepair(t *testing.T) {
	r := newDriftRig(t)
	count := func(what string, want int64, result dataplane.Result, first bool) {
		t.Helper()
		r.synced(written(result), first)
		if got := r.facts().report.Repairs; got != want {
			t.Errorf("%s: %d repairs, want %d", what, got, want)
		}
	}
	full := dataplane.Result{Kind: v1alpha1.SyncFull}
	r.found(0, "x missing")
	count("a partial write", 0, dataplane.Result{Kind: v1alpha1.SyncPartial}, false)
	count("a full one", 1, full, false)
	r.found(0, "x missing")
	count("the first set after another proxy", 1, full, true)
	count("the next full one", 1, full, false)
	full.Repaired = dataplane.Difference{Count: 1, Examples: []string{"y missing"}}
	count("one that came upon it by itself", 2, full, false)
	r.found(0, "x missing")
	count("one that came upon what was known", 3, full, false)
	failed := written(full)
	failed[dataplane.IPv4] = dataplane.Outcome[dataplane.Result]{Err: errors.New("locked"), Value: full}
	r.found(0, "x missing")
	if r.synced(failed, false) != nil {
		t.Error("a failed write counts")
	}
}

func TestSuspicionRestsAfterLooksThatFindNothing(t *testing.T) {
	r := newDriftRig(t)
	expect := func(when string, c dataplane.Change, want time.Duration) {
		t.Helper()
		if at := r.noticed(dataplane.IPv4, c); at.Sub(r.now.Now()) != want {
			t.Errorf("%s: the look waits for %s, want %s", when, at.Sub(r.now.Now()), want)
		}
	}
	suspicion, sure := dataplane.Change{}, dataplane.Change{Sure: true}
	expect("the first", suspicion, gatherPause)
	for range cleanLooks - 1 {
		r.found(300 * time.Millisecond) // nothing
		expect("after a look of 0.3 s", suspicion, gatherPause)
		expect("something is missing for sure", sure, gatherPause)
	}
	r.found(300 * time.Millisecond)
	expect("after three of them", suspicion, 6*time.Second)
	expect("something is missing for sure after three", sure, 300*time.Millisecond)
	r.pass(7 * time.Second)
	expect("later", suspicion, gatherPause)
	r.found(300 * time.Millisecond)
	expect("the row goes on", suspicion, 6*time.Second)
	r.pass(cleanSpan + 6*time.Second)
	r.found(300 * time.Millisecond)
	expect("after quiet", suspicion, gatherPause)
	for range 3 { // a row
		r.found(0, "x")
		r.mended()
	}
	r.found(0, "x")
	expect("what is known already waits for its repair", sure, 2*time.Second)
	if got := r.takeLooks(); !slices.Equal(got, []dataplane.Family{dataplane.IPv4}) || len(r.takeLooks()) != 0 {
		t.Errorf("looks at %v", got)
	}
}

// pass lets time pass: that of a bubble, or where what is measured is a time.
func pass(d time.Duration) { <-time.After(d) }

// guarded runs a test with an agent whose loop runs and watches, in a bubble.
func guarded(t *testing.T, test func(t *testing.T, a *Agent, r *rig, kernel *dataplanetest.Fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, r, kernel, _ := inTurn(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.loop.Run(ctx)
		go a.fanout.Watch(ctx, a.noticed)
		a.changed()
		a.loop.Trigger()
		pass(10 * time.Second)
		synctest.Wait()
		test(t, a, r, kernel)
	})
}

func repairs(a *Agent) int { return int(a.drift.facts().report.Repairs) }

func TestOthersChangesAreRepairedAtOnce(t *testing.T) {
	guarded(t, func(t *testing.T, a *Agent, r *rig, kernel *dataplanetest.Fake) {
		if repairs(a) != 0 {
			t.Error("the first full pass counts as a repair")
		}
		kernel.Remove("shop", "a")
		kernel.Sign(dataplane.Change{By: "iptables, PID 9"})
		pass(gatherPause)
		synctest.Wait()
		if len(kernel.Services()) != 1 || repairs(a) != 1 {
			t.Errorf("kernel holds %q after %d repairs", kernel.Services(), repairs(a))
		}
		if got := counted(t, a, "repairs_total", "ip_family"); got["IPv4"] != 1 {
			t.Errorf("metric %v", got)
		}
		status := statusOf(a, nil)
		if status.Drift.Repairs != 1 || status.Difference.Count != 0 || meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionDrifted) != nil {
			t.Errorf("status %+v, %+v, %+v", status.Drift, status.Difference, status.Conditions)
		}

		// What is not others' doing.
		kernel.Fail(errors.New("locked"))
		kernel.Remove("shop", "a")
		r.SetService(r.Service("b", 2))
		a.changed()
		pass(5 * time.Second)
		kernel.Fail(nil)
		pass(time.Minute)
		r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Masquerade.Bit = new(int32(9)) }))
		a.changed()
		pass(2 * time.Minute)
		if len(kernel.Services()) != 2 || repairs(a) != 1 {
			t.Errorf("kernel holds %q; %d repairs, after failures and new settings", kernel.Services(), repairs(a))
		}

		// A verification finds what nobody has noticed.
		kernel.Remove("shop", "b")
		pass(2 * time.Minute)
		if len(kernel.Services()) != 2 || repairs(a) != 2 {
			t.Errorf("kernel holds %q; %d repairs, after a verification", kernel.Services(), repairs(a))
		}
	})
}

func TestWhoKeepsUndoingIsNotFoughtFaster(t *testing.T) {
	guarded(t, func(t *testing.T, a *Agent, _ *rig, kernel *dataplanetest.Fake) {
		start := time.Now()
		differed := 0
		for time.Since(start) < 10*time.Minute { // undone 50 ms after each repair
			kernel.Remove("shop", "a")
			kernel.Sign(dataplane.Change{Sure: true})
			pass(50 * time.Millisecond)
			synctest.Wait()
			if a.store.snapshot().difference.Count > 0 {
				differed++
			}
		}
		// 0, 0, 1, 2, 4, 8, 16 s, then every 30 s.
		if n := repairs(a); n < 24 || n > 27 {
			t.Errorf("%d repairs in 10 minutes", n)
		}
		if reads := counted(t, a, "verifications_total", "result")["different"]; reads == 0 || reads > 75 {
			t.Errorf("the kernel was read %v times", reads)
		}
		if differed < 10000 {
			t.Errorf("the status told of a difference at %d of 12,000 times", differed)
		}
		status := statusOf(a, nil)
		programmed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
		if !meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionDrifted) || programmed.Reason != v1alpha1.ReasonPending {
			t.Errorf("conditions %+v", status.Conditions)
		}
		pass(40 * time.Second)
		if len(kernel.Services()) != 1 {
			t.Error("given up")
		}
		pass(driftQuiet)
		status = statusOf(a, status.Conditions)
		if !meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionDrifted) {
			t.Errorf("conditions after quiet: %+v", status.Conditions)
		}
	})
}

// TestChangesGoOnWhileARepairWaits: what is wanted anew does not wait with it.
func TestChangesGoOnWhileARepairWaits(t *testing.T) {
	guarded(t, func(t *testing.T, a *Agent, r *rig, kernel *dataplanetest.Fake) {
		for range 8 {
			kernel.Remove("shop", "a")
			kernel.Sign(dataplane.Change{})
			pass(40 * time.Second)
		}
		for range 2 {
			kernel.Remove("shop", "a")
			kernel.Sign(dataplane.Change{})
			pass(time.Second)
		}
		before := repairs(a)
		r.SetService(r.Service("b", 2))
		a.changed()
		pass(time.Second)
		if diff := cmp.Diff([]string{"shop/b"}, kernel.Services()); diff != "" || repairs(a) != before {
			t.Errorf("%d repairs after %d, kernel (-want +got):\n%s", repairs(a), before, diff)
		}
		pass(longestDriftPause)
		if len(kernel.Services()) != 2 || repairs(a) != before+1 {
			t.Errorf("kernel holds %q after %d repairs, before %d", kernel.Services(), repairs(a), before)
		}
	})
}

// TestLooksDoNotRetry: what is refused or warned of is tried again by
// verifications, and not more often than a full pass is worth.
func TestLooksDoNotRetry(t *testing.T) {
	r := running(t)
	clk := clocktesting.NewFakePassiveClock(agenttest.Epoch)
	r.store.clock = clk
	full := func(warnings []string, took int64) {
		b := r.prepare()
		b.rulesets = map[dataplane.Family]*dataplane.Ruleset{dataplane.IPv4: {}}
		r.commit(b, map[dataplane.Family]dataplane.Outcome[dataplane.Result]{
			dataplane.IPv4: {Value: dataplane.Result{Kind: v1alpha1.SyncFull, Warnings: warnings}},
		}, &v1alpha1.SyncReport{DurationMilliseconds: took})
	}
	same := map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{dataplane.IPv4: {}}
	full([]string{"a sysctl"}, 3000)
	if r.compared(r.epoch, same, nil, true) {
		t.Error("a look tries again")
	}
	if r.compared(r.epoch, same, nil, false) {
		t.Error("tried again at once although a pass takes 3 s")
	}
	clk.SetTime(agenttest.Epoch.Add(149 * time.Second))
	if r.compared(r.epoch, same, nil, false) {
		t.Error("tried again after 149 s although a pass takes 3 s")
	}
	clk.SetTime(agenttest.Epoch.Add(150 * time.Second))
	if !r.compared(r.epoch, same, nil, false) {
		t.Error("not tried again")
	}
	full(nil, 3000)
	clk.SetTime(agenttest.Epoch.Add(time.Hour))
	if r.compared(r.epoch, same, nil, false) {
		t.Error("tried again with nothing to try")
	}
}
