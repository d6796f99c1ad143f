package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/messages"
)

// proxy makes a NodeProxy with the inventory of Services.
func proxy(services ...string) *v1alpha1.NodeProxy {
	o := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}
	o.Status.Inventory = agenttest.InventoryOf(services...)
	return o
}

// deleted is one that is being deleted with a policy.
func deleted(policy v1alpha1.RemovalPolicy) *v1alpha1.NodeProxy {
	o := proxy("shop.a")
	o.Spec.RemovalPolicy = &policy
	o.DeletionTimestamp, o.Finalizers = &metav1.Time{Time: agenttest.Epoch}, []string{v1alpha1.FinalizerCleanup}
	return o
}

// see lets the agent see the NodeProxy.
func (r ownershipRig) see(o *v1alpha1.NodeProxy) {
	r.rig.SetProxy(o)
	r.changed()
	after(time.Second)
}

// expect compares what the kernel has and the reason of Programmed, whose
// message must contain text.
func (r ownershipRig) expect(t *testing.T, when, reason, text string, services ...string) {
	t.Helper()
	if diff := cmp.Diff(services, r.kernel.Services()); diff != "" {
		t.Errorf("%s: kernel (-want +got):\n%s", when, diff)
	}
	if got, message := r.condition(); got != reason || !strings.Contains(message, text) {
		t.Errorf("%s: %s: %s; want %s: …%s…", when, got, message, reason, text)
	} else {
		messages.Check(t, strings.TrimSuffix(message, ".")+".") // the status ends it
	}
}

func TestRemoval(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		r.see(proxy("shop.a"))
		r.expect(t, "initially", "Programmed", "", "shop/a")
		owned := r.owner.Context()
		r.see(deleted(v1alpha1.RemovalCleanup))
		r.expect(t, "deleted", "Removed", "removed from this node")
		if owned.Err() == nil || r.owner.MayWrite() {
			t.Error("the proxy's ports stay open")
		}
		if status := statusOf(r.Agent, nil); status.Services != 0 || status.Mode != "" || status.Families != nil || status.AppliedResourceVersion != "" || status.Kernel != nil {
			t.Errorf("the status reports rules: %+v", status)
		}

		writes := r.kernel.Writes()
		r.rig.SetService(r.rig.Service("b", 2))
		r.rig.SetRules(r.rig.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.SettingsRevision = "rev-2" }))
		r.changed()
		r.loop.VerifySoon()
		after(time.Hour)
		r.expect(t, "whatever changes", "Removed", "")
		if r.kernel.Writes() != writes {
			t.Error("the kernel was written")
		}
		expectLivez(t, r.Agent, "idle", 200, 200)
		if p := r.store.Snapshot().OldestPending; !p.IsZero() {
			t.Errorf("a change waits since %v for what is not programmed any more", p)
		}

		r.rig.SetProxy(nil)
		r.rig.DeleteService(r.rig.Service("a", 1))
		r.changed()
		after(time.Hour)
		if retained := r.store.Snapshot().Retained; len(retained) > 0 {
			t.Errorf("retained, though removed: %v", retained)
		}
		r.expect(t, "the NodeProxy is gone", "Removed", "")

		r.see(proxy("shop.b"))
		r.expect(t, "there is one again", "Programmed", "", "shop/b")
		if got := r.store.Snapshot().Applied.SettingsRevision; got != "rev-2" {
			t.Errorf("programmed by settings %s", got)
		}
	})
}

// TestRemovalIsNotOfTheNext installation: what is known of the former one does not
// stand in for what the next has not rendered yet.
func TestRemovalIsNotOfTheNext(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		r.see(deleted(v1alpha1.RemovalCleanup))
		r.rig.MissRules()
		r.rig.DeleteService(r.rig.Service("a", 1))
		r.see(nil)
		r.kernel.Plant(combined("b"))
		next := proxy()
		next.Status.Inventory = nil
		r.see(next)
		r.expect(t, "nothing is rendered", "Pending", "", "shop/b")
		r.rig.SetService(r.rig.Service("c", 3))
		r.rig.SetRules(r.rig.Node())
		r.changed()
		after(time.Second)
		r.expect(t, "while it is rendered", "Programmed", "", "shop/b", "shop/c")
		r.see(proxy("shop.c"))
		r.expect(t, "list and inventory agree", "Programmed", "", "shop/c")
	})
}

func TestRemovalWithRetain(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		r.see(deleted(v1alpha1.RemovalRetain))
		r.see(nil)
		after(time.Minute)
		r.expect(t, "deleted", "Retained", "", "shop/a")
		r.rig.DeleteService(r.rig.Service("a", 1))
		r.changed()
		after(time.Minute)
		r.expect(t, "with its objects", "Retained", "", "shop/a")
	})
}

