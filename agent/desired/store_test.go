package desired

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// rig is a store with a kernel behind it, and a clock that the test moves.
type rig struct {
	*Store
	agenttest.Objects
	t        *testing.T
	clock    *clocktesting.FakePassiveClock
	kernel   *dataplanetest.Fake
	problems []string
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, clock: clocktesting.NewFakePassiveClock(agenttest.Epoch), kernel: dataplanetest.NewFake()}
	r.Store = New(Options{Clock: r.clock, NodeName: "node-1", Families: []dataplane.Family{dataplane.IPv4}, Report: func(name dataplane.ServiceName, problem string) {
		r.problems = append(r.problems, name.String()+": "+problem)
	}})
	return r
}

// setInventory has a NodeProxy show it; nil: there is no NodeProxy.
func (r *rig) setInventory(inventory *v1alpha1.Inventory) {
	if inventory == nil {
		r.SetProxy(nil)
		return
	}
	r.SetProxy(&v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Inventory: inventory}})
}

// prepare is what the sync loop does before an Apply.
func (s *Store) prepare() Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mode.Rejection == nil && s.mode.Lacks == "" {
		s.mode.Mode = *s.own.settings.Mode
	}
	s.combineDirty()
	return s.takeBatch()
}

// sync does what the sync loop does, and returns what was dirty and how.
func (r *rig) sync() string {
	r.t.Helper()
	if !r.Ready() {
		return "not ready"
	}
	b := r.prepare()
	reported := agenttest.Describe(b.Rulesets[dataplane.IPv4])
	outcomes := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: r.kernel}).Apply(context.Background(), b.Rulesets)
	r.Commit(b, outcomes, &v1alpha1.SyncReport{})
	return reported
}

func (r *rig) expectSync(want string) {
	r.t.Helper()
	if got := r.sync(); got != want {
		r.t.Errorf("sync: got %q, want %q", got, want)
	}
}

func (r *rig) expectKernel(want ...string) {
	r.t.Helper()
	var got []string
	for _, name := range r.kernel.Services() {
		got = append(got, strings.TrimPrefix(name, "shop/"))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("kernel (-want +got):\n%s", diff)
	}
}

// running returns a rig that has Services a, b and c and has agreed.
func running(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("b", 2), r.Service("c", 3)})
	r.setInventory(agenttest.InventoryOf("shop.a", "shop.b", "shop.c"))
	r.SetRules(r.Node())
	r.expectSync("full, pruning a b c")
	return r
}

func TestNothingBeforeBothLists(t *testing.T) {
	r := newRig(t)
	r.expectSync("not ready")
	r.SetRules(r.Node())
	r.SetService(r.Service("a", 1)) // cannot come before a list, but must do no harm
	r.expectSync("not ready")
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("b", 2)})
	r.expectSync("full a b")
	r.expectKernel("a", "b")
	r.expectSync("nothing")
	r.SetService(r.Service("c", 3))
	r.expectSync("partial c")

	r2 := newRig(t)
	r2.SetServices(nil)
	r2.MissRules()
	r2.expectSync("not ready")
}

func TestPruneWaitsForAgreement(t *testing.T) {
	r := newRig(t)
	r.kernel.Plant(&dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: "left"}})
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
	r.SetRules(r.Node())
	r.expectSync("full a")
	r.expectKernel("a", "left")
	r.setInventory(agenttest.InventoryOf("shop.a", "shop.b"))
	r.expectSync("nothing")
	r.SetService(r.Service("b", 2)) // now they agree
	r.expectSync("full, pruning b")
	r.expectKernel("a", "b")
}

func TestEmptyInventoryDoesNotConfirmAFirstList(t *testing.T) {
	r := newRig(t)
	r.kernel.Plant(&dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: "left"}})
	r.setInventory(agenttest.InventoryOf())
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
	r.SetRules(r.Node())
	r.expectSync("full a")
	r.expectKernel("a", "left")
}

