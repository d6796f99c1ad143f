package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// dualRig is a store with a kernel for each family behind it.
type dualRig struct {
	*rig
	kernels map[dataplane.Family]*dataplanetest.Fake
	fanout  *dataplane.Fanout
}

func newDualRig(t *testing.T) *dualRig {
	r := &dualRig{rig: &rig{t: t, clock: clocktesting.NewFakePassiveClock(agenttest.Epoch)}, kernels: map[dataplane.Family]*dataplanetest.Fake{}}
	planes := map[dataplane.Family]dataplane.Dataplane{}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		r.kernels[family] = dataplanetest.NewFake()
		planes[family] = r.kernels[family]
	}
	r.fanout = dataplane.NewFanout(planes)
	r.Store = desired.New(desired.Options{Clock: r.clock, NodeName: "node-1", Families: r.fanout.Families(), Report: func(dataplane.ServiceName, string) {}})
	r.SetRules(r.Node())
	return r
}

// apply does what a sync does.
func (r *dualRig) apply() {
	b := prepare(r.Store)
	outcomes := r.fanout.Apply(context.Background(), b.Rulesets)
	r.Excuse(outcomes)
	r.Commit(b, outcomes, nil)
}

// check does what a verification does.
func (r *dualRig) check() {
	if r.Compared(r.CurrentEpoch(), r.fanout.Verify(context.Background(), r.Verifiable(), dataplane.VerifyOptions{}), nil, false) {
		r.apply()
	}
}

func (r *dualRig) status() v1alpha1.NodeProxyRulesStatus {
	return status.Build(r.Snapshot(), status.Facts{Families: r.fanout.Families()}, nil)
}

// expect compares Programmed, families and counts of the status.
func (r *dualRig) expect(programmed string, families string, counts ...int32) {
	r.t.Helper()
	status := r.status()
	var got string
	for _, c := range status.Conditions {
		if c.Type == v1alpha1.ConditionProgrammed {
			got = string(c.Status) + " " + c.Reason + ": " + c.Message
		}
	}
	if !strings.HasPrefix(got, programmed) {
		r.t.Errorf("Programmed is %q, want %q", got, programmed)
	}
	if got := strings.Join(status.Families, " "); got != families {
		r.t.Errorf("families %q, want %q", got, families)
	}
	if diff := cmp.Diff(counts, []int32{status.Services, status.Endpoints, status.LocalEndpoints}); diff != "" {
		r.t.Errorf("services, endpoints, local endpoints (-want +got):\n%s", diff)
	}
}

const inSync = "True Programmed: The desired state is programmed"

func TestServicesAndEndpointsOfBothFamilies(t *testing.T) {
	r := newDualRig(t)
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) {
		s.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{
			{Namespace: "shop", Name: "both", Ports: []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: []string{"10.244.1.2:8080", "[fd00:10:244:1::7]:8080"}}}},
			{Namespace: "shop", Name: "six", Ports: []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: []string{"[fd00:10:244:1::7]:8080"}}}},
		}
	}))
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("four", 1), r.Service("both", 2, agenttest.IPv6(false)), r.Service("six", 3, agenttest.IPv6(true))})
	r.apply()
	// 10.244.9.9:8080 is an endpoint of two Services, and so are both of IPv6.
	r.expect(inSync, "IPv4 IPv6", 3, 5, 2)
	if diff := cmp.Diff([]string{"shop/both", "shop/six"}, r.kernels[dataplane.IPv6].Services()); diff != "" {
		t.Error(diff)
	}
	r.kernels[dataplane.IPv6].Reject("shop", "six", "no")
	r.SetService(r.Service("six", 3, agenttest.IPv6(true), func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Port = 81 }))
	r.apply()
	r.expect("True SomeServicesRejected: The kernel rejects the rules of 1 Service and has those of all others; fix the cause in the Service or on the node: shop/six: IPv6: no.", "IPv4 IPv6", 2, 5, 2)
}

