package simulated

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func node(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func (w *world) rules(name string) *v1alpha1.NodeProxyRules {
	if r := find[*v1alpha1.NodeProxyRules](w.history, name); r != nil {
		return r
	}
	return &v1alpha1.NodeProxyRules{}
}

// inIPVS are the nodes that carry settings of mode IPVS.
func (w *world) inIPVS() []string {
	return w.carrying(func(s *v1alpha1.ProxySettings) bool { return *s.Mode == v1alpha1.ModeIPVS })
}

// awaitGiven waits until so many nodes more have been given something.
func (w *world) awaitGiven(since uint64, n int) {
	w.t.Helper()
	w.await("so many nodes are given it", func() bool { return len(w.grants(since)) >= n })
}

// TestNodesComeAndGoMeanwhile: nodes are added, removed, cordoned, replaced, moved to
// another pool, and lose their agents, while a change is on its way.
func TestNodesComeAndGoMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begin := w.history.latest()
	w.fleet.behave(slow(quickly), nodeNames(10, 20)...)
	dead := inTurn()[4]
	w.fleet.vanish(dead) // while it is given the change, or before
	w.create(edgePool("4"))
	w.awaitGiven(begin, 6)

	w.addNode("node-new", "edge", 0) // it is given what it is to have at once
	w.await("the new node has the settings", func() bool { return slices.Contains(w.inIPVS(), "node-new") })
	moved := w.history.latest()
	for _, name := range []string{"node-05", "node-19"} { // one cordoned before its turn, one late
		edit(w, node(name), func(n *corev1.Node) { n.Spec.Unschedulable = true })
	}
	edit(w, node("node-40"), func(n *corev1.Node) { n.Labels["pool"] = "edge" })
	edit(w, node("node-28"), func(n *corev1.Node) { n.Labels["pool"] = "core" })
	edit(w, node("node-00"), func(n *corev1.Node) { n.Labels["pool"] = "core" }) // it has it already
	w.delete(node("node-29"))
	w.fleet.vanish("node-29")
	w.delete(node("node-18")) // replaced under the same name
	w.addNode("node-18", "edge", 1)
	w.awaitGiven(moved, 5)

	w.await("of all others only the node without an agent lacks the change", func() bool {
		p := w.policy("edge-pool")
		return p.Status.Nodes == 29 && p.Status.Updated == 29 && p.Status.Programmed == 28
	})
	if w.ready("edge-pool") != v1alpha1.ReasonProgressing || w.policy("edge-pool").Status.Examples[0].Name != dead {
		t.Errorf("Ready is %s, examples %+v", w.ready("edge-pool"), w.policy("edge-pool").Status.Examples)
	}
	w.delete(node(dead))
	w.awaitReady("edge-pool", v1alpha1.ReasonApplied)
	w.settled()
	same(t, "nodes", int(w.policy("edge-pool").Status.Nodes), 28)
	same(t, "node-28, which left the pool before its turn, is in mode IPVS", slices.Contains(w.inIPVS(), "node-28"), false)
	same(t, "node-00, which left it afterwards, is in mode IPVS", slices.Contains(w.inIPVS(), "node-00"), false)
	for _, name := range []string{"node-05", "node-19"} {
		same(t, "writes to the rules of "+name+", which was cordoned", w.history.writes(begin)[name], 1)
	}
}

