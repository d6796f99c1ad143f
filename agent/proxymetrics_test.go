package agent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// values returns what a metric reports by the values of its labels, joined by
// spaces: of a histogram the number of observations.
func values(t *testing.T, a *Agent, name string) map[string]float64 {
	t.Helper()
	families, err := a.metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			out[strings.Join(labels, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func expectValues(t *testing.T, a *Agent, name string, want map[string]float64) {
	t.Helper()
	if diff := cmp.Diff(want, values(t, a, name)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestSyncMetrics(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	expectValues(t, a, "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", map[string]float64{"IPv4": 0})
	mustSync(t, a)
	kernel.Fail(errors.New("locked"))
	r.SetService(r.Service("b", 2))
	for range 2 { // row 137: the second is a full one
		if err := a.sync(context.Background()); err == nil {
			t.Fatal("no error")
		}
	}
	expectValues(t, a, "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", map[string]float64{"IPv4": 2})
	expectValues(t, a, "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total", map[string]float64{"IPv4": 1})
	kernel.Fail(nil)
	mustSync(t, a)
	expectValues(t, a, "kubeproxy_sync_proxy_rules_duration_seconds", map[string]float64{"IPv4": 4})
	expectValues(t, a, "kubeproxy_sync_full_proxy_rules_duration_seconds", map[string]float64{"IPv4": 3})
	expectValues(t, a, "kubeproxy_sync_partial_proxy_rules_duration_seconds", map[string]float64{"IPv4": 1})
	if last := values(t, a, "kubeproxy_sync_proxy_rules_last_timestamp_seconds")["IPv4"]; time.Since(time.UnixMilli(int64(last*1000))) > time.Minute {
		t.Errorf("last sync at %f", last)
	}
	a.changed()
	if last := values(t, a, "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds")["IPv4"]; time.Since(time.UnixMilli(int64(last*1000))) > time.Minute {
		t.Errorf("last queued at %f", last)
	}
}

func TestSyncedTables(t *testing.T) {
	a, _, _, _ := owningAgent(t)
	full := map[dataplane.Family]*dataplane.Ruleset{dataplane.IPv4: {Full: true}}
	outcome := dataplane.Outcome[dataplane.Result]{Value: dataplane.Result{
		Kind: v1alpha1.SyncFull, Failed: true, Tables: map[string]dataplane.TableCount{"nat": {Rules: 20, Written: 7}},
	}}
	a.metrics.Proxy.Synced(full, map[dataplane.Family]dataplane.Outcome[dataplane.Result]{dataplane.IPv4: outcome}, agenttest.Epoch)
	expectValues(t, a, "kubeproxy_sync_proxy_rules_iptables_total", map[string]float64{"IPv4 nat": 20})
	expectValues(t, a, "kubeproxy_sync_proxy_rules_iptables_last", map[string]float64{"IPv4 nat": 7})
	expectValues(t, a, "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", map[string]float64{"IPv4": 1})
	expectValues(t, a, "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total", map[string]float64{"IPv4": 0})
}

// TestFailuresByMode: mode NFTables has a counter of its own, which no other mode exposes.
func TestFailuresByMode(t *testing.T) {
	const (
		ofIPTables = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total"
		ofPartial  = "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total"
		ofNFTables = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total"
	)
	a, _, _, _ := owningAgent(t)
	synced := func(mode v1alpha1.ProxyMode, outcome dataplane.Outcome[dataplane.Result]) {
		a.metrics.Proxy.Synced(map[dataplane.Family]*dataplane.Ruleset{dataplane.IPv4: {Mode: mode}},
			map[dataplane.Family]dataplane.Outcome[dataplane.Result]{dataplane.IPv4: outcome}, agenttest.Epoch)
	}
	good := dataplane.Outcome[dataplane.Result]{}
	failed := dataplane.Outcome[dataplane.Result]{Err: errors.New("busy")}
	rejected := dataplane.Outcome[dataplane.Result]{Value: dataplane.Result{Failed: true}}
	synced(v1alpha1.ModeIPTables, failed)
	expectValues(t, a, ofNFTables, map[string]float64{})
	a.metrics.Proxy.InMode(v1alpha1.ModeIPTables)
	expectValues(t, a, ofNFTables, map[string]float64{})
	a.metrics.Proxy.InMode(v1alpha1.ModeNFTables)
	expectValues(t, a, ofNFTables, map[string]float64{"IPv4": 0})
	synced(v1alpha1.ModeNFTables, good)
	synced(v1alpha1.ModeNFTables, failed)
	synced(v1alpha1.ModeNFTables, rejected)
	expectValues(t, a, ofNFTables, map[string]float64{"IPv4": 2})
	expectValues(t, a, ofIPTables, map[string]float64{"IPv4": 1})
	expectValues(t, a, ofPartial, map[string]float64{"IPv4": 1})
}

func TestNoLocalEndpoints(t *testing.T) { // row 143
	const name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total"
	local := func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.InternalTrafficPolicy, s.ExternalTrafficPolicy = v1alpha1.TrafficPolicyLocal, v1alpha1.TrafficPolicyLocal
		s.Ports[0].NodePort = 30080
	}
	none := func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Endpoints = nil }
	a, r, _, _ := owningAgent(t)
	mustSync(t, a)
	expectValues(t, a, name, map[string]float64{"IPv4 internal": 0, "IPv4 external": 0})
	r.SetService(r.Service("a", 1, local))
	mustSync(t, a)
	expectValues(t, a, name, map[string]float64{"IPv4 internal": 1, "IPv4 external": 1})
	r.SetService(r.Service("a", 1, local, none))
	mustSync(t, a)
	expectValues(t, a, name, map[string]float64{"IPv4 internal": 0, "IPv4 external": 0})
	r.SetService(r.Service("a", 1, local, func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = 0 }))
	mustSync(t, a)
	expectValues(t, a, name, map[string]float64{"IPv4 internal": 1, "IPv4 external": 0})
	r.SetRules(r.Node(withLocalEndpoints("10.244.1.1:8080")))
	mustSync(t, a)
	expectValues(t, a, name, map[string]float64{"IPv4 internal": 0, "IPv4 external": 0})
}

// triggered sets when the newest change of endpoints was made.
func triggered(o *v1alpha1.ServiceProxyRules, at time.Time) *v1alpha1.ServiceProxyRules {
	o.Annotations = map[string]string{v1alpha1.AnnotationLastChangeTriggerTime: at.UTC().Format(time.RFC3339Nano)}
	return o
}

func TestNetworkProgrammingTime(t *testing.T) {
	r := newRig(t)
	latencies := func() []time.Duration {
		t.Helper()
		b := prepare(r.Store)
		outcomes := map[dataplane.Family]dataplane.Outcome[dataplane.Result]{}
		for family, ruleset := range b.Rulesets {
			result, err := r.kernel.Apply(t.Context(), ruleset)
			outcomes[family] = dataplane.Outcome[dataplane.Result]{Value: result, Err: err}
		}
		r.Commit(b, outcomes, nil)
		return r.TakeProgrammedChanges()[dataplane.IPv4].Latencies
	}
	expect := func(when string, want ...time.Duration) {
		t.Helper()
		if diff := cmp.Diff(want, latencies()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	at := func(ms int) time.Time { return agenttest.Epoch.Add(time.Duration(ms) * time.Millisecond) }
	r.SetRules(r.Node())
	r.SetService(triggered(r.Service("a", 1), at(-1)))
	r.clock.SetTime(at(1000))
	expect("from before the start")
	r.SetService(triggered(r.Service("a", 2), at(800)))
	expect("one change", 200*time.Millisecond)
	r.SetService(triggered(r.Service("a", 2, func(s *v1alpha1.ServiceProxyRulesSpec) { s.ClusterIPs = []string{"10.96.0.77"} }), at(800)))
	expect("a change of something else")
	r.SetService(triggered(r.Service("a", 3), at(900)))
	r.SetService(triggered(r.Service("a", 4), at(950)))
	expect("two changes", 100*time.Millisecond, 50*time.Millisecond)

	r.kernel.Fail(errors.New("locked"))
	r.SetService(triggered(r.Service("a", 5), at(990)))
	expect("a failure")
	r.clock.SetTime(at(3000))
	r.SetService(triggered(r.Service("a", 6), at(2500)))
	expect("another failure")
	r.kernel.Fail(nil)
	expect("what has waited", 2010*time.Millisecond, 500*time.Millisecond)
	expect("nothing more")
	r.SetService(triggered(r.Service("a", 7), at(3500)))
	expect("a clock of another node that is ahead", 0)
	r.SetService(triggered(r.Service("a", 8), at(4000)))
	r.SetService(r.Service("a", 8, agenttest.Released))
	expect("the Service has ended meanwhile")
}

func TestChangeMetrics(t *testing.T) {
	r := newRig(t)
	expect := func(when string, want desired.ChangeTotals) {
		t.Helper()
		if diff := cmp.Diff(want, r.Snapshot().Changes, cmp.AllowUnexported(desired.ChangeTotals{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	commit := func() {
		t.Helper()
		r.sync()
		r.TakeProgrammedChanges()
	}
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("b", 2)})
	r.SetRules(r.Node())
	expect("a list", desired.ChangeTotals{Endpoints: 2, Services: 2, EndpointsPending: 2, ServicesPending: 2})
	commit()
	expect("in the kernel", desired.ChangeTotals{Endpoints: 2, Services: 2})
	r.SetService(r.Service("a", 1, func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Endpoints = nil }))
	r.SetService(r.Service("a", 1))
	expect("other endpoints, twice", desired.ChangeTotals{Endpoints: 4, Services: 2, EndpointsPending: 1})
	r.SetService(r.Service("b", 2, func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = 30080 }))
	expect("another node port", desired.ChangeTotals{Endpoints: 4, Services: 3, EndpointsPending: 1, ServicesPending: 1})
	r.SetRules(r.Node(withLocalEndpoints("10.244.1.1:8080")))
	expect("a local endpoint", desired.ChangeTotals{Endpoints: 5, Services: 3, EndpointsPending: 1, ServicesPending: 1})
	r.kernel.Fail(errors.New("locked"))
	commit()
	expect("a failure", desired.ChangeTotals{Endpoints: 5, Services: 3, EndpointsPending: 1, ServicesPending: 1})
	r.kernel.Fail(nil)
	commit()
	expect("in the kernel", desired.ChangeTotals{Endpoints: 5, Services: 3})
	r.SetService(r.Service("b", 2, agenttest.Released))
	expect("an end", desired.ChangeTotals{Endpoints: 5, Services: 4, ServicesPending: 1})
}

func TestConditionMetric(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	show := func() map[string]float64 {
		a.showMetrics(a.refresh())
		return values(t, a, "nodeproxy_agent_condition")
	}
	mustSync(t, a)
	if diff := cmp.Diff(map[string]float64{"Accepted Accepted": 1, "Programmed Programmed": 1}, show()); diff != "" {
		t.Errorf("all well (-want +got):\n%s", diff)
	}
	kernel.Fail(errors.New("locked"))
	r.SetService(r.Service("b", 2))
	if err := a.sync(context.Background()); err == nil {
		t.Fatal("no error")
	}
	if diff := cmp.Diff(map[string]float64{"Accepted Accepted": 1, "Failed Programmed": 0}, show()); diff != "" {
		t.Errorf("failed (-want +got):\n%s", diff)
	}
	lose(a)
	if diff := cmp.Diff(map[string]float64{"Accepted Accepted": 1, "ConflictingProxy Programmed": 0, "ConflictingProxy ConflictingProxy": 1}, show()); diff != "" {
		t.Errorf("another proxy (-want +got):\n%s", diff)
	}
	// The metrics port is the other proxy's: the kubelet's has them too.
	recorder := httptest.NewRecorder()
	a.servers.kubelet.Handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if !strings.Contains(recorder.Body.String(), `nodeproxy_agent_condition{reason="ConflictingProxy",type="ConflictingProxy"} 1`) {
		t.Errorf("%d: %s", recorder.Code, recorder.Body)
	}
}

func TestHealthAnswersAreCounted(t *testing.T) {
	a, r, _, _ := owningAgent(t)
	handler := a.servers.health.Handler
	for _, path := range []string{"/healthz", "/healthz", "/livez"} {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
	}
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Node.Draining = true }))
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/healthz", nil))
	expectValues(t, a, "kubeproxy_proxy_healthz_total", map[string]float64{"200": 2, "503": 1})
	expectValues(t, a, "kubeproxy_proxy_livez_total", map[string]float64{"200": 1, "503": 0})
}

func TestSyncsAreTimed(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(agenttest.Epoch)
	a, _, kernel, _ := owningAgent(t)
	a.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: &lasting{kernel, clk}})
	a.fanout.Clock = clk
	outcomes := a.fanout.Apply(t.Context(), prepare(a.store).Rulesets)
	if took := outcomes[dataplane.IPv4].Took; took != 3*time.Second {
		t.Errorf("took %v", took)
	}
}

// lasting is a data plane that takes 3 seconds.
type lasting struct {
	dataplane.Dataplane
	clock *clocktesting.FakePassiveClock
}

func (d *lasting) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	d.clock.SetTime(d.clock.Now().Add(3 * time.Second))
	return d.Dataplane.Apply(ctx, r)
}
