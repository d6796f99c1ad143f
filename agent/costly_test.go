package agent

import (
	"fmt"
	"testing"
	"time"

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
	o := r.object(name, ip, edit...)
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
	if got := r.setCostlyAside(all); got != want {
		r.t.Errorf("all %t: %+v, want %+v", all, got, want)
	}
}

// TestCostlyChangesWait by themselves, and are neither lost nor reported as applied meanwhile.
func TestCostlyChangesWait(t *testing.T) {
	r := running(t)
	r.setService(r.tenant("other", "large", 7, with(600)))
	r.setService(r.object("a", 9))
	before := r.applied.version
	r.expectLoad(false, left)
	r.expectSync("partial a")
	s := r.snapshot()
	if r.applied.version != before || !s.oldestPending.Equal(epoch) || len(r.changes.parts.waiting) != 1 {
		t.Errorf("applied %s, pending since %v, waiting %v", r.applied.version, s.oldestPending, r.changes.parts.waiting)
	}

	r.clock.SetTime(epoch.Add(time.Second))
	r.setService(r.object("b", 8))
	r.expectLoad(true, costly)
	r.expectSync("partial b large")
	if s := r.snapshot(); r.applied.version != r.newestVersion || !s.oldestPending.IsZero() || len(r.changes.parts.waiting) != 0 {
		t.Errorf("after all: applied %s of %s, pending since %v", r.applied.version, r.newestVersion, s.oldestPending)
	}

	// What it takes to remove a Service counts as well, and a Service that is gone is.
	r.setService(r.tenant("other", "large", 7, released))
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
		r.clock.SetTime(epoch.Add(time.Duration(i) * time.Second))
		o := r.tenant("other", name, 7+i, with(6000))
		versions[name] = o.ResourceVersion
		r.setService(o)
		r.expectLoad(false, left)
		r.expectSync("nothing")
	}
	r.setService(r.tenant("other", "z", 7, with(6001))) // changes again, and keeps its place
	for _, step := range []struct {
		load    syncer.Load
		written string
		applied string
		waits   time.Duration
	}{
		{syncer.Load{Costly: true, Left: true}, "partial z", versions["z"], time.Second},
		{syncer.Load{Costly: true, Left: true}, "partial y", versions["y"], 2 * time.Second},
		{costly, "partial x", r.newestVersion, 0},
	} {
		r.expectLoad(true, step.load)
		r.expectSync(step.written)
		waits := r.snapshot().oldestPending
		if r.applied.version != step.applied || step.waits != 0 && !waits.Equal(epoch.Add(step.waits)) || step.waits == 0 && !waits.IsZero() {
			t.Errorf("after %s: applied %s, want %s; pending since %v", step.written, r.applied.version, step.applied, waits)
		}
	}
}

// TestSmallChangesCountByNamespace: many small ones are as costly as a large one.
func TestSmallChangesCountByNamespace(t *testing.T) {
	r := running(t)
	for i := range 6 {
		r.setService(r.tenant("other", fmt.Sprint("small-", i), 20+i, with(100)))
	}
	r.setService(r.object("a", 9))
	r.expectLoad(false, left)
	r.expectSync("partial a")
	for i := range 5 { // nobody exceeds the share of a namespace, all together that of a sync
		r.setService(r.tenant(fmt.Sprint("tenant-", i), "s", 30+i, with(450)))
	}
	r.setService(r.object("a", 10))
	r.expectLoad(false, left)
	if n := len(r.aside); n != 7 {
		t.Errorf("%d set aside, want the 6 of one namespace and that of one of five others", n)
	}
}

// TestAddressMovesInOneSync from a Service to another, which waits with it.
func TestAddressMovesInOneSync(t *testing.T) {
	r := running(t)
	r.setService(r.tenant("other", "large", 7, with(600), func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = 30080 }))
	r.expectLoad(true, costly)
	r.expectSync("partial large")
	r.setService(r.tenant("other", "large", 8, with(600)))
	r.setService(r.object("b", 7)) // has its former cluster IP
	r.setService(r.object("c", 3, func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.Ports[0].NodePort, s.ExternalIPs = 30080, []string{"203.0.113.1"} // and its node port
	}))
	r.setService(r.object("d", 4, func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"203.0.113.1"} })) // shares with c
	r.setService(r.object("a", 9))
	r.expectLoad(false, left)
	r.expectSync("partial a")
	r.expectLoad(true, costly)
	r.expectSync("partial b c d large")
}

// TestRejectedServiceIsCostly: it takes several calls to find it among others.
func TestRejectedServiceIsCostly(t *testing.T) {
	r := running(t)
	r.kernel.Refuse("other", "s", "no such match")
	r.setService(r.tenant("other", "s", 7))
	r.expectLoad(false, light)
	r.expectSync("partial s")
	r.setService(r.tenant("other", "s", 8))
	r.setService(r.object("a", 9))
	r.expectLoad(false, left)
	r.expectSync("partial a")
}

// TestFullPassTakesAll, as the kernel is read as a whole.
func TestFullPassTakesAll(t *testing.T) {
	r := running(t)
	r.setService(r.tenant("other", "large", 7, with(600)))
	r.expectLoad(false, left)
	r.expectSync("nothing")
	r.forget()
	r.expectLoad(false, light)
	r.expectSync("full, pruning large")
}