func TestOnlyWhatChangesIsDirty(t *testing.T) {
	r := running(t)
	local := func(name, endpoint string) v1alpha1.ServiceLocalEndpoints {
		return v1alpha1.ServiceLocalEndpoints{Namespace: "shop", Name: name, Ports: []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: []string{endpoint}}}}
	}
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
		s.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{local("a", "10.244.1.1:8080"), local("b", "10.244.1.2:8080")}
	}))
	r.expectSync("partial a b")
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
		s.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{local("a", "10.244.1.1:8080"), local("b", "10.244.9.9:8080")}
	}))
	r.expectSync("partial b")
	if s := r.Snapshot(); s.Endpoints != 4 || s.Local != 2 {
		t.Errorf("endpoints %d, local %d, want 4 and 2", s.Endpoints, s.Local)
	}
	r.SetRules(r.Node())
	r.expectSync("partial a b")
	if s := r.Snapshot(); s.Local != 0 || s.Services != 3 {
		t.Errorf("services %d, local %d, want 3 and 0", s.Services, s.Local)
	}

	same := r.Service("a", 1)
	r.SetService(same)
	r.expectSync("nothing") // rendered again, nothing new in it
	if s := r.Snapshot(); s.Applied.Version != same.ResourceVersion {
		t.Errorf("applied version %s, want %s", s.Applied.Version, same.ResourceVersion)
	}

	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Masquerade.Bit = new(int32(15)) }))
	r.expectSync("full, pruning")
	if got := *r.kernel.Node().Settings.Masquerade.Bit; got != 15 {
		t.Errorf("masquerade bit %d", got)
	}
	if got := fmt.Sprint(r.kernel.Node().Addresses, r.kernel.Node().PodCIDRs); got != "[192.0.2.21] [10.244.1.0/24]" {
		t.Errorf("node facts of the family: %s", got)
	}
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
		s.Settings.Masquerade.Bit = new(int32(15))
		s.SettingsRevision = "rev-2"
	}))
	r.expectSync("nothing")
	if s := r.Snapshot(); s.Applied.SettingsRevision != "rev-2" {
		t.Errorf("settings revision %s is not echoed", s.Applied.SettingsRevision)
	}
}

func TestZoneChangeSelectsAgain(t *testing.T) {
	r := newRig(t)
	hinted := func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.Ports[0].Endpoints = []v1alpha1.EndpointGroup{
			{State: "Ready", Zones: []string{"a"}, Addresses: []string{"10.244.1.1:80"}},
			{State: "Ready", Zones: []string{"b"}, Addresses: []string{"10.244.2.1:80"}}}
	}
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1, hinted), r.Service("b", 2)})
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Node.Zone = "a" }))
	r.expectSync("full a b")
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Node.Zone = "b" }))
	r.expectSync("partial a")
	if got := r.kernel.Service("shop", "a").Ports[0].Cluster[0].String(); got != "10.244.2.1:80" {
		t.Errorf("endpoint %s", got)
	}
}

func TestFailureRetainsDirtyServices(t *testing.T) {
	r := running(t)
	applied := r.Snapshot().Applied.Version
	r.kernel.Fail(errors.New("locked"))
	r.clock.SetTime(agenttest.Epoch.Add(5 * time.Second))
	r.SetService(r.Service("a", 9))
	r.expectSync("partial a")
	r.clock.SetTime(agenttest.Epoch.Add(8 * time.Second))
	r.SetService(r.Service("b", 8))
	r.expectSync("full, pruning a b")
	s := r.Snapshot()
	if !s.OldestPending.Equal(agenttest.Epoch.Add(5*time.Second)) || s.Err == nil || s.Applied.Version != applied {
		t.Errorf("pending since %v, error %v, applied %s", s.OldestPending, s.Err, s.Applied.Version)
	}
	r.kernel.Fail(nil)
	r.expectSync("full, pruning a b")
	if s := r.Snapshot(); !s.OldestPending.IsZero() || s.Err != nil || s.Applied.Version == applied {
		t.Errorf("after success: pending since %v, error %v, applied %s", s.OldestPending, s.Err, s.Applied.Version)
	}
}

