package status

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestPressureCondition(t *testing.T) {
	report := func(percent int64) *v1alpha1.ConntrackReport {
		return &v1alpha1.ConntrackReport{Entries: percent * 10, Max: 1000, UsagePercent: int32(percent)}
	}
	var stored []metav1.Condition // survives restarts
	show := func(r *v1alpha1.ConntrackReport) string {
		s, f := programmed(), facts4
		f.Tracking.Report = r
		stored = Build(s, f, stored).Conditions
		c := meta.FindStatusCondition(stored, v1alpha1.ConditionConntrackPressure)
		if c == nil {
			return ""
		}
		return string(c.Status) + " " + c.Reason
	}
	const on, off = "True TableNearlyFull", "False TableHasRoom"
	for i, step := range []struct {
		percent int64 // negative: not known
		want    string
	}{{-1, ""}, {79, ""}, {80, on}, {71, on}, {-1, on}, {100, on}, {70, off}, {79, off}, {-1, off}, {80, on}, {0, off}} {
		var r *v1alpha1.ConntrackReport
		if step.percent >= 0 {
			r = report(step.percent)
		}
		if got := show(r); got != step.want {
			t.Errorf("step %d, %d%%: got %q, want %q", i, step.percent, got, step.want)
		}
	}
	message := func(percent int64) string { return pressureCondition(report(percent), nil).Message }
	if message(80) != message(99) {
		t.Error("the message changes with the statistics, and is written each time")
	}
	if !strings.Contains(message(80), "spec.settings.conntrack.maxPerCore") {
		t.Errorf("message %q does not explain what to do", message(80))
	}
}

// TestWhenStatisticsOfTrackingAreWritten lets time pass and statistics change.
func TestWhenStatisticsOfTrackingAreWritten(t *testing.T) {
	s := programmed()
	b := &agenttest.Board{Stored: s.Own}
	clk := clocktesting.NewFakePassiveClock(s.Now)
	w := &Writer{clock: clk, write: b.Write, log: logr.Discard(), started: s.Now, share: half}
	now := v1alpha1.ConntrackReport{Entries: 100, Max: 1000, UsagePercent: 10, Buckets: 250}
	step := func(what string, pass time.Duration, want bool, edit func(*v1alpha1.ConntrackReport)) {
		t.Helper()
		if edit != nil {
			edit(&now)
		}
		f := facts4
		f.Tracking.Report = new(now)
		s.Now = s.Now.Add(pass)
		clk.SetTime(s.Now)
		s.Own = b.Stored
		if got := w.Write(context.Background(), s, f); got != want {
			t.Errorf("%s: written %v, want %v", what, got, want)
		}
	}
	use := func(percent int32) func(*v1alpha1.ConntrackReport) {
		return func(r *v1alpha1.ConntrackReport) { r.Entries, r.UsagePercent = int64(percent)*10, percent }
	}
	step("the first", 0, true, nil)
	step("four points", time.Minute, false, use(14))
	step("five points", 0, true, use(15))
	step("five points down, at once", time.Second, false, use(10))
	step("five points down, 5 s later", 4*time.Second, true, nil)
	step("counters alone", 4*time.Minute, false, func(r *v1alpha1.ConntrackReport) { r.InsertFailed, r.Drop, r.EarlyDrop, r.FlowsCleaned = 9, 9, 9, 9 })
	step("counters alone after 5 min", time.Minute, true, nil)
	step("another size", 5*time.Second, true, func(r *v1alpha1.ConntrackReport) { r.Max, r.Entries = 2000, 200 })
	step("more buckets", 5*time.Second, true, func(r *v1alpha1.ConntrackReport) { r.Buckets = 500 })
	step("78%", 5*time.Second, true, func(r *v1alpha1.ConntrackReport) { r.Entries, r.UsagePercent = 1560, 78 })
	step("pressure, at once", 0, true, func(r *v1alpha1.ConntrackReport) { r.Entries, r.UsagePercent = 1600, 80 })
	step("some more", time.Minute, false, func(r *v1alpha1.ConntrackReport) { r.Entries, r.UsagePercent = 1680, 84 })
}
