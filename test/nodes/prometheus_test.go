package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// mixinQueries are those of the kubernetes-mixin for kube-proxy, by alert and by panel of its
// dashboard. $kubeProxy stands for the selector that the mixin has by default, with the variables of
// the dashboard as they are without a choice of cluster and instance.
var mixinQueries = map[string]string{
	"KubeProxyInstanceUnreachable": `up{job="kube-proxy"} == 0`,
	"KubeProxyDown":                `absent(up{job="kube-proxy"} == 1)`,
	"up":                           `sum(up{cluster="", job="kube-proxy"})`,
	"sync rate":                    `sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{$kubeProxy}[5m]))`,
	"sync latency":                 `histogram_quantile(0.99,rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{$kubeProxy}[5m]))`,
	"programming rate":             `sum(rate(kubeproxy_network_programming_duration_seconds_count{$kubeProxy}[5m]))`,
	"programming latency":          `histogram_quantile(0.99, sum(rate(kubeproxy_network_programming_duration_seconds_bucket{$kubeProxy}[5m])) by (instance, le))`,
	"requests 2xx":                 `sum(rate(rest_client_requests_total{$kubeProxy,code=~"2.."}[5m]))`,
	"requests 3xx":                 `sum(rate(rest_client_requests_total{$kubeProxy,code=~"3.."}[5m]))`,
	"requests 4xx":                 `sum(rate(rest_client_requests_total{$kubeProxy,code=~"4.."}[5m]))`,
	"requests 5xx":                 `sum(rate(rest_client_requests_total{$kubeProxy,code=~"5.."}[5m]))`,
	"POST latency":                 `histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{$kubeProxy,verb="POST"}[5m])) by (verb, url, le))`,
	"GET latency":                  `histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{$kubeProxy, verb="GET"}[5m])) by (verb, url, le))`,
	"memory":                       `process_resident_memory_bytes{$kubeProxy}`,
	"CPU":                          `rate(process_cpu_seconds_total{$kubeProxy}[5m])`,
	"goroutines":                   `go_goroutines{$kubeProxy}`,
	"variable instance":            `kubeproxy_network_programming_duration_seconds_bucket{cluster="", job="kube-proxy"}`,
}

// silentMixin are the queries without an answer while nothing is wrong, with kube-proxy too.
var silentMixin = map[string]bool{
	"KubeProxyInstanceUnreachable": true, "KubeProxyDown": true,
	"requests 3xx": true, "requests 4xx": true, "requests 5xx": true,
}

// TestPrometheus has a real Prometheus collect the metrics of two agents and the controller as the
// monitors of config/prometheus and config/prometheus-mixin define it, and runs every query of the
// dashboard, those of the kubernetes-mixin for kube-proxy, and alerts.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	e := startNodes(t, 2)
	p := e.startPrometheus()
	agents := make([]*cluster.Process, 0, 2)
	for _, node := range e.nodeproxy.Cluster.Nodes() {
		agent, err := e.nodeproxy.StartAgent(node, "--health-probe-bind-address=:19256")
		if err != nil {
			t.Fatal(err)
		}
		agents = append(agents, agent)
	}
	e.until(e.nodeproxy.Programmed)
	e.createRelayed([]*cluster.Pod{e.server("one", "10.244.1.101")})
	policy := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "relayed"}}
	policy.Spec.ServiceSelector = v1alpha1.LabelSelector{MatchLabels: map[string]string{"relay": "yes"}}
	policy.Spec.Overrides.Serving = new(v1alpha1.ServingUserspace)
	if err := e.nodeproxy.Cluster.Client().Create(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	visitor := e.client("visitor")
	e.until(func(ctx context.Context) error {
		for _, ips := range relayed {
			if _, err := visitor.Dial(ctx, "tcp", at(ips.cluster, 80)); err != nil {
				return err
			}
		}
		return e.relays(ctx, true)
	})
	e.balanced("served", "web")

	queries := dashboardQueries(t)
	const problem = "Nodes with problems 0"
	for name, query := range mixinQueries {
		queries["mixin: "+name] = strings.ReplaceAll(query, "$kubeProxy", `cluster="", job="kube-proxy", instance=~".+"`)
	}
	web, err := e.node.RunPod(t.Context(), cluster.PodSpec{Name: "web", Labels: map[string]string{"app": "web"}})
	if err != nil {
		t.Fatal(err)
	}
	ready := true
	for name, query := range queries {
		if name == problem || silentMixin[strings.TrimPrefix(name, "mixin: ")] {
			continue
		}
		e.until(func(ctx context.Context) error {
			ready = !ready // rates need changes of endpoints
			return errors.Join(web.SetReady(ctx, ready), p.answers(ctx, name, query))
		})
	}
	for _, name := range []string{problem, "mixin: KubeProxyDown", "mixin: KubeProxyInstanceUnreachable"} {
		if p.answers(t.Context(), name, queries[name]) == nil {
			t.Errorf("%s has an answer although nothing is wrong", name)
		}
	}
	// A Service of mode Userspace has its own namespace, not that of the agent's pod.
	e.until(func(ctx context.Context) error {
		return p.answers(ctx, "namespace", `nodeproxy_agent_userspace_open_connections{namespace="default", service="relayed", node="`+e.node.Name()+`"}`)
	})

	silent := e.nodeproxy.Cluster.Node(1)
	if err := agents[1].Kill(); err != nil {
		t.Fatal(err)
	}
	e.until(func(ctx context.Context) error {
		return p.answers(ctx, "unreachable", queries["mixin: KubeProxyInstanceUnreachable"])
	})
	e.within(reportedWithin, func(ctx context.Context) error {
		return errors.Join(p.answers(ctx, problem, queries[problem]),
			p.answers(ctx, "the alert", alertExpression(t, "NodeproxyAgentNotResponding")),
			p.answers(ctx, "the node", `nodeproxy_controller_node_problem{state="stale", node="`+silent.Name()+`"}`))
	})
	if err := agents[0].Kill(); err != nil {
		t.Fatal(err)
	}
	e.until(func(ctx context.Context) error { return p.answers(ctx, "down", queries["mixin: KubeProxyDown"]) })
}