func TestChangesDuringAnApplyAreNotLost(t *testing.T) {
	r := running(t)
	r.SetService(r.Service("a", 9))
	b := r.prepare()
	r.clock.SetTime(agenttest.Epoch.Add(3 * time.Second))
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Masquerade.Bit = new(int32(15)) }))
	r.SetService(r.Service("b", 8))
	fanout := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: r.kernel})
	r.Commit(b, fanout.Apply(context.Background(), b.Rulesets), nil)
	if s := r.Snapshot(); !s.OldestPending.Equal(agenttest.Epoch.Add(3 * time.Second)) {
		t.Errorf("pending since %v", s.OldestPending)
	}
	r.expectSync("full, pruning b")
}

func TestUnknownFormat(t *testing.T) {
	unknown := func(s *v1alpha1.ServiceProxyRulesSpec) { s.FormatVersion = 3 }
	t.Run("of what policies shape", func(t *testing.T) {
		r := running(t)
		r.SetService(r.Service("a", 9, func(s *v1alpha1.ServiceProxyRulesSpec) { s.Policies = []string{"closed"} }))
		r.expectSync("partial a")
		r.SetService(r.Service("a", 10, unknown))
		if s := r.Snapshot(); len(s.Rejected) != 1 || len(s.Shaped) != 1 {
			t.Errorf("rejected %v, of these shaped %v", s.Rejected, s.Shaped)
		}
	})
	t.Run("keeps the last state that was understood", func(t *testing.T) {
		r := running(t)
		r.SetService(r.Service("a", 9, unknown))
		r.expectSync("nothing")
		if s := r.Snapshot(); len(s.Rejected) != 1 || s.Services != 2 || len(s.Shaped) != 0 {
			t.Errorf("rejected %v, of these shaped %v, services %d", s.Rejected, s.Shaped, s.Services)
		}
		r.SetService(r.Service("a", 9))
		r.expectSync("partial a")
		if s := r.Snapshot(); len(s.Rejected) != 0 {
			t.Errorf("rejected %v", s.Rejected)
		}
	})
	t.Run("does not take its rules for leftovers", func(t *testing.T) {
		r := newRig(t)
		r.kernel.Plant(&dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: "a"}})
		r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1, unknown), r.Service("b", 2)})
		r.setInventory(agenttest.InventoryOf("shop.a", "shop.b"))
		r.SetRules(r.Node())
		r.expectSync("full b")
		r.expectKernel("a", "b")
	})
}

func TestOddNames(t *testing.T) {
	r := running(t)
	odd := r.Service("x", 9)
	odd.Name = "no-dot"
	r.SetService(odd)
	r.expectSync("nothing")
	if len(r.problems) != 1 || !strings.Contains(r.problems[0], `"no-dot"`) {
		t.Errorf("problems: %q", r.problems)
	}
	r.DeleteService(odd)
	r.expectSync("nothing")
}

func TestOddNamesAreReportedOnce(t *testing.T) {
	r := newRig(t)
	odd := func(name string) *v1alpha1.ServiceProxyRules {
		o := r.Service("x", 1)
		o.Name = name
		return o
	}
	expect := func(when string, want int) {
		t.Helper()
		if len(r.problems) != want {
			t.Errorf("%s: reported %d times, want %d: %q", when, len(r.problems), want, r.problems)
		}
	}
	r.SetServices([]*v1alpha1.ServiceProxyRules{odd("one"), odd("two")})
	expect("two of them", 2)
	r.SetService(odd("one"))
	r.SetServices([]*v1alpha1.ServiceProxyRules{odd("one")})
	expect("the same again", 2)
	r.SetService(odd("two"))
	expect("one that was gone from the list", 3)
	r.DeleteService(odd("one"))
	r.SetService(odd("one"))
	expect("one that was deleted", 4)
}

