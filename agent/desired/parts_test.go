package desired

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var more = syncer.Load{Costly: true, Left: true}

// expectPart does what a costly sync does that is asked to pause.
func (r *rig) expectPart(want string, load syncer.Load) {
	r.t.Helper()
	got := r.Choose(true)
	b, _ := r.PrepareWrite(func() bool { return true })
	if reported := agenttest.Describe(b.Rulesets[dataplane.IPv4]); reported != want {
		r.t.Errorf("part: got %q, want %q", reported, want)
	}
	outcomes := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: r.kernel}).Apply(context.Background(), b.Rulesets)
	r.Commit(b, outcomes, &v1alpha1.SyncReport{})
	if got.Left = got.Left || r.LastLoad().Left; got != load {
		r.t.Errorf("part %q: %+v, want %+v", want, got, load)
	}
}

// TestLargeChangeInParts: small changes come in between, and it neither gets lost nor is reported as
// applied before its last part.
func TestLargeChangeInParts(t *testing.T) {
	r := running(t)
	checked := func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.ExternalTrafficPolicy, s.HealthCheckNodePort = v1alpha1.TrafficPolicyLocal, 30999
	}
	r.kernel.Part("other", "large", 3)
	large := r.tenant("other", "large", 7, with(6000), checked)
	large.Annotations = map[string]string{v1alpha1.AnnotationLastChangeTriggerTime: agenttest.Epoch.Add(time.Second).Format(time.RFC3339Nano)}
	before := r.actual.applied.Version
	r.SetService(large)
	r.clock.SetTime(agenttest.Epoch.Add(3 * time.Second))
	pending := func(when string) {
		r.t.Helper()
		s := r.Snapshot()
		if r.actual.applied.Version != before || len(r.ledger.metrics.services.waiting) != 1 || !s.OldestPending.IsZero() {
			t.Errorf("%s: applied %s, waiting %v, pending since %v", when, r.actual.applied.Version, r.ledger.metrics.services.waiting, s.OldestPending)
		}
		if n := len(r.TakeProgrammedChanges()[dataplane.IPv4].Latencies); n != 0 {
			t.Errorf("%s: %d changes count as programmed", when, n)
		}
	}
	r.expectPart("partial large", more)
	pending("after the first part")
	if len(r.Verifiable()) != 1 {
		t.Error("between parts nothing can be verified")
	}

	r.SetService(r.Service("a", 9))
	r.expectLoad(false, left)
	r.expectSync("partial a")
	pending("after a small change")
	r.clock.SetTime(r.clock.Now().Add(deferralNoted + time.Second))
	if s := r.Snapshot(); len(s.Warnings) != 1 {
		t.Errorf("after %s: warnings %q", deferralNoted, s.Warnings)
	}

	r.expectPart("partial large", more)
	pending("after the second part")
	r.expectPart("partial large", costly)
	if r.actual.applied.Version != r.catalog.newestVersion || len(r.ledger.metrics.services.waiting) != 0 {
		t.Errorf("after the last part: applied %s of %s", r.actual.applied.Version, r.catalog.newestVersion)
	}
	if n := len(r.TakeProgrammedChanges()[dataplane.IPv4].Latencies); n != 1 {
		t.Errorf("after the last part %d changes count as programmed", n)
	}
	r.expectLoad(true, light)
}

// TestSmallChangeLeftBehind: a data plane leaves a small change that it has written with the part of a
// large one. The change is neither lost nor reported as applied.
func TestSmallChangeLeftBehind(t *testing.T) {
	r := running(t)
	before := r.actual.applied.Version
	r.SetService(r.tenant("other", "large", 7, with(600)))
	r.SetService(r.Service("a", 9))
	r.kernel.Part("other", "large", 2)
	r.kernel.Part("shop", "a", 2)
	r.expectPart("partial a large", more)
	if r.actual.applied.Version != before || len(r.ledger.metrics.services.waiting) != 2 {
		t.Errorf("applied %s, waiting %v", r.actual.applied.Version, r.ledger.metrics.services.waiting)
	}
	r.expectLoad(false, left)
	r.expectSync("partial a")
	if r.actual.applied.Version != before {
		t.Errorf("applied %s while a large change waits", r.actual.applied.Version)
	}
	r.expectPart("partial large", costly)
	if r.actual.applied.Version != r.catalog.newestVersion {
		t.Errorf("applied %s of %s", r.actual.applied.Version, r.catalog.newestVersion)
	}
}

