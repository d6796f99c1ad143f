package desired

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func (r *rig) mustRestore(g *checkpoint.Restorable) {
	r.t.Helper()
	if used, err := r.Restore(g); err != nil || !used {
		r.t.Fatalf("not restored: %v, %v", used, err)
	}
}

func (r *rig) clusterList(service string) string {
	r.t.Helper()
	svc := r.kernel.Service("shop", service)
	if svc == nil {
		return "none"
	}
	var out []string
	for _, e := range svc.Ports[0].Cluster {
		out = append(out, e.String())
	}
	return strings.Join(out, " ")
}

func TestRestoreInTheSameBoot(t *testing.T) {
	r := newRig(t)
	newer := &dataplane.Service{Name: agenttest.Name("b")} // what the kernel has by now
	leftover := &dataplane.Service{Name: agenttest.Name("left")}
	r.kernel.Plant(newer)
	r.kernel.Plant(leftover)
	g := r.Checkpoint(false)
	r.mustRestore(g)
	r.expectSync("full a b c")
	r.expectKernel("a", "b", "c", "left")
	if r.kernel.Service("shop", "b") != newer {
		t.Error("what may be newer in the kernel was replaced")
	}
	if got := r.clusterList("a"); got != "10.244.1.1:8080 10.244.9.9:8080" {
		t.Errorf("a: %s", got)
	}
	s := r.Snapshot()
	if !r.Health().Eligible || !s.Restored.Active() || s.Own != nil || s.Listed {
		t.Errorf("snapshot: restored %+v, health %+v", s.Restored, r.Health())
	}

	r.kernel.Remove("shop", "a")
	d, err := r.kernel.Verify(context.Background(), r.Verifiable()[dataplane.IPv4], dataplane.VerifyOptions{})
	if err != nil || d.Count != 1 {
		t.Errorf("verification: %v, %v", d, err)
	}
	r.Compared(r.actual.epoch, map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{dataplane.IPv4: {Value: d}}, nil, false)
	r.expectSync("full")
	r.expectKernel("a", "b", "c", "left")

	// The API answers: a is as it was, b has changed, c has gone, d is new.
	writes := r.kernel.Writes()
	a := g.Services[0].DeepCopy()
	a.Generation = 1
	r.SetRules(r.Node(agenttest.EndpointOfA))
	r.expectSync("nothing")
	r.SetServices([]*v1alpha1.ServiceProxyRules{a, r.Service("b", 22), r.Service("d", 4)})
	r.expectSync("full b d")
	r.expectKernel("a", "b", "c", "d", "left")
	if got := r.kernel.Writes() - writes; got != 2 {
		t.Errorf("%d Services written, want b and d", got)
	}
	if s := r.Snapshot(); len(s.Retained) != 1 || s.Restored.Active() {
		t.Errorf("retained %v, restored %+v", s.Retained, s.Restored)
	}
	r.setInventory(agenttest.InventoryOf("shop.a", "shop.b", "shop.d"))
	r.expectSync("full, pruning c")
	r.expectKernel("a", "b", "d")
}

func TestRestoreAfterAReboot(t *testing.T) {
	r := newRig(t)
	g := r.Checkpoint(true)
	r.mustRestore(g)
	r.expectSync("full a b c")
	if got := r.clusterList("a"); got != "10.244.9.9:8080" {
		t.Errorf("a still has an endpoint on this node: %s", got)
	}
	if b := r.prepare(); !b.Partial {
		t.Error("flows would be compared to lists without this node's endpoints")
	}
	// What boot scripts have put back is replaced: its pods are not there.
	r.kernel.Plant(&dataplane.Service{Name: agenttest.Name("a")})
	r.ledger.markFull()
	r.expectSync("full")
	if got := r.clusterList("a"); got != "10.244.9.9:8080" {
		t.Errorf("a: %s", got)
	}

	r.SetRules(r.Node(agenttest.EndpointOfA))
	if r := r.InUse(); !r.Active() || !r.Rebooted {
		t.Errorf("half of what is needed has come, but: %+v", r)
	}
	again := r.Service("a", 1)
	again.UID = g.Services[0].UID
	r.SetServices([]*v1alpha1.ServiceProxyRules{again, r.Service("b", 2), r.Service("c", 3)})
	r.expectSync("full a")
	if got := r.clusterList("a"); got != "10.244.1.1:8080 10.244.9.9:8080" {
		t.Errorf("a, once the API has answered: %s", got)
	}
	if r.InUse().Active() || !r.Health().Eligible {
		t.Errorf("the API has answered, but: %+v, %+v", r.InUse(), r.Health())
	}
}