func TestProblemsAreReportedOnce(t *testing.T) {
	r := running(t)
	bad := func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"nonsense"} }
	r.SetService(r.Service("a", 1, bad))
	r.sync()
	r.SetService(r.Service("a", 5, bad))
	r.sync()
	if len(r.problems) != 1 || !strings.Contains(r.problems[0], "shop/a: spec.externalIPs[0]") {
		t.Errorf("problems: %q", r.problems)
	}
	r.SetService(r.Service("a", 1))
	r.sync()
	r.SetService(r.Service("a", 1, bad))
	r.sync()
	if len(r.problems) != 2 {
		t.Errorf("problems: %q", r.problems)
	}
}

func TestInvalidObjectLeavesTheAcceptedOneApplied(t *testing.T) {
	r := running(t)
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Mode = new(v1alpha1.ProxyMode("Magic")) }))
	r.SetService(r.Service("d", 4))
	r.expectSync("not ready")
	if s := r.Snapshot(); s.Rejection == nil || s.Applied.SettingsRevision != "rev-1" {
		t.Errorf("rejection %v, applied revision %s", s.Rejection, s.Applied.SettingsRevision)
	}
	r.SetRules(r.Node())
	r.expectSync("full, pruning d") // another program may have written meanwhile
	r.MissRules()
	r.SetService(r.Service("e", 5))
	r.expectSync("partial e")
}

// BenchmarkOneChange changes one endpoint of one Service among many.
func BenchmarkOneChange(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(strconv.Itoa(services), func(b *testing.B) {
			r := &rig{t: &testing.T{}, clock: clocktesting.NewFakePassiveClock(agenttest.Epoch)}
			r.Store = New(Options{Clock: r.clock, NodeName: "node-1", Families: []dataplane.Family{dataplane.IPv4}, Report: nil})
			var list []*v1alpha1.ServiceProxyRules
			for i := range services {
				list = append(list, r.Service(fmt.Sprintf("svc-%d", i), 1, func(s *v1alpha1.ServiceProxyRulesSpec) {
					s.ClusterIPs = []string{fmt.Sprintf("10.96.%d.%d", i/250, 1+i%250)}
				}))
			}
			r.SetServices(list)
			r.SetRules(r.Node())
			commit := func() {
				batch := r.prepare()
				outcomes := map[dataplane.Family]dataplane.Outcome[dataplane.Result]{}
				for family := range batch.Rulesets {
					outcomes[family] = dataplane.Outcome[dataplane.Result]{}
				}
				r.Commit(batch, outcomes, nil)
			}
			commit()
			states := [2]*v1alpha1.ServiceProxyRules{list[7].DeepCopy(), list[7].DeepCopy()}
			states[1].Spec.Ports[0].Endpoints[0].Addresses[0] = "10.244.7.7:8080"
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				n++
				o := *states[n%2]
				o.Generation = int64(1_000_000 + n)
				r.SetService(&o)
				commit()
			}
		})
	}
}

// tooLarge makes a Service larger than limits allow: expanded, it has 6 million claims.
func tooLarge(s *v1alpha1.ServiceProxyRulesSpec) {
	for i := range 3000 {
		s.ExternalIPs = append(s.ExternalIPs, fmt.Sprintf("198.18.%d.%d", i/250, i%250))
	}
	for i := range 2000 {
		s.Ports = append(s.Ports, v1alpha1.ServicePort{Name: fmt.Sprint(i), Protocol: "TCP", Port: int32(i + 1000)}) //nolint:gosec // small
	}
}

