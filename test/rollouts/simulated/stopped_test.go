package simulated

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestNodeThatFailsStopsIt: a deadline missed is the end of it, until that node recovers
// or the policy is changed. Slow nodes, and such as reject Services, do not stop it.
func TestNodeThatFailsStopsIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin := w.history.latest()
	order := inTurn()
	w.fleet.behave(always(rejectsOne), order[0])
	w.fleet.behave(slow(quickly), order[1])
	w.fleet.behave(with(v1alpha1.ModeIPVS, rejects), order[3])
	policy := edgePool("1")
	policy.Spec.Rollout.ProgressDeadlineSeconds = new(int32(2))
	w.create(policy)
	w.awaitReady("edge-pool", v1alpha1.ReasonRolloutHalted)
	w.awaitProgrammed("edge-pool", 3)
	w.awaitEvents("edge-pool", "Normal Progressing", "Warning RolloutHalted")
	w.describe("stopped", "edge-pool")
	w.record("rollout-halted")
	w.nothingIsWritten()
	same(t, "given before it stopped", w.grants(begin), order[:4])

	failed := order[10]
	w.fleet.behave(with(v1alpha1.ModeIPVS, fails), failed)
	w.fleet.behave(always(works), order[3])
	w.await("it goes on once the node has recovered, and the node that failed next is the one named", func() bool {
		e := w.policy("edge-pool").Status.Examples
		return len(e) > 0 && e[0].Name == failed && e[0].Reason == v1alpha1.ReasonDeadlineMissed
	})
	same(t, "given before it stopped again", w.grants(begin), order[:11])

	changed := w.history.latest()
	edit(w, policy, func(p *v1alpha1.NodeProxyPolicy) {
		p.Spec.Settings.Mode = new(v1alpha1.ModeIPTables)
		p.Spec.Rollout.MaxUnavailable = new(intstr.FromString("10%"))
	})
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	given := w.grants(changed)
	same(t, "given the new generation", len(given), edge)
	if given[0] != failed {
		t.Errorf("the new generation came first to %s, not to %s, which needs it most", given[0], failed)
	}
	w.settled()
	warnings := slices.DeleteFunc(w.eventsOf("edge-pool"), func(e string) bool { return e != "Warning RolloutHalted" })
	same(t, "warnings", warnings, []string{"Warning RolloutHalted", "Warning RolloutHalted"})
}

// TestBadChangeReachesFewNodes: one that no node can have stops at as many as may be
// unavailable, whatever the controller does, and the old settings repair them.
func TestBadChangeReachesFewNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet.behave(with(v1alpha1.ModeIPVS, rejects), nodeNames(0, edge)...)
	begin := w.history.latest()
	policy := edgePool("10%")
	policy.Spec.Rollout.ProgressDeadlineSeconds = new(int32(2))
	w.create(policy)
	w.awaitReady("edge-pool", v1alpha1.ReasonRolloutHalted)
	w.controller.kill()
	w.startController()
	w.nothingIsWritten()
	same(t, "given", w.grants(begin), inTurn()[:3])
	begin = w.history.latest()
	w.delete(policy)
	w.await("no node is in mode IPVS", func() bool {
		return len(w.carrying(func(s *v1alpha1.ProxySettings) bool { return *s.Mode == v1alpha1.ModeIPVS })) == 0
	})
	w.settled()
	same(t, "writes to the rules of nodes", w.history.writes(begin), once(inTurn()[:3]))
}