// TestChangeOfNodeProxy: by its own budget, over all nodes. Where nothing is at risk it
// arrives at once, and nothing waits for it, or for a Node that is gone.
func TestChangeOfNodeProxy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.fleet.behave(always(conflicts), "node-33", "node-44")
	w.fleet.vanish("node-45")
	w.delete(node("node-45"))
	w.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-mute", Labels: map[string]string{corev1.LabelOSStable: "linux"}}})
	w.await("another proxy is active on two nodes, one is gone, and one never reports", func() bool {
		conflict := func(name string) bool {
			return meta.IsStatusConditionTrue(w.rules(name).Status.Conditions, v1alpha1.ConditionConflictingProxy)
		}
		return conflict("node-33") && conflict("node-44") && w.rules("node-45").Annotations[v1alpha1.AnnotationNodeAbsentSince] != "" &&
			w.rules("node-mute").Spec.SettingsRevision != ""
	})
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	edit(w, np, func(np *v1alpha1.NodeProxy) {
		np.Spec.Rollout = &v1alpha1.RolloutSettings{MaxUnavailable: new(intstr.FromString("20%"))}
	})
	begin := w.history.latest()
	edit(w, np, func(np *v1alpha1.NodeProxy) {
		np.Spec.Settings = &v1alpha1.WrittenSettings{Sync: &v1alpha1.SyncSettings{VerifyIntervalSeconds: new(int32(90))}}
	})
	changed := func(s *v1alpha1.ProxySettings) bool { return *s.Sync.VerifyIntervalSeconds == 90 }
	atOnce := []string{"node-33", "node-44", "node-mute"} // what node-45 is to have depends on its labels
	w.await("where nothing is at risk it arrives", func() bool {
		carrying := w.carrying(changed)
		return !slices.ContainsFunc(atOnce, func(name string) bool { return !slices.Contains(carrying, name) })
	})
	w.await("all nodes are given it", func() bool { return len(w.carrying(changed)) == size })
	w.settled()
	same(t, "given one after the other", len(w.grants(begin)), size-3)
	w.await("what was given is applied", func() bool {
		return !slices.ContainsFunc(nodeNames(0, 30), func(name string) bool { return !available(w.rules(name)) })
	})

	w.fleet.behave(always(works), "node-33", "node-44")
	w.delete(node("node-mute"))
	w.nodeProxyReady(v1alpha1.ReasonAllProgrammed)
	edit(w, np, func(np *v1alpha1.NodeProxy) {
		np.Spec.Rollout.Paused, np.Spec.Settings.Sync.VerifyIntervalSeconds = new(true), new(int32(45))
	})
	w.nodeProxyReady(v1alpha1.ReasonPaused)
	w.fleet.behave(slow(quickly), nodeNames(0, 10)...)
	edit(w, np, func(np *v1alpha1.NodeProxy) { np.Spec.Rollout.Paused = new(false) })
	w.nodeProxyReady(v1alpha1.ReasonProgressing)
	w.nodeProxyReady(v1alpha1.ReasonAllProgrammed)
	w.settled()
}

// nodeProxyReady waits until Ready of NodeProxy has a reason.
func (w *world) nodeProxyReady(reason string) {
	w.t.Helper()
	w.await("Ready of NodeProxy has reason "+reason, func() bool {
		np := find[*v1alpha1.NodeProxy](w.history, v1alpha1.NodeProxyName)
		c := meta.FindStatusCondition(np.Status.Conditions, v1alpha1.ConditionReady)
		return c != nil && c.Reason == reason
	})
}

// TestSettingsEditedByHand are put back at once, whatever is paused or stopped, and are
// no policy's change.
func TestSettingsEditedByHand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policy := edgePool("3")
	policy.Spec.Rollout.ProgressDeadlineSeconds = new(int32(2))
	w.fleet.behave(with(v1alpha1.ModeIPVS, rejects), "node-00", "node-10", "node-20")
	w.create(policy)
	w.awaitReady("edge-pool", v1alpha1.ReasonRolloutHalted)
	given := map[string]string{}
	hand := func(name string, change func(*v1alpha1.NodeProxyRules)) {
		given[name] = w.rules(name).Spec.SettingsRevision
		w.history.byHandOf(func() client.Object {
			r := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}}
			edit(w, r, change)
			return r
		})
	}
	hand("node-20", func(r *v1alpha1.NodeProxyRules) { // one that has not applied it
		r.Spec.Settings.Mode, r.Spec.SettingsRevision = new(v1alpha1.ModeIPTables), "theirs"
	})
	hand("node-35", func(r *v1alpha1.NodeProxyRules) { r.Spec.Policies = []string{"theirs"} })
	hand("node-36", func(r *v1alpha1.NodeProxyRules) { r.Spec.Settings.Mode = new(v1alpha1.ModeIPVS) })
	hand("node-37", func(r *v1alpha1.NodeProxyRules) { r.Spec.SettingsRevision = "theirs" })
	w.await("all of it is put back", func() bool {
		for name, revision := range given {
			r := w.rules(name)
			mode := v1alpha1.ModeIPTables
			if name == "node-20" {
				mode = v1alpha1.ModeIPVS
			}
			if r.Spec.SettingsRevision != revision || *r.Spec.Settings.Mode != mode || slices.Contains(r.Spec.Policies, "theirs") {
				return false
			}
		}
		return true
	})
	w.awaitReady("edge-pool", v1alpha1.ReasonRolloutHalted)
	same(t, "nodes in mode IPVS", w.inIPVS(), []string{"node-00", "node-10", "node-20"})
}
