package desired

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// with gives a Service so many endpoints.
func with(endpoints int) func(*v1alpha1.ServiceProxyRulesSpec) {
	return func(s *v1alpha1.ServiceProxyRulesSpec) {
		group := v1alpha1.EndpointGroup{State: v1alpha1.EndpointReady}
		for i := range endpoints {
			group.Addresses = append(group.Addresses, fmt.Sprintf("10.244.%d.%d:8080", i/250, i%250+1))
		}
		s.Ports[0].Endpoints = []v1alpha1.EndpointGroup{group}
	}
}

// tenant makes the ServiceProxyRules of a Service in another namespace.
func (r *rig) tenant(namespace, name string, ip int, edit ...func(*v1alpha1.ServiceProxyRulesSpec)) *v1alpha1.ServiceProxyRules {
	o := r.Service(name, ip, edit...)
	o.Name = namespace + "." + name
	return o
}

var (
	light  = syncer.Load{}
	costly = syncer.Load{Costly: true}
	left   = syncer.Load{Left: true}
)

func (r *rig) expectLoad(all bool, want syncer.Load) {
	r.t.Helper()
	if got := r.Choose(all); got != want {
		r.t.Errorf("all %t: %+v, want %+v", all, got, want)
	}
}

// TestCostlyChangesWait by themselves, and are neither lost nor reported as applied meanwhile.
func TestCostlyChangesWait(t *testing.T) {
	r := running(t)
	r.SetService(r.tenant("other", "large", 7, with(600)))
	r.SetService(r.Service("a", 9))
	before := r.actual.applied.Version
	r.expectLoad(false, left)
	r.expectSync("partial a")
	s := r.Snapshot()
	if r.actual.applied.Version != before || !s.OldestPending.IsZero() || len(r.ledger.metrics.services.waiting) != 1 {
		t.Errorf("applied %s, pending since %v, waiting %v", r.actual.applied.Version, s.OldestPending, r.ledger.metrics.services.waiting)
	}
	if len(s.Warnings) != 0 {
		t.Errorf("warnings %q", s.Warnings)
	}
	r.clock.SetTime(agenttest.Epoch.Add(deferralNoted + time.Second))
	if s := r.Snapshot(); len(s.Warnings) != 1 {
		t.Errorf("after %s: warnings %q", deferralNoted, s.Warnings)
	}

	r.SetService(r.Service("b", 8))
	r.expectLoad(true, costly)
	r.expectSync("partial b large")
	if s := r.Snapshot(); r.actual.applied.Version != r.catalog.newestVersion || !s.OldestPending.IsZero() || len(r.ledger.metrics.services.waiting) != 0 {
		t.Errorf("after all: applied %s of %s, pending since %v", r.actual.applied.Version, r.catalog.newestVersion, s.OldestPending)
	}

	// What it takes to remove a Service counts as well, and a Service that is gone is.
	r.SetService(r.tenant("other", "large", 7, agenttest.Released))
	r.expectLoad(false, left)
	r.expectSync("nothing")
	r.expectLoad(true, costly)
	r.expectSync("partial large")
	r.expectLoad(true, light)
}

// TestCostlyChangesTakeTurns: a sync writes those that have waited longest, a bounded number. What
// is applied is reported up to the oldest change that waits.
func TestCostlyChangesTakeTurns(t *testing.T) {
	r := running(t)
	versions := map[string]string{}
	for i, name := range []string{"z", "y", "x"} {
		r.clock.SetTime(agenttest.Epoch.Add(time.Duration(i) * time.Second))
		o := r.tenant("other", name, 7+i, with(6000))
		versions[name] = o.ResourceVersion
		r.SetService(o)
		r.expectLoad(false, left)
		r.expectSync("nothing")
	}
	r.SetService(r.tenant("other", "z", 7, with(6001)))  // changes again, and keeps its place
	r.SetService(r.tenant("third", "w", 20, with(6000))) // does not wait for all of theirs
	r.expectLoad(false, left)
	r.expectSync("nothing")
	for _, step := range []struct {
		load    syncer.Load
		written string
		applied string
	}{
		{more, "partial z", versions["z"]},
		{more, "partial w", versions["z"]},
		{more, "partial y", versions["y"]},
		{costly, "partial x", r.catalog.newestVersion},
	} {
		r.expectLoad(true, step.load)
		r.expectSync(step.written)
		if r.actual.applied.Version != step.applied {
			t.Errorf("after %s: applied %s, want %s", step.written, r.actual.applied.Version, step.applied)
		}
	}
}

// TestSmallChangesCountByNamespace: many small ones are as costly as a large one.
func TestSmallChangesCountByNamespace(t *testing.T) {
	r := running(t)
	for i := range 6 {
		r.SetService(r.tenant("other", fmt.Sprint("small-", i), 20+i, with(100)))
	}
	r.SetService(r.Service("a", 9))
	r.expectLoad(false, left)
	r.expectSync("partial a")
	for i := range 22 { // none exceeds the share of a namespace, all together that of a sync
		r.SetService(r.tenant(fmt.Sprint("tenant-", i), "s", 30+i, with(90)))
	}
	r.SetService(r.Service("a", 10))
	r.expectLoad(false, left)
	if n := len(r.ledger.deferred); n != 7 {
		t.Errorf("%d set aside, want the 6 of one namespace and that of one of 22 others", n)
	}
}

