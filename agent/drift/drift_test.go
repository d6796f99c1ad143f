package drift

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/messages"
)

// driftRig is a drift of one family with a clock.
type driftRig struct {
	*Tracker
	t   *testing.T
	now *clocktesting.FakePassiveClock
}

func newDriftRig(t *testing.T) *driftRig {
	now := clocktesting.NewFakePassiveClock(agenttest.Epoch)
	return &driftRig{New(now, []dataplane.Family{dataplane.IPv4, dataplane.IPv6}), t, now}
}

func (r *driftRig) pass(d time.Duration) { r.now.SetTime(r.now.Now().Add(d)) }

// found lets a comparison of IPv4 find that others have changed what examples
// name, and returns how long the repair waits; negative: nothing to repair.
func (r *driftRig) found(took time.Duration, examples ...string) time.Duration {
	d := dataplane.Difference{Count: len(examples), Examples: examples, Drifted: len(examples) > 0}
	at, drifted := r.Compared(map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{dataplane.IPv4: {Value: d}}, r.now.Now(), took)[dataplane.IPv4]
	if !drifted {
		return -1
	}
	return at.Sub(r.now.Now())
}

// repairs lets a full write of IPv4 succeed and reports whether that was a repair.
func (r *driftRig) repairs() bool {
	return len(r.Synced(written(dataplane.Result{Kind: v1alpha1.SyncFull}), false)) > 0
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
		if !r.repairs() {
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
	r.pass(Quiet)
	if wait := r.found(0, "x missing"); wait != 0 {
		t.Errorf("after quiet the next waits for %s", wait)
	}
	if r.repairs(); r.families[dataplane.IPv4].row != 1 {
		t.Errorf("after quiet the row goes on: %d", r.families[dataplane.IPv4].row)
	}
	if r.families[dataplane.IPv6].row != 0 {
		t.Error("the other family is affected")
	}
}

func TestDriftedReportsRepeatedChanges(t *testing.T) {
	r := newDriftRig(t)
	var former []metav1.Condition
	expect := func(when string, want metav1.ConditionStatus) *metav1.Condition {
		t.Helper()
		f := r.Facts()
		c := f.Condition(former)
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
	modify := func(after time.Duration) {
		r.pass(after)
		r.Noticed(dataplane.IPv4, dataplane.Change{By: "firewalld, PID 7"})
		r.pass(r.found(0, "chain KUBE-SERVICES missing in nat"))
		r.repairs()
	}
	expect("initially", "")
	modify(0)
	expect("after one repair", "")
	modify(time.Second)
	modify(time.Second)
	modify(0)
	expect("after a reload that modifies them four times within seconds", "")
	modify(10 * time.Second)
	c := expect("after five times in more than 10 s", metav1.ConditionTrue)
	for _, want := range []string{"IPv4 rules", "at least 3 times since 2026-11-20T", "last: IPv4: chain KUBE-SERVICES missing in nat (changed by firewalld, PID 7)", "up to 30s", "nft monitor"} {
		if !strings.Contains(c.Message, want) {
			t.Errorf("message %q lacks %q", c.Message, want)
		}
	}
	messages.Check(t, c.Message)
	if len(c.Message) > 1024 {
		t.Errorf("the message has %d bytes", len(c.Message))
	}
	modify(0)
	if c = expect("after six", metav1.ConditionTrue); !strings.Contains(c.Message, "at least 6 times") {
		t.Errorf("message %q", c.Message)
	}
	six := c.Message
	for range 5 {
		modify(0)
		if c = expect("later", metav1.ConditionTrue); c.Message != six {
			t.Errorf("the message changes at each repair: %q", c.Message)
		}
	}
	r.pass(Quiet - time.Second)
	expect("not long after the last", metav1.ConditionTrue)
	r.pass(time.Second)
	if c = expect("after quiet", metav1.ConditionFalse); c.Reason != v1alpha1.ReasonNoDrift {
		t.Errorf("%+v", c)
	}
	modify(time.Minute)
	expect("after one more", metav1.ConditionFalse)
}

// TestDriftOfBothFamilies: one message, in which each example is short.
func TestDriftOfBothFamilies(t *testing.T) {
	r := newDriftRig(t)
	long := "rule missing in KUBE-SERVICES: " + strings.Repeat("x", 400) + ". Y"
	for range driftedRepairs + 1 {
		outcomes := map[dataplane.Family]dataplane.Outcome[dataplane.Result]{}
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			outcomes[family] = dataplane.Outcome[dataplane.Result]{Value: dataplane.Result{
				Kind: v1alpha1.SyncFull, Repaired: dataplane.Difference{Count: 1, Examples: []string{long}},
			}}
		}
		r.Synced(outcomes, false)
		r.pass(driftedSpan)
	}
	got := r.Facts().Message
	messages.Check(t, got)
	for _, want := range []string{
		"Another program repeatedly modifies nodeproxy's IPv4 and IPv6 rules: IPv4 repaired at least 3 times since ", ", IPv6 repaired at least 3 times since ",
		"; last: IPv4: rule missing", "; IPv6: rule missing", "and stop it.",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("message %q lacks %q", got, want)
		}
	}
	if len(got) > 1024 {
		t.Errorf("the message has %d bytes", len(got))
	}
}