// dashboardQueries are the queries of the dashboard by panel and number, with its variables as Grafana
// replaces them if all nodes are shown.
func dashboardQueries(t *testing.T) map[string]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	text, err := os.ReadFile("../../config/grafana/nodeproxy.json")
	if err := errors.Join(err, json.Unmarshal(text, &dashboard)); err != nil {
		t.Fatal(err)
	}
	variables := strings.NewReplacer("$node", ".*", "$__rate_interval", "1m")
	out := map[string]string{}
	for _, panel := range dashboard.Panels {
		for i, target := range panel.Targets {
			out[fmt.Sprintf("%s %d", panel.Title, i)] = variables.Replace(target.Expr)
		}
	}
	return out
}

func alertExpression(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../config/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`alert: ` + name + `\n +expr: '([^']+)'`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no alert %s", name)
	}
	return string(found[1])
}

// prometheus is a server in the network namespace of the control plane.
type prometheus struct{ place *cluster.Place }

// answers returns nil if the query has an answer that is a number. The latency of requests need not be
// one: agents watch, and make none for minutes, like kube-proxy.
func (p prometheus) answers(ctx context.Context, name, query string) error {
	text, err := p.place.Get(ctx, "http://127.0.0.1:9090/api/v1/query?"+url.Values{"query": {query}}.Encode())
	if err != nil {
		return fmt.Errorf("%s: %s: %w", name, query, err)
	}
	var answer struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, r := range answer.Data.Result {
		if r.Value[1] != "NaN" || strings.HasSuffix(name, "GET latency") || strings.HasSuffix(name, "POST latency") {
			return nil
		}
	}
	return fmt.Errorf("%s: no data: %s: %s", name, query, text)
}

// startPrometheus starts a Prometheus. The one of Debian cannot discover pods by the API, so its targets
// have the labels that discovery would give to agents and controller, which run as processes here.
func (e *env) startPrometheus() prometheus {
	e.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		e.Fatalf("hack/install-packages.sh installs it: %v", err)
	}
	config, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "scrape_timeout": "1s"},
		"scrape_configs": e.scrapeConfigs(),
	})
	if err != nil {
		e.Fatal(err)
	}
	directory := e.TempDir()
	file := filepath.Join(directory, "prometheus.yaml")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		e.Fatal(err)
	}
	place := e.nodeproxy.Cluster.ControlPlane()
	process, err := place.Start(cluster.Command{Path: program, Args: []string{
		"--config.file", file, "--storage.tsdb.path", filepath.Join(directory, "data"), "--web.listen-address", "127.0.0.1:9090", "--log.level", "warn",
	}})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		// Not Stop: the cluster ends with the test's context, and may kill it meanwhile.
		if err := process.Kill(); err != nil {
			e.Error(err)
		}
		if e.Failed() {
			e.Log(process.Tail())
		}
	})
	return prometheus{place}
}