// TestAddressMovesInOneSync from a Service to another, which waits with it.
func TestAddressMovesInOneSync(t *testing.T) {
	r := running(t)
	r.SetService(r.tenant("other", "large", 7, with(600), func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = 30080 }))
	r.expectLoad(true, costly)
	r.expectSync("partial large")
	r.SetService(r.tenant("other", "large", 8, with(600)))
	r.SetService(r.Service("b", 7)) // has its former cluster IP
	r.SetService(r.Service("c", 3, func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.Ports[0].NodePort, s.ExternalIPs = 30080, []string{"203.0.113.1"} // and its node port
	}))
	r.SetService(r.Service("d", 4, func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"203.0.113.1"} })) // which c has
	r.SetService(r.Service("a", 9))
	r.expectLoad(false, left)
	r.expectSync("partial a d")
	r.expectLoad(true, costly)
	r.expectSync("partial b c large")

	// One that is to lose what it has to a large one has it until then.
	r.SetService(r.tenant("another", "e", 50, func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.ExternalIPs, s.ServiceCreated = []string{"203.0.113.2"}, metav1.NewTime(agenttest.Epoch.Add(time.Hour))
	}))
	r.expectLoad(true, light)
	r.expectSync("partial e")
	r.SetService(r.tenant("other", "large", 8, with(600), func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"203.0.113.2"} }))
	r.SetService(r.Service("a", 1))
	r.expectLoad(false, left)
	r.expectSync("partial a")
	r.expectLoad(true, costly)
	r.expectSync("partial e large")
	if len(r.ledger.moved) != 0 {
		t.Errorf("moved: %v", r.ledger.moved)
	}
}

// TestStrangerDoesNotDelay a Service by naming its address in a large one that does not get it.
func TestStrangerDoesNotDelay(t *testing.T) {
	r := running(t)
	mine := func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"203.0.113.1"} }
	r.SetService(r.Service("a", 1, mine))
	r.expectLoad(true, light)
	r.expectSync("partial a")
	r.SetService(r.tenant("other", "large", 7, with(600), mine, func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.ServiceCreated = metav1.NewTime(agenttest.Epoch.Add(time.Hour))
		s.Ports = append(s.Ports, v1alpha1.ServicePort{Name: "other", Protocol: "TCP", Port: 81})
	}))
	r.SetService(r.Service("a", 1, mine, with(3)))
	r.expectLoad(false, left)
	r.expectSync("partial a")
}

// TestChangeThatComesLate, after it was chosen what a sync writes, is for the next one.
func TestChangeThatComesLate(t *testing.T) {
	r := running(t)
	r.SetService(r.Service("a", 9))
	r.expectLoad(true, light)
	before := r.catalog.newestVersion
	r.clock.SetTime(agenttest.Epoch.Add(time.Second))
	r.SetService(r.Service("b", 8))
	r.mu.Lock()
	b := r.takeBatch()
	r.mu.Unlock()
	outcomes := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: r.kernel}).Apply(t.Context(), b.Rulesets)
	r.Commit(b, outcomes, &v1alpha1.SyncReport{})
	if s := r.Snapshot(); r.actual.applied.Version != before || s.OldestPending.IsZero() {
		t.Errorf("applied %s, want %s; pending since %v", r.actual.applied.Version, before, s.OldestPending)
	}
	r.expectLoad(true, light)
	r.expectSync("partial b")
	if s := r.Snapshot(); r.actual.applied.Version != r.catalog.newestVersion || !s.OldestPending.IsZero() {
		t.Errorf("applied %s of %s; pending since %v", r.actual.applied.Version, r.catalog.newestVersion, s.OldestPending)
	}
}

// TestCostlyChangesWaitWithoutIPv6, on a node that cannot program it.
func TestCostlyChangesWaitWithoutIPv6(t *testing.T) {
	r := running(t)
	r.mu.Lock()
	absent := newFamilyState(&pending{dirty: map[dataplane.ServiceName]struct{}{}})
	absent.lack(dataplane.ErrUnsupported)
	r.families[dataplane.IPv6] = absent
	r.mu.Unlock()
	r.SetService(r.tenant("other", "large", 7, with(600)))
	r.SetService(r.Service("a", 9))
	r.expectLoad(false, left)
	r.expectSync("partial a")
}

// TestRejectedServiceIsCostly: it takes several calls to find it among others.
func TestRejectedServiceIsCostly(t *testing.T) {
	r := running(t)
	r.kernel.Reject("other", "s", "no such match")
	r.SetService(r.tenant("other", "s", 7))
	r.expectLoad(false, light)
	r.expectSync("partial s")
	if !r.LastLoad().Costly {
		t.Error("the sync that found it was not costly")
	}
	r.SetService(r.tenant("other", "s", 8))
	r.SetService(r.Service("a", 9))
	r.expectLoad(false, left)
	r.expectSync("partial a")
	if r.LastLoad().Costly {
		t.Error("a sync that does not try it is costly")
	}
	r.SetService(r.tenant("other", "t", 10)) // the kernel may reject others of its owner
	r.SetService(r.Service("a", 11))
	r.expectLoad(false, left)
	r.expectSync("partial a")
}

// TestFullPassTakesAll, as the kernel is read as a whole.
func TestFullPassTakesAll(t *testing.T) {
	r := running(t)
	r.SetService(r.tenant("other", "large", 7, with(600)))
	r.expectLoad(false, left)
	r.expectSync("nothing")
	r.Forget()
	r.expectLoad(false, light)
	r.expectSync("full, pruning large")
}