func TestRepairsAreReported(t *testing.T) {
	r := newDriftRig(t)
	if r.repairs() {
		t.Error("a full pass that repairs nothing counts as a repair")
	}
	for i := range 5 {
		r.pass(time.Hour)
		r.found(0, fmt.Sprintf("a%d", i), fmt.Sprintf("b%d", i), fmt.Sprintf("c%d", i), fmt.Sprintf("d%d", i))
		if i == 4 {
			r.Noticed(dataplane.IPv4, dataplane.Change{By: "nft, PID 3"})
		}
		r.repairs()
	}
	report := r.Facts()
	if report.Repairs != 5 || !report.LastTime.Equal(agenttest.Epoch.Add(5*time.Hour)) {
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
		r.Synced(written(result), first)
		if got := r.Facts().Repairs; got != want {
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
	if r.Synced(failed, false) != nil {
		t.Error("a failed write counts")
	}
}

func TestSuspicionRestsAfterChecksThatFindNothing(t *testing.T) {
	r := newDriftRig(t)
	expect := func(when string, c dataplane.Change, want time.Duration) {
		t.Helper()
		if at := r.Noticed(dataplane.IPv4, c); at.Sub(r.now.Now()) != want {
			t.Errorf("%s: the check waits for %s, want %s", when, at.Sub(r.now.Now()), want)
		}
	}
	suspicion, sure := dataplane.Change{}, dataplane.Change{Sure: true}
	expect("the first", suspicion, GatherPause)
	for range CleanChecks - 1 {
		r.found(300 * time.Millisecond) // nothing
		expect("after a check of 0.3 s", suspicion, GatherPause)
		expect("something is missing for sure", sure, GatherPause)
	}
	r.found(300 * time.Millisecond)
	expect("after three of them", suspicion, 6*time.Second)
	expect("something is missing for sure after three", sure, 300*time.Millisecond)
	r.pass(7 * time.Second)
	expect("later", suspicion, GatherPause)
	r.found(300 * time.Millisecond)
	expect("the row goes on", suspicion, 6*time.Second)
	r.pass(cleanSpan + 6*time.Second)
	r.found(300 * time.Millisecond)
	expect("after quiet", suspicion, GatherPause)
	for range 3 { // a row
		r.found(0, "x")
		r.repairs()
	}
	r.found(0, "x")
	expect("what is known already waits for its repair", sure, 2*time.Second)
	if got := r.TakeDue(); !slices.Equal(got, []dataplane.Family{dataplane.IPv4}) || len(r.TakeDue()) != 0 {
		t.Errorf("checks at %v", got)
	}
}