func TestFamilyThatNothingNeeds(t *testing.T) {
	r := newDualRig(t)
	six := r.kernels[dataplane.IPv6]
	six.Lack("no IPv6 here")
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("four", 1)})
	r.apply()
	r.expect(inSync, "IPv4", 1, 2, 0)
	if diff := cmp.Diff([]string{"IPv6: no IPv6 here: not supported on this node"}, r.Notices().Unavailable); diff != "" {
		t.Error(diff)
	}
	if b := prepare(r.Store); len(b.Rulesets) > 0 {
		t.Errorf("there is nothing to apply, but: %v", b.Rulesets)
	}

	r.SetService(r.Service("six", 3, agenttest.IPv6(true)))
	b := prepare(r.Store)
	r.expect(inSync, "IPv4", 1, 2, 0) // it has not been tried yet
	outcomes := r.fanout.Apply(context.Background(), b.Rulesets)
	r.Excuse(outcomes)
	r.Commit(b, outcomes, nil)
	r.expect("False Failed: Not everything could be written: IPv6: no IPv6 here: not supported on this node. The rest", "IPv4", 1, 2, 0)
	r.kernels[dataplane.IPv4].Remove("shop", "four")
	r.check()
	if diff := cmp.Diff([]string{"shop/four"}, r.kernels[dataplane.IPv4].Services()); diff != "" {
		t.Errorf("IPv4 is repaired while IPv6 fails: %s", diff)
	}

	r.SetService(r.Service("six", 3, agenttest.IPv6(true), agenttest.Released))
	r.apply()
	r.expect(inSync, "IPv4", 1, 2, 0)

	r.SetService(r.Service("six", 3, agenttest.IPv6(true)))
	r.apply()
	six.Lack("")
	r.apply()
	r.expect(inSync, "IPv4 IPv6", 2, 4, 0)
	r.SetService(r.Service("six", 3, agenttest.IPv6(true), agenttest.Released))
	r.apply()
	if left := six.Services(); len(left) > 0 {
		t.Errorf("left in the kernel: %v", left)
	}
	r.expect(inSync, "IPv4 IPv6", 1, 2, 0)
}

func TestFamilyThatComesAndGoes(t *testing.T) {
	r := newDualRig(t)
	six := r.kernels[dataplane.IPv6]
	six.Lack("switched off")
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("four", 1)})
	r.apply()
	r.check()
	r.expect(inSync, "IPv4", 1, 2, 0)
	six.Lack("")
	r.check() // the node is probed again
	r.expect(inSync, "IPv4 IPv6", 1, 2, 0)
	six.Lack("switched off")
	r.check()
	r.expect(inSync, "IPv4", 1, 2, 0)
	if p := r.Snapshot().OldestPending; !p.IsZero() {
		t.Errorf("a change waits since %v", p)
	}
	for family, f := range r.Health().Families {
		if f.LastUpdated.IsZero() {
			t.Errorf("%s is not up to date for the health check", family)
		}
	}
}

// TestHealthWithoutAFamily: load balancers go on sending IPv4 to a node that has
// no IPv6, though Services need it.
func TestHealthWithoutAFamily(t *testing.T) {
	r := newDualRig(t)
	r.kernels[dataplane.IPv6].Lack("switched off")
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("both", 1, agenttest.IPv6(false))})
	r.apply()
	a := &Agent{store: r.Store, loop: syncer.New(syncer.Options{Clock: clocktesting.NewFakeClock(agenttest.Epoch)})}
	if have := slices.Collect(maps.Keys(a.proxyState().Families)); !slices.Equal(have, []string{"IPv4"}) {
		t.Errorf("the health check counts %v", have)
	}
	if r.Served() {
		t.Error("it is ready without a family that is needed, which another image may have")
	}
	r.kernels[dataplane.IPv4].Lack("no programs")
	r.check()
	r.SetService(r.Service("four", 2))
	r.apply()
	if have := len(a.proxyState().Families); have != 2 {
		t.Errorf("without any family, the health check counts %d", have)
	}
}

func TestNodeThatLacksEveryFamily(t *testing.T) {
	r := newDualRig(t)
	for _, k := range r.kernels {
		k.Lack("no programs")
	}
	r.SetServices(nil)
	r.apply()
	r.expect("False Failed: Not everything could be written: IPv4: no programs: not supported on this node; IPv6: no programs", "", 0, 0, 0)
	r.SetService(r.Service("four", 1))
	r.apply()
	r.expect("False Failed: Not everything could be written: IPv4: no programs: not supported on this node. The rest", "", 0, 0, 0)
	r.kernels[dataplane.IPv4].Lack("")
	r.apply()
	r.expect(inSync, "IPv4", 1, 2, 0)
}