// TestRemovalSeenAtItsEnd: an agent that could not read the API sees the NodeProxy
// only as it goes.
func TestRemovalSeenAtItsEnd(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		r.rig.DeleteProxy(deleted(v1alpha1.RemovalCleanup))
		r.changed()
		after(time.Second)
		r.expect(t, "gone", "Removed", "")
	})
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		o := deleted(v1alpha1.RemovalCleanup)
		o.DeletionTimestamp = nil // no finalizer, so that nothing waits for nodes
		r.rig.DeleteProxy(o)
		r.changed()
		after(time.Minute)
		r.expect(t, "gone without a trace", "Retained", "", "shop/a")
	})
}

func TestRemovalThatFails(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		after(time.Second)
		r.kernel.Fail(errors.New("another process holds the lock"))
		r.see(deleted(v1alpha1.RemovalCleanup))
		r.expect(t, "failing", "Failed", "removed from this node: IPv4: another process holds the lock. The agent retries.", "shop/a")
		r.kernel.Fail(nil)
		after(longestRetry)
		r.expect(t, "repaired", "Removed", "")
		if lines := r.log.With("Could not remove"); len(lines) != 1 {
			t.Errorf("the same failure is logged %d times", len(lines))
		}
	})
}

// TestRemovalIsCalledOff by another policy: where it is not done, the rules stay.
func TestRemovalIsCalledOff(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		after(time.Second)
		r.kernel.Fail(errors.New("another process holds the lock"))
		r.see(deleted(v1alpha1.RemovalCleanup))
		r.expect(t, "failing", "Failed", "", "shop/a")
		r.rig.SetService(r.rig.Service("b", 2))
		r.kernel.Fail(nil)
		r.see(deleted(v1alpha1.RemovalRetain))
		after(longestRetry)
		r.expect(t, "called off", "Programmed", "", "shop/a", "shop/b")
	})
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		r.see(deleted(v1alpha1.RemovalCleanup))
		r.see(deleted(v1alpha1.RemovalRetain))
		after(time.Hour)
		r.expect(t, "too late", "Removed", "")
	})
}

// TestRemovalIsCalledOffMeanwhile: the rules that it still removes are written again.
func TestRemovalIsCalledOffMeanwhile(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	mustSync(t, a)
	r.SetProxy(deleted(v1alpha1.RemovalCleanup))
	r.ClearRemoval("", true)
	a.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: &cleaning{kernel, func() {
		r.SetProxy(proxy("shop.a"))
		hold(t, a)
	}}})
	mustSync(t, a)
	if got := a.store.CurrentRemoval(); got != (desired.Removal{}) {
		t.Errorf("what was called off is %+v", got)
	}
	mustSync(t, a)
	if diff := cmp.Diff([]string{"shop/a"}, kernel.Services()); diff != "" {
		t.Errorf("kernel (-want +got):\n%s", diff)
	}
}

// cleaning is a data plane on which something happens while it is cleaned.
type cleaning struct {
	*dataplanetest.Fake
	meanwhile func()
}

func (c *cleaning) Cleanup(ctx context.Context, o dataplane.CleanupOptions) error {
	c.meanwhile()
	return c.Fake.Cleanup(ctx, o)
}

// TestRemovalKnowsWhatIsExcluded, also where nothing has been applied since the
// start.
func TestRemovalKnowsWhatIsExcluded(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		kernel := &excluding{Fake: dataplanetest.NewFake()}
		synctest.Wait() // nothing reads the fanout meanwhile
		r.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: kernel})
		r.rig.SetRules(r.rig.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
			s.Settings.IPVS = &v1alpha1.IPVSSettings{ExcludeCIDRs: []string{"10.0.0.0/8"}}
		}))
		r.see(deleted(v1alpha1.RemovalCleanup))
		after(time.Second)
		if diff := cmp.Diff([]string{"10.0.0.0/8"}, kernel.cleaned); diff != "" {
			t.Errorf("cleaned but for (-want +got):\n%s", diff)
		}
	})
}

// excluding is a data plane that notes what to exclude when it is cleaned.
type excluding struct {
	*dataplanetest.Fake
	cleaned []string
}

func (e *excluding) Cleanup(ctx context.Context, o dataplane.CleanupOptions) error {
	e.cleaned = nil
	for _, p := range o.PreservedRanges {
		e.cleaned = append(e.cleaned, p.String())
	}
	return e.Fake.Cleanup(ctx, o)
}

