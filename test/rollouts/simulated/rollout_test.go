package simulated

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// edgePool is a policy for pool edge that moves it to IPVS, with so many nodes
// unavailable.
func edgePool(most string) *v1alpha1.NodeProxyPolicy {
	return &v1alpha1.NodeProxyPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "edge-pool"},
		Spec: v1alpha1.NodeProxyPolicySpec{
			Priority:     new(int32(100)),
			NodeSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"pool": "edge"}},
			Settings: v1alpha1.WrittenSettings{
				Mode: new(v1alpha1.ModeIPVS), IPVS: &v1alpha1.IPVSSettings{Scheduler: new("lc")},
			},
			Rollout: &v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.Parse(most))},
		},
	}
}

// scheduled has a policy set an IPVS scheduler, so that its settings are others than
// before.
func scheduled(name string) func(*v1alpha1.NodeProxyPolicy) {
	return func(p *v1alpha1.NodeProxyPolicy) { p.Spec.Settings.IPVS.Scheduler = &name }
}

// once is one write to each of some nodes.
func once(names []string) map[string]int {
	out := map[string]int{}
	for _, name := range names {
		out[name] = 1
	}
	return out
}

// same fails the test where two things differ.
func same[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestChangeGoesFromNodeToNode: in order, one write for each node that it is for, none
// for others; and how that is reported, meanwhile and afterwards.
func TestChangeGoesFromNodeToNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin := w.history.latest()
	first, rest := inTurn()[:6], inTurn()[6:]
	w.fleet.behave(with(v1alpha1.ModeIPVS, silent), rest...)
	w.create(edgePool("10%"))
	w.await("six nodes have it, and three are on their way", func() bool {
		p := w.policy("edge-pool")
		return p.Status.Updated == 9 && p.Status.Programmed == 6 && strings.Contains(p.Status.Examples[0].Message, " at ")
	})
	same(t, "given first", w.grants(begin), append(slices.Clone(first), rest[:3]...))
	w.awaitEvents("edge-pool", "Normal Progressing")
	w.describe("during", "edge-pool")
	w.fleet.behave(always(works), rest...)
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	w.awaitEvents("edge-pool", "Normal Progressing", "Normal Applied")
	w.describe("after", "edge-pool")
	same(t, "given, in order", w.grants(begin), inTurn())
	same(t, "writes to the rules of nodes", w.history.writes(begin), once(inTurn()))
	w.awaitEvents("edge-pool", "Normal Progressing", "Normal Applied")
	w.settled()
	w.nothingIsWritten()
}

// nothingIsWritten checks that a controller that is started anew writes nothing: what it
// does about a policy for no node shows that it has looked at everything.
func (w *world) nothingIsWritten() {
	w.t.Helper()
	w.controller.stop()
	w.startController()
	none := edgePool("1")
	none.Name, none.Spec.NodeSelector.MatchLabels = "none", map[string]string{"pool": "none"}
	begin := w.history.latest()
	w.create(none)
	w.awaitReady("none", v1alpha1.ReasonNothingSelected)
	same(w.t, "writes of a new controller to the rules of nodes", w.history.writes(begin), map[string]int{})
	same(w.t, "requests of a new controller that write rules", w.controller.line.count("nodeproxyrules"), 0)
	same(w.t, "requests of a new controller that write policies", w.controller.line.count("nodeproxypolicies"), 1)
	w.delete(none)
	w.await("the policy none is gone", func() bool { return w.policy("none").Name == "" })
}

// TestControllerIsKilledInTheMiddle: what comes out, and in which order, is the same.
func TestControllerIsKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin := w.history.latest()
	w.create(edgePool("3"))
	for _, n := range []int{1, 4, 11, 12, 20, 27} {
		w.await("so many nodes are given it", func() bool { return len(w.grants(begin)) >= n })
		w.controller.kill()
		w.startController()
	}
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	same(t, "given, in order", w.grants(begin), inTurn())
	same(t, "writes to the rules of nodes", w.history.writes(begin), once(inTurn()))
	w.settled()
}

// TestControllerWhoseWatchIsLate gives no budget away twice: when it hears that a policy
// does not select some nodes any more, it has not heard yet that these were given its
// change.
func TestControllerWhoseWatchIsLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.controller.stop()
	w.lag = lateness
	w.startController()
	w.fleet.behave(with(v1alpha1.ModeIPVS, silent), nodeNames(0, edge)...)
	begin := w.history.latest()
	policy := edgePool("6")
	w.create(policy)
	w.await("six nodes are given it", func() bool { return len(w.grants(begin)) == 6 })
	edit(w, policy, func(p *v1alpha1.NodeProxyPolicy) {
		p.Spec.NodeSelector.MatchLabels[corev1.LabelTopologyZone] = "c"
	})
	w.await("the controller has heard of it", func() bool { return w.policy("edge-pool").Status.ObservedGeneration == 2 })
	w.fleet.behave(always(works), nodeNames(0, edge)...)
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	w.await("no node of another zone is in mode IPVS", func() bool {
		return len(w.carrying(func(s *v1alpha1.ProxySettings) bool { return *s.Mode == v1alpha1.ModeIPVS })) == 10
	})
	w.settled()
}

// TestUnavailableNodesComeFirst, as few at a time as others.
func TestUnavailableNodesComeFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ill := []string{"node-07", "node-15", "node-23"}
	w.fleet.behave(always(breaks), ill...)
	w.await("three nodes are not programmed", func() bool {
		return !slices.ContainsFunc(ill, func(name string) bool { return available(find[*v1alpha1.NodeProxyRules](w.history, name)) })
	})
	w.fleet.behave(with(v1alpha1.ModeIPTables, breaks), ill...) // the change repairs them
	begin := w.history.latest()
	w.create(edgePool("2"))
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	want := append(slices.Clone(ill), slices.DeleteFunc(inTurn(), func(name string) bool { return slices.Contains(ill, name) })...)
	same(t, "given first", w.grants(begin)[:3], want[:3])
	same(t, "writes to the rules of nodes", w.history.writes(begin), once(want))
}

