package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func inAudit(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Enforcement = new(v1alpha1.Audit) }

func TestAuditWritesNothingAndReports(t *testing.T) {
	runAudit(t, func(t *testing.T, r ownershipRig) {
		after(time.Second)
		if reason, _ := r.condition(); reason != v1alpha1.ReasonAuditInSync {
			// Nothing counts yet: the kernel is empty since a moment.
			t.Errorf("initially: %s", reason)
		}
		after(4 * time.Second)
		reason, message := r.condition()
		if reason != v1alpha1.ReasonAuditDiffers || !strings.Contains(message, "see status.difference") || !strings.Contains(message, "no program maintains") {
			t.Errorf("an empty kernel: %s: %s", reason, message)
		}
		if r.kernel.Writes() != 0 || r.owner.MayWrite() {
			t.Errorf("%d writes; may write: %v", r.kernel.Writes(), r.owner.MayWrite())
		}
		s := statusOf(r.Agent, nil)
		if s.SettingsRevision != r.rig.Snapshot().Own.Spec.SettingsRevision || s.Services != 1 || s.Difference.Count != 1 || !slices.Equal(s.Families, []string{"IPv4"}) {
			t.Errorf("status %+v", s)
		}

		r.ports.become("kube-proxy answers")
		after(5*time.Second + time.Second)
		if _, message := r.condition(); !strings.Contains(message, "another proxy runs on this node (kube-proxy answers)") {
			t.Errorf("beside another proxy: %s", message)
		}
		r.maintain()
		after(2 * time.Minute) // at the verification at the latest
		if reason, message := r.condition(); reason != v1alpha1.ReasonAuditInSync {
			t.Errorf("the other proxy has written: %s: %s", reason, message)
		}
	})
}

// maintain brings the kernel to the desired state, as another proxy would.
func (r ownershipRig) maintain() {
	b, _ := r.store.PrepareAudit(time.Now())
	for _, svc := range b.Rulesets[dataplane.IPv4].Services {
		r.kernel.Plant(svc)
	}
}

// TestAuditDuringChanges: a proxy that follows a moment later makes no
// difference count.
func TestAuditDuringChanges(t *testing.T) {
	runAudit(t, func(t *testing.T, r ownershipRig) {
		r.ports.become("kube-proxy answers")
		after(100 * time.Millisecond)
		r.maintain()
		before := r.kernel.Audits()
		for i := range 120 {
			r.rig.SetService(r.rig.Service("a", i%7+1, func(s *v1alpha1.ServiceProxyRulesSpec) { s.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", 1+i)} }))
			r.changed()
			after(900 * time.Millisecond)
			r.maintain() // the desired state since the last comparison, so up to 3 s late
			if reason, message := r.condition(); reason != v1alpha1.ReasonAuditInSync {
				t.Fatalf("change %d: %s: %s", i, reason, message)
			}
		}
		if passes := r.kernel.Audits() - before; passes < 30 || passes > 60 {
			t.Errorf("%d comparisons in 108 s, want one every 2 s", passes)
		}
		r.kernel.Remove("shop", "a")
		r.loop.VerifySoon() // as after an event of the kernel
		after(8 * time.Second)
		if reason, message := r.condition(); reason != v1alpha1.ReasonAuditDiffers {
			t.Errorf("changed by hand: %s: %s", reason, message)
		}
		before = r.kernel.Audits()
		after(10 * time.Minute)
		if passes := r.kernel.Audits() - before; passes > 11 {
			t.Errorf("%d comparisons in 10 minutes in which nothing happens", passes)
		}
	})
}

func TestEnforceAuditEnforce(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		after(time.Second)
		owned := r.owner.Context()
		r.rig.SetRules(r.rig.Node(inAudit))
		r.changed()
		after(3 * time.Second)
		if owned.Err() == nil || r.owner.MayWrite() {
			t.Error("the ports stay open with Audit")
		}
		if reason, message := r.condition(); reason != v1alpha1.ReasonAuditInSync || !strings.Contains(message, "no program maintains") {
			t.Errorf("with Audit: %s: %s", reason, message)
		}
		writes := r.kernel.Writes()
		r.kernel.Remove("shop", "a")
		r.rig.SetService(r.rig.Service("b", 2))
		r.rig.SetInventory(agenttest.InventoryOf("shop.a", "shop.b"))
		r.changed()
		after(2 * time.Minute)
		if reason, message := r.condition(); reason != v1alpha1.ReasonAuditDiffers || r.store.Snapshot().Difference.Count != 2 {
			t.Errorf("with Audit, changed by hand: %s: %s", reason, message)
		}
		if r.kernel.Writes() != writes {
			t.Errorf("%d writes with Audit", r.kernel.Writes()-writes)
		}
		r.rig.SetRules(r.rig.Node())
		r.changed()
		after(time.Second)
		if reason, message := r.condition(); reason != v1alpha1.ReasonProgrammed || len(r.kernel.Services()) != 2 {
			t.Errorf("with Enforce again: %s: %s; the kernel has %q", reason, message, r.kernel.Services())
		}
		if r.owner.Context().Err() != nil || !r.owner.MayWrite() {
			t.Error("the ports are not opened again")
		}
		r.rig.SetService(r.rig.Service("c", 3))
		r.changed()
		after(time.Second) // the intervals are those of Enforce
		if len(r.kernel.Services()) != 3 {
			t.Errorf("the kernel has %q", r.kernel.Services())
		}
	})
}

func TestAuditThatFails(t *testing.T) {
	runAudit(t, func(t *testing.T, r ownershipRig) {
		r.kernel.Fail(errors.New("iptables-save: no"))
		after(2 * desired.AuditInterval) // a comparison that began before ownership ended does not count
		if reason, message := r.condition(); reason != v1alpha1.ReasonFailed || !strings.Contains(message, "cannot be compared with the desired state: IPv4: iptables-save: no") {
			t.Errorf("%s: %s", reason, message)
		}
		r.kernel.Fail(nil)
		r.maintain()
		after(time.Minute)
		if reason, message := r.condition(); reason != v1alpha1.ReasonAuditInSync {
			t.Errorf("it works again: %s: %s", reason, message)
		}
	})
}

// TestOutcomesAfterLostOwnershipDoNotCount: an Apply that ends when another proxy
// writes already reports nothing.
func TestOutcomesAfterLostOwnershipDoNotCount(t *testing.T) {
	a, _, _, _ := owningAgent(t)
	b := prepare(a.store)
	outcomes := a.fanout.Apply(context.Background(), b.Rulesets)
	a.store.Forget()
	if a.store.Commit(b, outcomes, nil) || a.store.Snapshot().Done {
		t.Error("what was written before ownership was lost counts as applied")
	}
	b = prepare(a.store)
	if len(b.Rulesets) != 1 || !b.Rulesets[dataplane.IPv4].Full {
		t.Error("the next write is not a full one")
	}
}
