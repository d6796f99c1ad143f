package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// comparing returns an agent that has compared a kernel to the desired state, with
// nothing to report, and whose loop does not run.
func comparing(t *testing.T) (*Agent, *rig) {
	t.Helper()
	a, _, _ := newAgent(t, (&answers{list: []string{""}}).probe)
	r := fill(t, a)
	r.SetRules(r.Node(inAudit))
	mustSync(t, a)
	if c := status.ProgrammedCondition(a.refresh()); c.Reason != v1alpha1.ReasonAuditInSync {
		t.Fatalf("with Audit: %+v", c)
	}
	return a, r
}

func expectPending(t *testing.T, a *Agent, when string) {
	t.Helper()
	if c := status.ProgrammedCondition(a.refresh()); c.Reason != v1alpha1.ReasonPending {
		t.Errorf("%s: %s: %s", when, c.Reason, c.Message)
	}
	if status := statusOf(a, nil); status.Services != 0 || status.Difference != nil || status.Kernel != nil {
		t.Errorf("%s the status reports a kernel that is unknown: %+v", when, status)
	}
}

// TestWhatIsComparedIsNotWritten: Programmed after Audit is for rules that the
// agent has written, whenever it comes to do so.
func TestWhatIsComparedIsNotWritten(t *testing.T) {
	t.Run("once Enforce is asked", func(t *testing.T) {
		a, r := comparing(t)
		r.SetRules(r.Node())
		expectPending(t, a, "before ownership begins")
		hold(t, a)
		expectPending(t, a, "before the first write")
		mustSync(t, a)
		if c := status.ProgrammedCondition(a.refresh()); c.Reason != v1alpha1.ReasonProgrammed {
			t.Errorf("written: %s: %s", c.Reason, c.Message)
		}
	})
	t.Run("while it is compared", func(t *testing.T) {
		a, r := comparing(t)
		b, ok := a.store.PrepareAudit(agenttest.Epoch)
		if !ok {
			t.Fatal("nothing to compare")
		}
		outcomes := a.fanout.Verify(context.Background(), b.Rulesets, dataplane.VerifyOptions{Audit: true})
		r.SetRules(r.Node())
		a.store.Audited(b, outcomes, agenttest.Epoch)
		expectPending(t, a, "compared before")
	})
	t.Run("between the question whether to compare and that", func(t *testing.T) {
		a, r := comparing(t)
		r.SetRules(r.Node())
		if err := a.audit(context.Background()); err != nil {
			t.Fatal(err)
		}
		expectPending(t, a, "compared after")
	})
	t.Run("while the status is made", func(t *testing.T) {
		a, r := comparing(t)
		s := a.store.Snapshot()
		r.SetRules(r.Node())
		if c := status.ProgrammedCondition(s, a.facts(&s)); c.Reason != v1alpha1.ReasonAuditInSync {
			t.Errorf("a snapshot of Audit: %s: %s", c.Reason, c.Message)
		}
	})
	t.Run("Audit is back before ownership could end", func(t *testing.T) {
		a, r, kernel, _ := owningAgent(t)
		mustSync(t, a)
		r.SetRules(r.Node(inAudit))
		mustSync(t, a)
		kernel.Remove("shop", "a")
		r.SetRules(r.Node())
		expectPending(t, a, "with Enforce again")
		mustSync(t, a)
		if c := status.ProgrammedCondition(a.refresh()); c.Reason != v1alpha1.ReasonProgrammed || len(kernel.Services()) != 1 {
			t.Errorf("written: %s: %s; the kernel has %q", c.Reason, c.Message, kernel.Services())
		}
	})
	t.Run("ownership cannot begin", func(t *testing.T) {
		runAudit(t, func(t *testing.T, r ownershipRig) {
			after(time.Minute)
			r.spots.set(func(s *spots) { s.stuck = errors.New("the lock is held") })
			r.rig.SetRules(r.rig.Node())
			r.changed()
			for range 20 {
				expectPending(t, r.Agent, "while nothing can be written")
				after(time.Second)
			}
			r.spots.set(func(s *spots) { s.stuck = nil })
			after(2 * time.Second)
			if reason, message := r.condition(); reason != v1alpha1.ReasonProgrammed || len(r.kernel.Services()) != 1 {
				t.Errorf("it can: %s: %s; the kernel has %q", reason, message, r.kernel.Services())
			}
		})
	})
	t.Run("another proxy has come since the last check", func(t *testing.T) {
		runAudit(t, func(t *testing.T, r ownershipRig) {
			after(time.Minute)
			r.ports.become("kube-proxy answers")
			r.rig.SetRules(r.rig.Node())
			expectPending(t, r.Agent, "before the next check")
			r.changed()
			after(time.Second)
			if reason, message := r.condition(); reason != v1alpha1.ReasonConflictingProxy {
				t.Errorf("after it: %s: %s", reason, message)
			}
		})
	})
}

// TestWhatIsWrittenIsNotCompared: what rejected a Service, or failed, with Enforce
// is no finding of Audit, and neither is that it did not.
func TestWhatIsWrittenIsNotCompared(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	kernel.Reject("shop", "a", "too long")
	mustSync(t, a)
	if c := status.ProgrammedCondition(a.refresh()); c.Reason != v1alpha1.ReasonSomeServicesRejected {
		t.Fatalf("written: %s: %s", c.Reason, c.Message)
	}
	b := prepare(a.store)
	outcomes := a.fanout.Apply(context.Background(), b.Rulesets)
	r.SetRules(r.Node(inAudit))
	expectPending(t, a, "before the first comparison")
	a.store.Commit(b, outcomes, nil)
	expectPending(t, a, "with the end of a write")
	if names := a.store.Notices().Rejected; len(names) != 0 {
		t.Errorf("rejected %v", names)
	}
}