func TestRemovalBesideAnotherProxy(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		after(time.Second)
		r.ports.become("kube-proxy answers")
		after(6 * time.Second)
		r.see(deleted(v1alpha1.RemovalCleanup))
		r.expect(t, "it runs", "Removed", "another proxy is active on it (kube-proxy answers)", "shop/a")
		r.ports.become("")
		after(time.Hour)
		r.expect(t, "it has stopped", "Removed", "another proxy is active", "shop/a")
	})
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		after(time.Second)
		r.ports.become("kube-proxy answers")
		after(6 * time.Second)
		r.ports.become("")
		after(2 * time.Second)
		r.see(deleted(v1alpha1.RemovalCleanup))
		r.expect(t, "it was there a moment ago", "Pending", "once another proxy (kube-proxy answers) has not been detected for 10s", "shop/a")
		after(10 * time.Second)
		r.expect(t, "it is quiet", "Removed", "removed from this node")
	})
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		r.see(deleted(v1alpha1.RemovalCleanup))
		r.ports.become("kube-proxy answers")
		after(time.Minute)
		r.expect(t, "it comes afterwards", "Removed", "removed from this node")
		if c := meta.FindStatusCondition(statusOf(r.Agent, nil).Conditions, v1alpha1.ConditionConflictingProxy); c != nil {
			t.Errorf("who has nothing to write has no conflict: %+v", c)
		}
	})
}

// TestRemovalMeetsAProxyThatHasJustCome, between the check that cleared it and the
// removal itself.
func TestRemovalMeetsAProxyThatHasJustCome(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	spotsOf(a).set(func(s *spots) { s.standing = "chain KUBE-PROXY-CANARY" })
	kernel.Plant(combined("a"))
	r.SetProxy(deleted(v1alpha1.RemovalCleanup))
	if !r.ClearRemoval("", true) {
		t.Fatal("the removal is not due")
	}
	mustSync(t, a)
	if c := status.ProgrammedCondition(a.refresh()); len(kernel.Services()) != 1 || c.Reason != "Removed" || !strings.Contains(c.Message, "KUBE-PROXY-CANARY") {
		t.Errorf("kernel %v, condition %+v", kernel.Services(), c)
	}
}

func TestRemovalWithAudit(t *testing.T) {
	for name, own := range map[string]bool{"of the node": true, "of the NodeProxy, the node's own being unknown": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, kernel, log := newAgent(t, (&answers{list: []string{""}}).probe)
				r := &rig{Store: a.store, t: t, Objects: agenttest.Objects{Version: 10}}
				r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
				o := deleted(v1alpha1.RemovalCleanup)
				if own {
					r.SetRules(r.Node(inAudit))
				} else {
					r.MissRules()
					o.Spec.Settings = &v1alpha1.WrittenSettings{Enforcement: new(v1alpha1.Audit)}
				}
				kernel.Plant(combined("a"))
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { a.own(ctx) })
				wg.Go(func() { a.loop.Run(ctx) })
				ownershipRig{Agent: a, rig: r, kernel: kernel, log: log}.see(o)
				ownershipRig{Agent: a, rig: r, kernel: kernel, log: log}.expect(t, "deleted", "Removed", "enforcement is Audit", "shop/a")
				audits := kernel.Audits()
				after(time.Hour)
				if kernel.Audits() != audits {
					t.Error("comparisons go on")
				}
				stop()
				wg.Wait()
			})
		})
	}
}

// TestRemovalEndsUDPFlows that were translated, and no others.
func TestRemovalEndsUDPFlows(t *testing.T) {
	const one, raw = "10.244.1.1:53", "10.96.0.9:53"
	withFlows(t, func(t *testing.T, a *Agent, r *rig, _ *dataplanetest.Fake, table *flowTable) {
		mustSync(t, a)
		table.add(one, raw)
		r.SetProxy(deleted(v1alpha1.RemovalCleanup))
		table.expect(t, "before the rules are gone", one, raw)
		r.ClearRemoval("", true)
		mustSync(t, a)
		table.expect(t, "after", raw)
	})
}

// TestReadyOnceRemoved: there is nothing more to do for the agent.
func TestReadyOnceRemoved(t *testing.T) {
	a, r, _, _ := owningAgent(t)
	b := &agenttest.Board{Stored: a.store.Snapshot().Own}
	a.writer = status.NewWriter(a.options.Clock, b.Write, a.log, a.started)
	r.SetProxy(deleted(v1alpha1.RemovalCleanup))
	expectReady(t, a, "before", "about to be removed")
	r.ClearRemoval("", true)
	mustSync(t, a)
	s, f := a.refresh()
	a.writer.Write(t.Context(), s, f)
	a.noteReported(s, f)
	expectReady(t, a, "reported", "")
}

// combined is what the kernel may have of shop/name.
func combined(service string) *dataplane.Service {
	return &dataplane.Service{Name: agenttest.Name(service)}
}
