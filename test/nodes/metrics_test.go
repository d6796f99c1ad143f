package nodes

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// absentMetrics are those of kube-proxy that the agent does not have, and why.
var absentMetrics = map[string]string{
	"kubeproxy_iptables_ct_state_invalid_dropped_packets_total":     "rules have no nfacct counters",
	"kubeproxy_iptables_localhost_nodeports_accepted_packets_total": "rules have no nfacct counters",
}

// lateMetrics are those that kube-proxy has only once they have counted
// something; conntrack's histogram is left to the tests of metrics.
var lateMetrics = map[string][]string{
	"kubeproxy_conntrack_reconciler_deleted_entries_total":               {"counter", "ip_family=IPv4", "ip_family=IPv6"},
	"kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total": {"counter", "ip_family=IPv4", "ip_family=IPv6"},
	"kubeproxy_sync_proxy_rules_iptables_restore_failures_total":         {"counter", "ip_family=IPv4", "ip_family=IPv6"},
}

// TestMetricsAreThoseOfKubeProxy compares types, labels and buckets of
// kube-proxy's metrics with those of the agent on the same node.
func TestMetricsAreThoseOfKubeProxy(t *testing.T) {
	t.Parallel()
	e := start(t)
	for _, name := range []string{"web-1", "web-2"} {
		if _, err := e.node.RunPod(t.Context(), cluster.PodSpec{Name: name, Labels: map[string]string{"app": "web"}}); err != nil {
			t.Fatal(err)
		}
	}
	e.balanced("served", "web")
	kubeProxy := e.startKubeProxy()
	want := e.proxyMetrics("10249")
	if err := kubeProxy.Stop(); err != nil {
		t.Fatal(err)
	}
	e.startAgent()
	e.programmed()
	got := e.proxyMetrics("10249")
	for name := range absentMetrics {
		delete(want, name)
	}
	for name, shape := range lateMetrics {
		if want[name] == nil {
			want[name] = shape
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-kube-proxy +agent):\n%s", diff)
	}
	if diff := cmp.Diff(got, e.proxyMetrics("19256")); diff != "" {
		t.Errorf("on the port for the kubelet's probes (-metrics port +it):\n%s", diff)
	}
}

// proxyMetrics returns type, labels and buckets of each metric with kube-proxy's
// prefix, after full and partial syncs of both families.
func (e *env) proxyMetrics(port string) map[string][]string {
	e.Helper()
	url := "http://" + net.JoinHostPort("127.0.0.1", port) + "/metrics"
	var out map[string][]string
	n := 0
	e.until(func(ctx context.Context) error {
		n++ // a change of endpoints in each round, for a partial sync
		name := fmt.Sprintf("more-%s-%d", port, n)
		if _, err := e.node.RunPod(ctx, cluster.PodSpec{Name: name, Labels: map[string]string{"app": "web"}}); err != nil {
			return err
		}
		for _, path := range []string{"/healthz", "/livez"} {
			if _, err := e.ask(ctx, http.MethodGet, "http://"+e.node.AddressPort(10256)+path); err != nil {
				return err
			}
		}
		text, err := e.node.Get(ctx, url)
		if err != nil {
			return err
		}
		out = shapes(text)
		for _, name := range []string{"kubeproxy_network_programming_duration_seconds", "kubeproxy_sync_partial_proxy_rules_duration_seconds"} {
			for _, family := range []string{"ip_family=IPv4", "ip_family=IPv6"} {
				if !slices.Contains(out[name], family) {
					return fmt.Errorf("%s has no %s yet", name, family)
				}
			}
		}
		delete(out, "kubeproxy_conntrack_reconciler_sync_duration_seconds")
		return nil
	})
	return out
}

// shapes reads the type and all label sets of kube-proxy's metrics, but for
// those of answers that were not given.
func shapes(text string) map[string][]string {
	out := map[string][]string{}
	kind, name := "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "# TYPE kubeproxy_"); ok {
			name, kind, _ = strings.Cut(rest, " ")
			name = "kubeproxy_" + name
			out[name] = []string{kind}
			continue
		}
		if !strings.HasPrefix(line, name) || name == "" || strings.Contains(line, `code="503"`) {
			continue
		}
		if _, labels, found := strings.Cut(line, "{"); found {
			labels, _, _ = strings.Cut(labels, "}")
			labels = strings.ReplaceAll(labels, `"`, "")
			if !slices.Contains(out[name], labels) {
				out[name] = append(out[name], labels)
			}
		}
	}
	return out
}