func TestOneFamilyFailsTheOtherGoesOn(t *testing.T) {
	for _, failing := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(string(failing), func(t *testing.T) {
			r := newDualRig(t)
			other := dataplane.IPv4
			if failing == other {
				other = dataplane.IPv6
			}
			r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("both", 2, agenttest.IPv6(false))})
			r.apply()
			r.kernels[failing].Fail(errors.New("locked"))
			r.SetService(r.Service("both", 2, agenttest.IPv6(false), func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Port = 81 }))
			r.apply()
			r.expect("False Failed: Not everything could be written: "+string(failing)+": locked", "IPv4 IPv6", 1, 4, 0)
			if got := r.kernels[other].Service("shop", "both").Ports[0].Port; got != 81 {
				t.Errorf("%s serves port %d", other, got)
			}
			r.kernels[other].Remove("shop", "both")
			r.check()
			if r.kernels[other].Service("shop", "both") == nil {
				t.Errorf("%s is not repaired while %s fails", other, failing)
			}
			r.kernels[failing].Fail(nil)
			r.apply()
			r.expect(inSync, "IPv4 IPv6", 1, 4, 0)
		})
	}
}

func TestChangedFactsAreTakenUp(t *testing.T) {
	r := newDualRig(t)
	six := r.kernels[dataplane.IPv6]
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("both", 2, agenttest.IPv6(false))})
	r.Recheck(dataplane.IPv6)
	r.apply()
	r.Recheck(dataplane.IPv6)
	if rulesets := r.Verifiable(); rulesets[dataplane.IPv6] != nil || rulesets[dataplane.IPv4] == nil {
		t.Errorf("to be verified: %v, want IPv4 only", rulesets)
	}
	b := prepare(r.Store)
	if ruleset := b.Rulesets[dataplane.IPv6]; ruleset == nil || !ruleset.Recheck || ruleset.Full || b.Rulesets[dataplane.IPv4] != nil {
		t.Fatalf("rulesets %v, want one of IPv6 that is not full", b.Rulesets)
	}
	outcomes := r.fanout.Apply(context.Background(), b.Rulesets)
	r.Commit(b, outcomes, nil)
	if b = prepare(r.Store); len(b.Rulesets) > 0 || six.Rechecks() != 2 {
		t.Errorf("left to do: %v, rechecks %d", b.Rulesets, six.Rechecks())
	}
	if p := r.Snapshot().OldestPending; !p.IsZero() {
		t.Errorf("a change waits since %v", p)
	}

	six.Fail(errors.New("locked"))
	r.Recheck(dataplane.IPv6)
	r.apply()
	if b = prepare(r.Store); b.Rulesets[dataplane.IPv6] == nil || !b.Rulesets[dataplane.IPv6].Full {
		t.Errorf("after a failure: %v, want a full pass", b.Rulesets)
	}
}

// TestFailureOfAFamilyThatNothingNeeds stands for a kernel that lists the tables
// of a family and takes none of its rules.
func TestFailureOfAFamilyThatNothingNeeds(t *testing.T) {
	r := newDualRig(t)
	six := r.kernels[dataplane.IPv6]
	six.Fail(errors.New("no such target"))
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("four", 1)})
	r.apply()
	r.expect(inSync+". Restrictions: IPv6, which no Service uses, is not programmed: no such target", "IPv4", 1, 2, 0)
	s := r.Snapshot()
	if !s.OldestPending.IsZero() || !r.Health().Families["IPv6"].OldestPending.IsZero() {
		t.Error("the health check counts the failure")
	}
	if s.Applied.Generation == 0 || s.Applied.SettingsRevision == "" {
		t.Errorf("what is applied is not reported: %+v", s.Applied)
	}
	b := prepare(r.Store)
	if b.Rulesets[dataplane.IPv6] == nil {
		t.Error("it is not tried again")
	}
	r.Commit(b, r.fanout.Apply(context.Background(), b.Rulesets), nil)
	r.SetService(r.Service("six", 3, agenttest.IPv6(true)))
	r.apply()
	r.expect("False Failed: Not everything could be written: IPv6: no such target. The rest", "IPv4", 1, 2, 0)
	six.Fail(nil)
	r.apply()
	r.expect(inSync, "IPv4 IPv6", 2, 4, 0)
}
