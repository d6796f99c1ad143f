package chart_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/test/apiserver"
)

// released is the chart with the CRDs of the last release.
func released(t *testing.T) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "nodeproxy")
	run(t, nil, "cp", "-rL", chartDirectory, directory)
	files, err := filepath.Glob(path("config", "crd", "released", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("released CRDs %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// Also where the released one has not changed since.
		old := strings.Replace(string(text), "  annotations:\n", "  annotations:\n    test.nodeproxy.io/release: old\n", 1)
		if err := os.WriteFile(filepath.Join(directory, "crds", filepath.Base(file)), []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

const node = `apiVersion: v1
kind: Node
metadata: {name: NAME, labels: {kubernetes.io/os: OS}}
`

// slice is one of a Service. The API server writes the kubernetes Service's own, unless it has a loopback address.
const slice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes-PREFIX, namespace: default, labels: {kubernetes.io/service-name: NAME}}
addressType: TYPE
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [ADDRESS]}]
`

// server is an API server without controllers.
type server struct {
	*testing.T
	*apiserver.Server
}

func newServer(t *testing.T) *server {
	t.Helper()
	return &server{t, apiserver.Start(t)}
}

// variables make programs use the server.
func (s *server) variables() []string { return []string{"KUBECONFIG=" + s.Kubeconfig} }

func (s *server) helm(args ...string) {
	s.Helper()
	run(s.T, s.variables(), path("hack", "tool.sh"), append([]string{"helm", "--namespace", "kube-system"}, args...)...)
}

func (s *server) kubectl(args ...string) string {
	s.Helper()
	return strings.TrimSpace(run(s.T, s.variables(), s.Kubectl, args...))
}

func (s *server) apply(text string, replacements ...string) {
	s.Helper()
	file := filepath.Join(s.TempDir(), "object.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer(replacements...).Replace(text)), 0o600); err != nil {
		s.Fatal(err)
	}
	s.kubectl("apply", "--server-side", "-f", file)
}

// expect checks what kubectl get prints.
func (s *server) expect(what, want string, args ...string) {
	s.Helper()
	if got := s.kubectl(append([]string{"get"}, args...)...); got != want {
		s.Errorf("%s: %q, want %q", what, got, want)
	}
}

// TestLifecycle installs, upgrades, rolls back and uninstalls the chart. Pods do not run here:
// test/e2e has the rest.
func TestLifecycle(t *testing.T) {
	s := newServer(t)
	deployment := func(what, field, want string) {
		t.Helper()
		s.expect(what, want, "deployment", "nodeproxy-controller", "--namespace", "nodeproxy-system", "--output", "jsonpath={.spec."+field+"}")
	}
	crds := func(what, want string) {
		t.Helper()
		s.expect(what, want, "crds", "--output", `jsonpath={.items[*].metadata.annotations.test\.nodeproxy\.io/release}`)
	}
	enforcement := func(want string) {
		t.Helper()
		s.expect("enforcement", want, "nodeproxy", "cluster", "--output", "jsonpath={.spec.settings.enforcement}")
	}
	s.apply(node, "NAME", "node-1", "OS", "linux")
	s.apply(node, "NAME", "node-w", "OS", "windows")
	s.apply(slice, "PREFIX", "4", "NAME", "kubernetes", "TYPE", "IPv4", "ADDRESS", "192.0.2.11")
	s.apply(slice, "PREFIX", "6", "NAME", "kubernetes", "TYPE", "IPv6", "ADDRESS", `"2001:db8::1"`)
	s.apply(slice, "PREFIX", "other", "NAME", "other", "TYPE", "IPv4", "ADDRESS", "192.0.2.99")

	s.helm("install", "nodeproxy", released(t))
	crds("CRDs of the older chart", "old old old old old")
	enforcement("Enforce")
	deployment("controllers on one Linux node", "replicas", "1")
	servers := strings.Fields(s.kubectl("get", "deployment", "nodeproxy-controller", "--namespace", "nodeproxy-system",
		"--output", `jsonpath={.spec.template.spec.containers[0].env[?(@.name=="NODEPROXY_API_SERVERS")].value}`))
	if !slices.Contains(servers, "https://192.0.2.11:6443") || !slices.Contains(servers, "https://[2001:db8::1]:6443") || slices.Contains(servers, "https://192.0.2.99:6443") {
		t.Errorf("API servers %q", servers)
	}
	uid := s.kubectl("get", "nodeproxy", "cluster", "--output", "jsonpath={.metadata.uid}")

	s.apply(node, "NAME", "node-2", "OS", "linux")
	s.helm("upgrade", "nodeproxy", chartDirectory, "--set", "nodeProxy.spec.settings.enforcement=Audit")
	crds("upgraded CRDs", "")
	enforcement("Audit")
	deployment("controllers on two Linux nodes", "replicas", "2")

	s.helm("rollback", "nodeproxy", "1")
	crds("CRDs after a rollback", "")
	enforcement("Enforce")
	deployment("controllers after a rollback", "replicas", "1")

	s.helm("uninstall", "nodeproxy")
	s.expect("CRDs after uninstall", "5", "crds", "--output", "go-template={{len .items}}")
	s.expect("NodeProxy after uninstall", uid, "nodeproxy", "cluster", "--output", "jsonpath={.metadata.uid}")
	s.expect("account after uninstall", "serviceaccount/nodeproxy-agent", "serviceaccount", "nodeproxy-agent", "--namespace", "nodeproxy-system", "--output", "name")
	s.expect("left after uninstall", "", "deployments,poddisruptionbudgets,validatingadmissionpolicies,flowschemas", "--all-namespaces", "--selector", "app.kubernetes.io/managed-by=Helm", "--output", "name")
}