// pods are what discovery finds: the ports of the pods in the networks of their nodes.
func (e *env) pods() (out []map[string]any) {
	add := func(app, port, address string, node *cluster.Node) {
		out = append(out, map[string]any{"targets": []string{address}, "labels": map[string]string{
			"__meta_kubernetes_namespace":                        install.Namespace,
			"__meta_kubernetes_pod_name":                         app + "-" + node.Name(),
			"__meta_kubernetes_pod_node_name":                    node.Name(),
			"__meta_kubernetes_pod_label_app_kubernetes_io_name": app,
			"__meta_kubernetes_pod_container_name":               app,
			"__meta_kubernetes_pod_container_port_name":          port,
		}})
	}
	for _, node := range e.nodeproxy.Cluster.Nodes() {
		add("nodeproxy-agent", "probes", node.AddressPort(19256), node)
		add("nodeproxy-agent", "healthz", node.AddressPort(10256), node)
	}
	add("nodeproxy-controller", "metrics", "127.0.0.1:8080", e.node)
	return out
}

// podMonitor is the part of the kind that our monitors use.
type podMonitor struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Selector  metav1.LabelSelector `json:"selector"`
		Endpoints []struct {
			Port        string           `json:"port"`
			HonorLabels bool             `json:"honorLabels"`
			Relabelings []map[string]any `json:"relabelings"`
		} `json:"podMetricsEndpoints"`
	} `json:"spec"`
}

// scrapeConfigs are what the Prometheus operator makes of the monitors.
func (e *env) scrapeConfigs() (out []map[string]any) {
	e.Helper()
	monitors, err := os.ReadFile("../../config/prometheus/monitors.yaml")
	if err != nil {
		e.Fatal(err)
	}
	mixin, err := os.ReadFile("../../config/prometheus-mixin/kustomization.yaml")
	if err != nil {
		e.Fatal(err)
	}
	var component struct {
		Patches []struct {
			Patch string `json:"patch"`
		} `json:"patches"`
	}
	if err := yaml.Unmarshal(mixin, &component); err != nil {
		e.Fatal(err)
	}
	for document := range strings.SplitSeq(string(monitors), "\n---\n") {
		var m podMonitor
		if err := yaml.Unmarshal([]byte(document), &m); err != nil {
			e.Fatal(err)
		}
		var patch podMonitor
		if err := yaml.Unmarshal([]byte(component.Patches[0].Patch), &patch); err != nil {
			e.Fatal(err)
		}
		if patch.Metadata.Name == m.Metadata.Name {
			m.Spec.Endpoints = patch.Spec.Endpoints
		}
		for i, endpoint := range m.Spec.Endpoints {
			relabel := []map[string]any{
				{"action": "keep", "source_labels": []string{"__meta_kubernetes_pod_label_app_kubernetes_io_name"}, "regex": m.Spec.Selector.MatchLabels["app.kubernetes.io/name"]},
				{"action": "keep", "source_labels": []string{"__meta_kubernetes_pod_container_port_name"}, "regex": endpoint.Port},
				{"source_labels": []string{"__meta_kubernetes_namespace"}, "target_label": "namespace"},
				{"source_labels": []string{"__meta_kubernetes_pod_container_name"}, "target_label": "container"},
				{"source_labels": []string{"__meta_kubernetes_pod_name"}, "target_label": "pod"},
				{"target_label": "job", "replacement": m.Metadata.Namespace + "/" + m.Metadata.Name},
				{"target_label": "endpoint", "replacement": endpoint.Port},
			}
			for _, r := range endpoint.Relabelings {
				rule := map[string]any{}
				for key, value := range r {
					rule[snake(key)] = value
				}
				relabel = append(relabel, rule)
			}
			out = append(out, map[string]any{
				"job_name":        "podMonitor/" + m.Metadata.Namespace + "/" + m.Metadata.Name + "/" + strconv.Itoa(i),
				"honor_labels":    endpoint.HonorLabels,
				"static_configs":  e.pods(),
				"relabel_configs": relabel,
			})
		}
	}
	return out
}

// snake writes a key of the operator as Prometheus does: targetLabel, target_label.
func snake(key string) string {
	return regexp.MustCompile(`[A-Z]`).ReplaceAllStringFunc(key, func(c string) string { return "_" + strings.ToLower(c) })
}
