package chart_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// objects are those of a stream of YAML, by kind, namespace and name.
func objects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	out := map[string]map[string]any{}
	for document := range strings.SplitSeq("\n"+text, "\n---\n") {
		o := unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &o.Object); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		if len(o.Object) == 0 {
			continue
		}
		name := fmt.Sprintf("%s %s/%s", o.GroupVersionKind().GroupKind(), o.GetNamespace(), o.GetName())
		if out[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		out[name] = o.Object
	}
	return out
}

// template renders the chart without a cluster.
func template(t *testing.T, args ...string) map[string]map[string]any {
	t.Helper()
	return objects(t, helm(t, append([]string{"template", "nodeproxy", chartDirectory, "--namespace", "kube-system", "--include-crds"}, args...)...))
}

// kustomize builds directories and components of config, with the images of one version.
func kustomize(t *testing.T, directories, components []string) map[string]map[string]any {
	t.Helper()
	overlay := t.TempDir()
	relative := func(names []string) []string {
		var out []string
		for _, name := range names {
			target, err := filepath.Abs(path("config", name))
			if err == nil {
				target, err = filepath.Rel(overlay, target)
			}
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, target)
		}
		return out
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
		"resources": relative(directories), "components": relative(components),
		"images": []any{map[string]any{"name": "nodeproxy.io/nodeproxy-agent", "newTag": "dev"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return objects(t, run(t, nil, path("hack", "tool.sh"), "kustomize", "build", overlay))
}

// folded compares texts without empty lines: kustomize adds some when it writes folded ones.
var folded = cmp.Comparer(func(a, b string) bool {
	return strings.ReplaceAll(a, "\n\n", "\n") == strings.ReplaceAll(b, "\n\n", "\n")
})

// keptByAll checks that Helm leaves what Argo CD and Flux leave, of the objects that it would delete, and removes
// the annotation for Helm.
func keptByAll(t *testing.T, name string, object map[string]any) {
	t.Helper()
	kind, _, _ := strings.Cut(name, ".")
	if kind == "CustomResourceDefinition" {
		return // not part of the release
	}
	o := unstructured.Unstructured{Object: object}
	annotations := o.GetAnnotations()
	if all := []string{annotations["helm.sh/resource-policy"], annotations["argocd.argoproj.io/sync-options"], annotations["kustomize.toolkit.fluxcd.io/prune"]}; slices.Contains([]string{
		"Namespace /nodeproxy-system", "ServiceAccount nodeproxy-system/nodeproxy-controller", "ServiceAccount nodeproxy-system/nodeproxy-agent",
		"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "DaemonSet",
	}, kind) {
		if want := []string{"keep", "Prune=false,Delete=false", "disabled"}; !slices.Equal(all, want) {
			t.Errorf("%s has annotations %q, want %q", name, all, want)
		}
	} else if strings.Join(all, "") != "" {
		t.Errorf("%s would be left", name)
	}
	delete(annotations, "helm.sh/resource-policy")
	o.SetAnnotations(annotations)
}

// TestRendersConfig compares the chart with what kustomize makes of the same files.
func TestRendersConfig(t *testing.T) {
	cases := []struct {
		name                    string
		directories, components []string
		args                    []string
	}{
		{name: "default", directories: []string{"default"}},
		{name: "Prometheus", directories: []string{"default"}, components: []string{"prometheus"}, args: []string{"--set", "prometheus.enabled=true"}},
		{name: "single node", directories: []string{"default"}, components: []string{"single-node"}, args: []string{"--set", "controller.replicas=1"}},
		{name: "unmanaged agents", directories: []string{"default", "agent"}, args: []string{"--set", "nodeProxy.spec.agent.management=Unmanaged"}},
		{name: "everything", directories: []string{"default", "agent"}, components: []string{"prometheus", "prometheus-mixin", "grafana", "single-node"},
			args: []string{"--set", "prometheus.enabled=true,prometheus.kubeProxyJob=true,grafana.enabled=true,controller.replicas=1,nodeProxy.spec.agent.management=Unmanaged"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := template(t, append(c.args, "--set", "image.tag=dev,nodeProxy.create=false")...)
			for name, object := range got {
				keptByAll(t, name, object)
			}
			if diff := cmp.Diff(kustomize(t, c.directories, c.components), got, folded); diff != "" {
				t.Errorf("the chart differs from config (-config +chart):\n%s", diff)
			}
		})
	}
	files, err := filepath.Glob(path("config", "*", "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(filepath.Dir(file))
		if bytes.Contains(text, []byte("\nkind: Component\n")) && !slices.Contains(cases[len(cases)-1].components, name) {
			t.Errorf("the chart has no value for the component %s", name)
		}
	}
}

// TestNodeProxy compares the chart's with the sample of a complete installation.
func TestNodeProxy(t *testing.T) {
	text, err := os.ReadFile(path("config", "samples", "nodeproxy-managed.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const name = "NodeProxy.nodeproxy.io /cluster"
	got, want := template(t)[name], objects(t, string(text))[name]
	for _, add := range [][]string{{"Enforce", "spec", "settings", "enforcement"}, {"keep", "metadata", "annotations", "helm.sh/resource-policy"}} {
		if err := unstructured.SetNestedField(want, add[0], add[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-sample +chart:\n%s", diff)
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{name: "tag", want: "image: nodeproxy.io/nodeproxy-controller:v0.1.0"},
		{name: "registry", args: []string{"--set", "image.registry=registry.example.com/infra/,image.tag=v1"}, want: "image: registry.example.com/infra/nodeproxy-controller:v1"},
		{name: "registry of the agents", args: []string{"--set", "image.registry=registry.example.com,image.tag=v1"}, want: "value: registry.example.com/nodeproxy-agent:v1"},
		{name: "digest", args: []string{"--set", "image.controller=a@sha256:1,image.agent=b@sha256:2"}, want: "image: a@sha256:1"},
		{name: "API servers", args: []string{"--set", "apiServers={https://192.0.2.10:6443,https://[2001:db8::1]:6443}"},
			want: "- name: NODEPROXY_API_SERVERS\n          value: https://192.0.2.10:6443 https://[2001:db8::1]:6443\n"},
		{name: "pull Secrets", args: []string{"--set", "nodeProxy.spec.agent.imagePullSecrets[0].name=registry"}, want: "      imagePullSecrets:\n      - name: registry\n"},
		{name: "no agent", args: []string{"--set", "nodeProxy.spec.agent=null"}, want: "replicas: 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := helm(t, append([]string{"template", "nodeproxy", chartDirectory, "--show-only", "templates/controller.yaml"}, c.args...)...)
			if !strings.Contains(out, c.want) {
				t.Errorf("without %q:\n%s", c.want, out)
			}
		})
	}
}

// TestQuickstarts renders the chart by each helm install of docs/quickstart.md.
func TestQuickstarts(t *testing.T) {
	text, err := os.ReadFile(path("docs", "quickstart.md"))
	if err != nil {
		t.Fatal(err)
	}
	const install = "helm install nodeproxy dist/nodeproxy-0.1.0.tgz "
	commands := strings.Split(strings.ReplaceAll(string(text), "\\\n", ""), install)[1:]
	if len(commands) < 4 {
		t.Errorf("only %d quickstarts", len(commands))
	}
	for _, command := range commands {
		line, _, _ := strings.Cut(command, "\n")
		rendered := template(t, strings.Fields(line)...)
		np, create := rendered["NodeProxy.nodeproxy.io /cluster"], !strings.Contains(line, "nodeProxy.create=false")
		mode, _, _ := unstructured.NestedString(np, "spec", "settings", "detectLocal", "mode")
		if create != (np != nil) || create && !slices.Contains(strings.Fields(line), "nodeProxy.spec.settings.detectLocal.mode="+mode) {
			t.Errorf("%s: %v", line, np)
		}
		ranges, _, _ := unstructured.NestedStringSlice(np, "spec", "settings", "detectLocal", "clusterCIDRs")
		if (mode == "ClusterCIDR") != (len(ranges) == 1 && strings.Contains(line, "{"+ranges[0]+"}")) {
			t.Errorf("%s: ranges %q", line, ranges)
		}
	}
}

// TestOwnNamespace stores the release in nodeproxy's namespace, which Helm has created then.
func TestOwnNamespace(t *testing.T) {
	const namespace = "Namespace /nodeproxy-system"
	if template(t)[namespace] == nil {
		t.Error("there is no namespace")
	}
	if template(t, "--namespace", "nodeproxy-system")[namespace] != nil {
		t.Error("Helm would not create the namespace twice")
	}
}

func TestLint(t *testing.T) {
	out := helm(t, "lint", "--strict", chartDirectory)
	if !strings.Contains(out, "1 chart(s) linted, 0 chart(s) failed") || strings.Contains(out, "[") {
		t.Error(out)
	}
}

// TestPackage runs make chart's script, twice with the same result.
func TestPackage(t *testing.T) {
	var archives [][]byte
	for range 2 {
		directory := t.TempDir()
		build := func(version, archive string) string {
			t.Helper()
			run(t, []string{"VERSION=" + version, "RELEASE=0.1.0", "IMAGE_REGISTRY=registry.example.com/infra/", "CHART_OUTPUT=" + directory}, path("hack", "chart.sh"))
			return filepath.Join(directory, archive)
		}
		archive := build("v1.2.3", "nodeproxy-1.2.3.tgz")
		text, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, text)
		out := helm(t, "template", "nodeproxy", archive, "--include-crds")
		for _, want := range []string{"image: registry.example.com/infra/nodeproxy-controller:v1.2.3\n", "value: registry.example.com/infra/nodeproxy-agent:v1.2.3\n", "kind: CustomResourceDefinition\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("without %q", want)
			}
		}
		commit := build("0123456-dirty", "nodeproxy-0.1.0-dev-0123456-dirty.tgz")
		if out := helm(t, "show", "chart", commit); !strings.Contains(out, "appVersion: 0123456-dirty\n") {
			t.Error(out)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("the second archive differs")
	}
}