// TestTwoPoliciesAtOnce on nodes of which some are selected by both.
func TestTwoPoliciesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin := w.history.latest()
	zone := edgePool("3")
	zone.Name, zone.Spec.Priority = "zone-a", nil
	zone.Spec.NodeSelector.MatchLabels = map[string]string{corev1.LabelTopologyZone: "a"}
	zone.Spec.Settings = v1alpha1.WrittenSettings{
		Mode: new(v1alpha1.ModeIPTables), Sync: &v1alpha1.SyncSettings{VerifyIntervalSeconds: new(int32(30))},
	}
	w.create(edgePool("4"))
	w.create(zone)
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	w.awaitReady("zone-a", v1alpha1.ReasonApplied)
	w.settled()
	for name, n := range w.history.writes(begin) {
		if n > 2 {
			t.Errorf("the rules of %s were written %d times", name, n)
		}
	}
	over := meta.FindStatusCondition(w.policy("zone-a").Status.Conditions, v1alpha1.ConditionOverridden)
	if over == nil || over.Status != metav1.ConditionTrue || !strings.Contains(over.Message, "spec.settings.mode") || !strings.Contains(over.Message, "edge-pool") {
		t.Errorf("Overridden: %+v", over)
	}
	if over := meta.FindStatusCondition(w.policy("edge-pool").Status.Conditions, v1alpha1.ConditionOverridden); over == nil || over.Status != metav1.ConditionFalse {
		t.Errorf("Overridden of the stronger one: %+v", over)
	}
}

// TestPolicyIsEditedAndRemovedInTheMiddle: nodes that have neither change get the newest
// alone, and what becomes of a removed policy is up to NodeProxy.
func TestPolicyIsEditedAndRemovedInTheMiddle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	edit(w, np, func(np *v1alpha1.NodeProxy) {
		np.Spec.Rollout = &v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromString("8%"))} // four
	})
	begin := w.history.latest()
	policy := edgePool("3")
	w.create(policy)
	w.await("eight nodes are given it", func() bool { return len(w.grants(begin)) >= 8 })
	edit(w, policy, scheduled("sh"))
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	w.settled()
	twice := 0
	for _, n := range w.history.writes(begin) {
		twice += n - 1
	}
	if twice < 8 || twice > 14 { // the edit takes a moment to arrive
		t.Errorf("%d nodes were given both changes", twice)
	}
	begin = w.history.latest()
	edit(w, policy, scheduled("rr"))
	w.await("eight nodes are given the third change", func() bool { return len(w.grants(begin)) >= 8 })
	w.delete(policy)
	begin = w.history.latest()
	w.await("no node is in mode IPVS", func() bool {
		return len(w.carrying(func(s *v1alpha1.ProxySettings) bool { return *s.Mode == v1alpha1.ModeIPVS })) == 0
	})
	w.settled()
	for name, n := range w.history.writes(begin) {
		if n > 2 {
			t.Errorf("after the policy was deleted the rules of %s were written %d times", name, n)
		}
	}
}

// TestPause: no node is given anything while a policy is paused, and what was given stays.
func TestPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin := w.history.latest()
	policy := edgePool("3")
	policy.Spec.Rollout.Paused = new(true)
	w.create(policy)
	w.awaitReady("edge-pool", v1alpha1.ReasonPaused)
	same(t, "given while paused", len(w.grants(begin)), 0)
	edit(w, policy, func(p *v1alpha1.NodeProxyPolicy) { p.Spec.Rollout.Paused = nil })
	w.await("seven nodes are given it", func() bool { return len(w.grants(begin)) >= 7 })
	edit(w, policy, func(p *v1alpha1.NodeProxyPolicy) { p.Spec.Rollout.Paused = new(true) })
	w.awaitReady("edge-pool", v1alpha1.ReasonPaused)
	given := w.grants(begin)
	w.awaitProgrammed("edge-pool", len(given))
	w.awaitEvents("edge-pool", "Normal Paused", "Normal Progressing", "Normal Paused")
	w.nothingIsWritten()
	same(t, "given before the pause", w.grants(begin), given)
	edit(w, policy, func(p *v1alpha1.NodeProxyPolicy) { p.Spec.Rollout.Paused = new(false) })
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	same(t, "given in all", len(w.grants(begin)), edge)
	w.awaitEvents("edge-pool", "Normal Paused", "Normal Progressing", "Normal Paused", "Normal Progressing", "Normal Applied")
}

func (w *world) awaitProgrammed(policy string, n int) {
	w.t.Helper()
	w.await("so many nodes of "+policy+" are programmed", func() bool { return int(w.policy(policy).Status.Programmed) == n })
}

// TestMoveToAudit is done when nodes have compared, whatever they have found.
func TestMoveToAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet.behave(always(differs), nodeNames(0, 12)...)
	policy := edgePool("20%")
	policy.Spec.Settings = v1alpha1.WrittenSettings{Enforcement: new(v1alpha1.Audit)}
	begin := w.history.latest()
	w.create(policy)
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	// In any order: an agent that reports at the same moment has its node wait for the next pass.
	same(t, "given", slices.Sorted(slices.Values(w.grants(begin))), nodeNames(0, edge))
	same(t, "programmed", int(w.policy("edge-pool").Status.Programmed), edge)
	w.settled()
}