func TestRestoreTakesOnlyWhatIsLacking(t *testing.T) {
	t.Run("the own object alone", func(t *testing.T) {
		r := newRig(t)
		r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 11)})
		r.MissRules()
		r.mustRestore(r.Checkpoint(false))
		r.expectSync("full a")
		r.expectKernel("a")
		if len(r.catalog.older) > 0 || !r.Snapshot().Restored.Rules || !r.Health().Eligible {
			t.Errorf("old %v, restored %+v", r.catalog.older, r.restored)
		}
		r.SetService(r.Service("b", 2)) // Services go on
		r.expectSync("partial b")
		if r.CompleteSet() != nil {
			t.Error("an own object that the API has not delivered goes into the checkpoint as fresh")
		}
	})
	t.Run("the Services alone", func(t *testing.T) {
		r := newRig(t)
		r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Node.Draining = true }))
		r.mustRestore(r.Checkpoint(false))
		r.expectSync("full a b c")
		if r.Health().Eligible || r.Snapshot().Own == nil {
			t.Error("the Node is drained")
		}
	})
	t.Run("nothing, if all has come", func(t *testing.T) {
		r := running(t)
		if used, err := r.Restore(r.Checkpoint(false)); used || err != nil || r.Lacking() {
			t.Errorf("%v, %v", used, err)
		}
	})
	t.Run("nothing, if the own object is rejected", func(t *testing.T) {
		r := newRig(t)
		r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 99 }))
		if used, _ := r.Restore(r.Checkpoint(false)); used || r.Ready() {
			t.Error("rules that must stay as they are are written")
		}
	})
	t.Run("nothing of another format", func(t *testing.T) {
		r := newRig(t)
		g := r.Checkpoint(false)
		g.Rules.Spec.FormatVersion = 99
		if used, err := r.Restore(g); used || err == nil || r.Ready() {
			t.Errorf("%v, %v", used, err)
		}
		g = r.Checkpoint(false)
		g.Services[1].Spec.FormatVersion = 99
		r.mustRestore(g)
		r.expectSync("full a c")
	})
}

// TestFirstListRetainsWhatItLacks is a restart while a user has deleted objects.
func TestFirstListRetainsWhatItLacks(t *testing.T) {
	r := newRig(t)
	newer := &dataplane.Service{Name: agenttest.Name("b")}
	r.kernel.Plant(newer)
	asked := 0
	r.former = func(int, uint64) *checkpoint.Restorable { asked++; return r.Checkpoint(false) }
	r.SetRules(r.Node())
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("c", 3, agenttest.Released)})
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	r.expectSync("full a b c")
	r.expectKernel("a", "b") // c has ended
	if r.kernel.Service("shop", "b") != newer {
		t.Error("what may be newer in the kernel was replaced")
	}
	if s := r.Snapshot(); len(s.Retained) != 1 || s.Restored.Active() {
		t.Errorf("retained %v, restored %+v", s.Retained, s.Restored)
	}
	r.SetService(r.Service("b", 2)) // it returns as it was
	r.expectSync("full")
	if got := r.clusterList("b"); got != "10.244.1.2:8080 10.244.9.9:8080" {
		t.Errorf("b: %s", got)
	}
	r.setInventory(agenttest.InventoryOf("shop.a", "shop.b"))
	r.expectSync("full, pruning")
}

// TestRemovalEndsWithRestoredRules: they are outdated, and the agent waits for new ones.
func TestRemovalEndsWithRestoredRules(t *testing.T) {
	r := newRig(t)
	r.mustRestore(r.Checkpoint(false))
	r.MissRules()
	policy := v1alpha1.RemovalCleanup
	gone := &v1alpha1.NodeProxy{Spec: v1alpha1.NodeProxySpec{RemovalPolicy: &policy}}
	gone.DeletionTimestamp = &metav1.Time{Time: agenttest.Epoch}
	r.SetProxy(gone)
	r.ClearRemoval("", true)
	r.Removed(nil, RemovedMessage)
	r.SetProxy(&v1alpha1.NodeProxy{})
	if s := r.Snapshot(); r.Health().Eligible || r.Ready() || s.Restored.Rules || s.Removal.Requested {
		t.Errorf("eligible %t, ready %t, restored %+v, removal %+v", r.Health().Eligible, r.Ready(), s.Restored, s.Removal)
	}
	r.SetRules(r.Node())
	if s := r.Snapshot(); r.Ready() || s.Services != 0 || s.Restored.Services {
		t.Errorf("with new rules and without a list: ready %t, %d Services, restored %+v", r.Ready(), s.Services, s.Restored)
	}
	r.SetServices(nil)
	if !r.Health().Eligible || !r.Ready() {
		t.Error("not ready with new rules and a list")
	}
}

func TestGoodSet(t *testing.T) {
	r := newRig(t)
	if r.CompleteSet() != nil {
		t.Error("there is a good set before the first list")
	}
	r = running(t)
	r.DeleteService(r.Service("a", 1)) // retained
	set := r.CompleteSet()
	var names []string
	for _, o := range set.Services {
		names = append(names, o.Name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"shop.a", "shop.b", "shop.c"}, names); diff != "" || set.Rules.Name != "node-1" {
		t.Error(diff, set.Rules)
	}
	r.MissRules() // the last known one stays applied
	if r.CompleteSet() == nil {
		t.Error("none without the own object")
	}
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 99 }))
	if r.CompleteSet() != nil {
		t.Error("there is a checkpoint while the own object is rejected")
	}
}