// TestEndBetweenParts: what remains is that of the former, large Service, and waits alike.
func TestEndBetweenParts(t *testing.T) {
	for name, last := range map[string]struct {
		edits []func(*v1alpha1.ServiceProxyRulesSpec)
		size  int
	}{"small": {nil, 1}, "gone": {[]func(*v1alpha1.ServiceProxyRulesSpec){agenttest.Released}, 1}} {
		t.Run(name, func(t *testing.T) {
			r := running(t)
			r.SetService(r.tenant("other", "large", 7, with(6000)))
			r.expectLoad(true, costly)
			r.expectSync("partial large")
			r.kernel.Part("other", "large", 3)
			r.SetService(r.tenant("other", "large", 7, append(last.edits, with(last.size))...))
			r.expectPart("partial large", more)
			r.SetService(r.tenant("other", "large", 7, append(last.edits, with(last.size+1))...))
			r.SetService(r.Service("a", 9))
			r.expectLoad(false, left)
			r.expectSync("partial a")
			r.expectPart("partial large", more)
			r.expectPart("partial large", costly)
			if svc := r.kernel.Service("other", "large"); (svc == nil) != (name == "gone") || svc != nil && len(svc.Ports[0].Cluster) != 2 {
				t.Errorf("the kernel has %+v", svc)
			}
			r.expectLoad(false, light)
		})
	}
}

// TestClaimBetweenParts: a Service that gets what a large one may still be programmed with waits for
// its last part.
func TestClaimBetweenParts(t *testing.T) {
	r := running(t)
	mine := func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"203.0.113.1"} }
	r.SetService(r.tenant("other", "large", 7, with(6000), mine))
	r.expectLoad(true, costly)
	r.expectSync("partial large")
	r.kernel.Part("other", "large", 2)
	r.SetService(r.tenant("other", "large", 7, with(6000)))
	r.expectPart("partial large", more)
	r.SetService(r.Service("a", 1, mine))
	r.SetService(r.Service("b", 9))
	r.expectLoad(false, left)
	r.expectSync("partial b")
	r.expectPart("partial a large", costly)
}

// TestForgottenBetweenParts: once the kernel is unknown, everything is read.
func TestForgottenBetweenParts(t *testing.T) {
	r := running(t)
	r.kernel.Part("other", "large", 2)
	r.SetService(r.tenant("other", "large", 7, with(6000)))
	r.expectPart("partial large", more)
	r.Forget()
	r.expectLoad(false, light)
	r.expectSync("full, pruning large")
	if r.LastLoad().Left || r.actual.applied.Version != r.catalog.newestVersion {
		t.Errorf("unfinished %t, applied %s", r.LastLoad().Left, r.actual.applied.Version)
	}
}

// TestHealthCheckBetweenParts answers for no more endpoints than the kernel may have.
func TestHealthCheckBetweenParts(t *testing.T) {
	r := running(t)
	local := func(ready int) {
		r.SetService(r.tenant("other", "large", 7, with(6000), func(s *v1alpha1.ServiceProxyRulesSpec) {
			s.ExternalTrafficPolicy, s.HealthCheckNodePort, s.ServiceCreated = v1alpha1.TrafficPolicyLocal, 30999, metav1.NewTime(agenttest.Epoch)
		}))
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, svc := range r.families[dataplane.IPv4].checked {
			svc.LocalReady = ready
		}
	}
	answered := func() int {
		checks, _, err := r.UpdateHealthChecks(dataplane.IPv4)
		if err != nil || len(checks) != 1 {
			t.Fatal(checks, err)
		}
		for _, c := range checks {
			return c.LocalEndpoints
		}
		return -1
	}
	local(0)
	r.expectLoad(true, costly)
	r.expectSync("partial large")
	answered()
	r.kernel.Part("other", "large", 2)
	r.SetService(r.tenant("other", "large", 7, with(5000), func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.ExternalTrafficPolicy, s.HealthCheckNodePort = v1alpha1.TrafficPolicyLocal, 30999
	}))
	r.expectPart("partial large", more)
	r.mu.Lock()
	for _, svc := range r.families[dataplane.IPv4].checked {
		svc.LocalReady = 3
	}
	r.mu.Unlock()
	if n := answered(); n != 0 {
		t.Errorf("between parts the health check reports %d endpoints", n)
	}
	r.expectPart("partial large", costly)
	r.mu.Lock()
	for _, svc := range r.families[dataplane.IPv4].checked {
		svc.LocalReady = 3
	}
	r.mu.Unlock()
	if n := answered(); n != 3 {
		t.Errorf("after the last part the health check reports %d endpoints", n)
	}
}