// TestObjectOverALimitAtTheStart: it is rejected before anything is made of it, and what the
// kernel has of it is not taken for leftovers, which go when the Service is no longer rejected.
func TestObjectOverALimitAtTheStart(t *testing.T) {
	start := func() *rig {
		r := newRig(t)
		for _, name := range []string{"b", "leftover"} {
			r.kernel.Plant(&dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: name}})
		}
		r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("b", 2, tooLarge), r.Service("c", 3)})
		r.setInventory(agenttest.InventoryOf("shop.b", "shop.c"))
		r.SetRules(r.Node())
		r.expectSync("full c")
		r.expectKernel("b", "c", "leftover")
		if s := r.Snapshot(); len(s.Rejected) != 1 || !strings.HasPrefix(s.Rejected[dataplane.ServiceName{Namespace: "shop", Name: "b"}], "it has 2001 ports, more than the limit of 1000") {
			t.Errorf("rejected %v", s.Rejected)
		}
		return r
	}
	t.Run("a change", func(t *testing.T) {
		r := start()
		r.SetService(r.Service("c", 4))
		r.SetService(r.Service("b", 2, tooLarge))
		r.expectSync("partial c")
		r.SetService(r.Service("b", 2))
		r.expectSync("full, pruning b")
		r.expectKernel("b", "c")
		if s := r.Snapshot(); len(s.Rejected) != 0 {
			t.Errorf("rejected %v", s.Rejected)
		}
	})
	t.Run("its end", func(t *testing.T) {
		r := start()
		object := r.Service("b", 2, tooLarge, agenttest.Released)
		r.setInventory(agenttest.InventoryOf("shop.c"))
		r.SetService(object)
		r.DeleteService(object)
		r.expectSync("full, pruning b")
		r.expectKernel("c")
	})
	t.Run("a checkpoint", func(t *testing.T) {
		r := newRig(t)
		r.former = func(int, uint64) *checkpoint.Restorable {
			return &checkpoint.Restorable{Set: &checkpoint.Set{Services: []*v1alpha1.ServiceProxyRules{r.Service("b", 2, tooLarge)}}}
		}
		r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("c", 3)})
		r.setInventory(agenttest.InventoryOf("shop.c"))
		r.SetRules(r.Node())
		r.expectSync("full, pruning b c")
	})
	t.Run("it vanishes", func(t *testing.T) {
		r := start()
		r.DeleteService(r.Service("b", 2, tooLarge))
		r.Forget()
		r.expectSync("full")
		r.expectKernel("b", "c", "leftover")
		r.setInventory(agenttest.InventoryOf("shop.c"))
		r.expectSync("full, pruning b")
		r.expectKernel("c")
	})
}

// manyAddresses gives a Service more addresses, with 100 endpoints each, than limits allow together.
func manyAddresses(s *v1alpha1.ServiceProxyRulesSpec) {
	for i := range v1alpha1.MaxServiceAddresses {
		s.ExternalIPs = append(s.ExternalIPs, fmt.Sprintf("198.18.%d.%d", i/250, i%250))
	}
	group := &s.Ports[0].Endpoints[0]
	for i := range 98 {
		group.Addresses = append(group.Addresses, fmt.Sprintf("10.244.2.%d:8080", i))
	}
}

// TestObjectOverALimit: it is rejected, and what the node has of it stays.
func TestObjectOverALimit(t *testing.T) {
	for why, edit := range map[string]func(*v1alpha1.ServiceProxyRulesSpec){
		"it has 2001 ports, more than the limit of 1000; split the Service": tooLarge,
		"it has 100100 combinations of a port with an endpoint and a cluster, external or load-balancer IP, more than the limit of 100000; split the Service or remove addresses": manyAddresses,
	} {
		r := running(t)
		r.SetService(r.Service("b", 2, edit))
		r.SetService(r.Service("c", 3, func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Port = 81 }))
		r.expectSync("partial c")
		r.expectKernel("a", "b", "c")
		want := map[dataplane.ServiceName]string{{Namespace: "shop", Name: "b"}: why + "; its rules stay as they are"}
		if diff := cmp.Diff(want, r.Snapshot().Rejected); diff != "" {
			t.Errorf("rejected (-want +got):\n%s", diff)
		}
		r.SetService(r.Service("b", 2, func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Port = 82 }))
		r.expectSync("partial b")
		if got := r.Snapshot().Rejected; len(got) != 0 {
			t.Errorf("rejected %v", got)
		}
	}
}
