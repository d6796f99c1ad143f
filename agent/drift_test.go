package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/drift"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// pass lets time pass: that of a bubble, or where what is measured is a time.
func pass(d time.Duration) { <-time.After(d) }

// guarded runs a test with an agent whose loop runs and watches, in a bubble.
func guarded(t *testing.T, test func(t *testing.T, a *Agent, r *rig, kernel *dataplanetest.Fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, r, kernel, _ := owningAgent(t)
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

func repairs(a *Agent) int { return int(a.drift.Facts().Repairs) }

func TestOthersChangesAreRepairedAtOnce(t *testing.T) {
	guarded(t, func(t *testing.T, a *Agent, r *rig, kernel *dataplanetest.Fake) {
		if repairs(a) != 0 {
			t.Error("the first full pass counts as a repair")
		}
		kernel.Remove("shop", "a")
		kernel.ReportChange(dataplane.Change{By: "iptables, PID 9"})
		pass(drift.GatherPause)
		synctest.Wait()
		if len(kernel.Services()) != 1 || repairs(a) != 1 {
			t.Errorf("kernel has %q after %d repairs", kernel.Services(), repairs(a))
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
			t.Errorf("kernel has %q; %d repairs, after failures and new settings", kernel.Services(), repairs(a))
		}

		// A verification finds what was not noticed.
		kernel.Remove("shop", "b")
		pass(2 * time.Minute)
		if len(kernel.Services()) != 2 || repairs(a) != 2 {
			t.Errorf("kernel has %q; %d repairs, after a verification", kernel.Services(), repairs(a))
		}
	})
}

func TestRepeatedChangesAreNotRepairedFaster(t *testing.T) {
	guarded(t, func(t *testing.T, a *Agent, _ *rig, kernel *dataplanetest.Fake) {
		start := time.Now()
		differed := 0
		for time.Since(start) < 10*time.Minute { // reverted 50 ms after each repair
			kernel.Remove("shop", "a")
			kernel.ReportChange(dataplane.Change{Sure: true})
			pass(50 * time.Millisecond)
			synctest.Wait()
			if a.store.Snapshot().Difference.Count > 0 {
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
			t.Errorf("the status reported a difference at %d of 12,000 times", differed)
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
		pass(drift.Quiet)
		status = statusOf(a, status.Conditions)
		if !meta.IsStatusConditionFalse(status.Conditions, v1alpha1.ConditionDrifted) {
			t.Errorf("conditions after quiet: %+v", status.Conditions)
		}
	})
}

// TestChangesGoOnWhileARepairWaits: the desired state anew does not wait with it.
func TestChangesGoOnWhileARepairWaits(t *testing.T) {
	guarded(t, func(t *testing.T, a *Agent, r *rig, kernel *dataplanetest.Fake) {
		for range 8 {
			kernel.Remove("shop", "a")
			kernel.ReportChange(dataplane.Change{})
			pass(40 * time.Second)
		}
		for range 2 {
			kernel.Remove("shop", "a")
			kernel.ReportChange(dataplane.Change{})
			pass(time.Second)
		}
		before := repairs(a)
		r.SetService(r.Service("b", 2))
		a.changed()
		pass(time.Second)
		if diff := cmp.Diff([]string{"shop/b"}, kernel.Services()); diff != "" || repairs(a) != before {
			t.Errorf("%d repairs after %d, kernel (-want +got):\n%s", repairs(a), before, diff)
		}
		pass(drift.LongestDriftPause)
		if len(kernel.Services()) != 2 || repairs(a) != before+1 {
			t.Errorf("kernel has %q after %d repairs, before %d", kernel.Services(), repairs(a), before)
		}
	})
}
