package desired

import (
	"context"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestHolding(t *testing.T) {
	t.Run("a deletion holds, a return ends it", func(t *testing.T) {
		r := running(t)
		r.DeleteService(r.Service("a", 1))
		r.expectSync("nothing")
		r.expectKernel("a", "b", "c")
		if s := r.Snapshot(); len(s.Retained) != 1 || !s.RetainedSince.Equal(agenttest.Epoch) {
			t.Errorf("held %v since %v", s.Retained, s.RetainedSince)
		}
		r.SetService(r.Service("a", 9))
		r.expectSync("partial a")
		if s := r.Snapshot(); len(s.Retained) != 0 {
			t.Errorf("still held: %v", s.Retained)
		}
	})
	t.Run("a list without it holds", func(t *testing.T) {
		r := running(t)
		r.SetServices(nil)
		r.expectSync("nothing")
		r.expectKernel("a", "b", "c")
	})
	t.Run("the set before the vanishing does not end it", func(t *testing.T) {
		r := running(t)
		r.DeleteService(r.Service("a", 1))
		r.setInventory(agenttest.InventoryOf("shop.a", "shop.b", "shop.c")) // the former set, again
		r.expectSync("nothing")
		r.expectKernel("a", "b", "c")
	})
	t.Run("the inventory ends it", func(t *testing.T) {
		r := running(t)
		r.DeleteService(r.Service("a", 1))
		r.setInventory(agenttest.InventoryOf("shop.b", "shop.c"))
		r.expectSync("partial a")
		r.expectKernel("b", "c")
	})
	t.Run("a later set does not hide the agreement of an earlier one", func(t *testing.T) {
		r := running(t)
		r.DeleteService(r.Service("a", 1))
		r.clock.SetTime(agenttest.Epoch.Add(time.Second))
		r.SetService(r.Service("d", 4))
		r.clock.SetTime(agenttest.Epoch.Add(30 * time.Second))
		r.setInventory(agenttest.InventoryOf("shop.b", "shop.c")) // written before d came
		r.sync()
		r.expectKernel("b", "c", "d")
	})
	t.Run("only those that had vanished by then", func(t *testing.T) {
		r := running(t)
		r.DeleteService(r.Service("a", 1))
		r.DeleteService(r.Service("b", 2))
		r.setInventory(agenttest.InventoryOf("shop.b", "shop.c")) // a has ended, b has not
		r.sync()
		r.expectKernel("b", "c")
		r.setInventory(agenttest.InventoryOf("shop.c"))
		r.sync()
		r.expectKernel("c")
	})
	t.Run("an unknown inventory ends nothing", func(t *testing.T) {
		r := running(t)
		r.SetServices(nil)
		r.setInventory(nil)
		r.clock.SetTime(agenttest.Epoch.Add(time.Hour))
		r.SetService(r.Service("d", 4))
		r.sync()
		r.expectKernel("a", "b", "c", "d")
	})
	t.Run("an empty inventory is not an unknown one", func(t *testing.T) {
		r := running(t)
		r.SetServices(nil)
		r.setInventory(agenttest.InventoryOf())
		r.sync()
		r.expectKernel()
	})
	t.Run("held rules are repaired", func(t *testing.T) {
		r := running(t)
		r.DeleteService(r.Service("a", 1))
		r.kernel.Remove("shop", "a")
		rulesets := r.Verifiable()
		d, err := r.kernel.Verify(context.Background(), rulesets[dataplane.IPv4], dataplane.VerifyOptions{})
		if err != nil || !r.Compared(r.actual.epoch, map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{dataplane.IPv4: {Value: d}}, nil, false) {
			t.Fatalf("verification sees nothing: %v, %v", d, err)
		}
		if s := r.Snapshot(); s.Difference.Count != 1 {
			t.Errorf("difference before the repair: %v", s.Difference)
		}
		r.expectSync("full, pruning")
		r.expectKernel("a", "b", "c")
		if s := r.Snapshot(); s.Difference.Count != 0 {
			t.Errorf("difference after the repair: %v", s.Difference)
		}
	})
}

func TestReleased(t *testing.T) {
	t.Run("by an update", func(t *testing.T) {
		r := running(t)
		r.SetService(r.Service("a", 1, agenttest.Released))
		r.expectSync("partial a")
		r.expectKernel("b", "c")
		r.DeleteService(r.Service("a", 1, agenttest.Released))
		r.expectSync("nothing")
	})
	t.Run("by the deletion's last state alone", func(t *testing.T) {
		r := running(t)
		r.DeleteService(r.Service("a", 1, agenttest.Released))
		r.expectSync("partial a")
		r.expectKernel("b", "c")
	})
	t.Run("while the agent was away", func(t *testing.T) {
		r := newRig(t)
		r.kernel.Plant(&dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: "a"}})
		r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1, agenttest.Released), r.Service("b", 2)})
		r.SetRules(r.Node())
		r.expectSync("full a b")
		r.expectKernel("b")
	})
	t.Run("a held one is released late", func(t *testing.T) {
		r := running(t)
		r.DeleteService(r.Service("a", 1))
		r.SetService(r.Service("a", 1, agenttest.Released))
		r.sync()
		r.expectKernel("b", "c")
	})
	t.Run("in a list", func(t *testing.T) {
		r := running(t)
		r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1, agenttest.Released), r.Service("b", 2), r.Service("c", 3)})
		r.sync()
		r.expectKernel("b", "c")
	})
}
