package manifests_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// maxCRDBytes is what a CRD may have: kubectl apply writes it a second time into
// an annotation, which may hold 256 KiB.
const maxCRDBytes = 200_000

// kustomizations returns the directories of config that kustomize builds, and the
// components, which are built as a part of config/default only.
func kustomizations(t *testing.T) (directories, components []string) {
	t.Helper()
	for path, text := range readManifests(t) {
		if filepath.Base(path) != "kustomization.yaml" {
			continue
		}
		var file struct{ Kind string }
		if err := yaml.Unmarshal([]byte(text), &file); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if name := filepath.Base(filepath.Dir(path)); file.Kind == "Component" {
			components = append(components, name)
		} else {
			directories = append(directories, name)
		}
	}
	slices.Sort(directories)
	slices.Sort(components)
	return directories, components
}

// dryRun has the API server look at manifests as it would before storing them.
func dryRun(t *testing.T, args ...string) {
	t.Helper()
	out, err := kubectl(t.Context(), append([]string{"apply", "--dry-run=server"}, args...)...)
	if err != nil || strings.Contains(out, "Warning") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestEveryManifestIsTaken(t *testing.T) {
	directories, _ := kustomizations(t)
	// This one is for hack/bundle, with a kind of OLM's: test/bundle.
	directories = slices.DeleteFunc(directories, func(directory string) bool { return directory == "manifests" })
	for _, directory := range directories {
		t.Run(directory, func(t *testing.T) { dryRun(t, "-k", configDirectory(directory)) })
	}
	samples, err := filepath.Glob(configDirectory("samples", "nodeproxy-*.yaml"))
	if err != nil || len(samples) == 0 {
		t.Fatalf("samples %v, %v", samples, err)
	}
	for _, sample := range samples {
		t.Run(filepath.Base(sample), func(t *testing.T) { dryRun(t, "-f", sample) })
	}
}

// installManifest runs make install-manifest's script and returns what it writes.
func installManifest(t *testing.T, variables ...string) (text, output string, err error) {
	t.Helper()
	target := filepath.Join(t.TempDir(), "install.yaml")
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "hack", "install-manifest.sh"))
	cmd.Env = append(os.Environ(), append(variables, "MANIFEST_OUTPUT="+target)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", string(out), err
	}
	written, err := os.ReadFile(target)
	return string(written), string(out), err
}

// withPrometheusOperator installs the kinds of the Prometheus operator.
func withPrometheusOperator(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/prometheus-operator/prometheus-operator")
	cmd.Dir = filepath.Join("testdata", "prometheus-operator")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("getting the Prometheus operator: %v\n%s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"podmonitors", "prometheusrules"} {
		file := filepath.Join(module.Dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+kind+".yaml")
		if out, err := kubectl(t.Context(), "apply", "--server-side", "-f", file); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out, err := kubectl(t.Context(), "wait", "--for=condition=Established", "--timeout=60s", "crd", kind+".monitoring.coreos.com"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
}

func TestInstallManifest(t *testing.T) {
	withPrometheusOperator(t)
	_, components := kustomizations(t)
	if _, err := os.ReadFile(filepath.Join("..", "..", "hack", "install-manifest.sh")); err != nil {
		t.Fatal(err) // read here for the cache of go test
	}
	for _, c := range []struct {
		name      string
		variables []string
		holds     []string
		lacks     []string
	}{
		{
			name: "plain", variables: []string{"VERSION=v1.2.3"},
			holds: []string{"image: nodeproxy.io/nodeproxy-controller:v1.2.3\n", "value: nodeproxy.io/nodeproxy-agent:v1.2.3\n"},
			lacks: []string{"kind: ConfigMap\n", ":dev\n", "\nkind: NodeProxy\n", "kind: DaemonSet\n", "kind: PodMonitor\n"},
		},
		{
			name:      "with everything",
			variables: []string{"VERSION=v1.2.3-4-gabc-dirty", "IMAGE_REGISTRY=registry.example.com/infra/", "API_SERVERS=https://192.0.2.10:6443  https://[2001:db8::1]:6443", "COMPONENTS=" + strings.Join(components, " ")},
			holds: []string{
				"image: registry.example.com/infra/nodeproxy-controller:v1.2.3-4-gabc-dirty\n",
				"value: registry.example.com/infra/nodeproxy-agent:v1.2.3-4-gabc-dirty\n",
				"  endpoints: |\n    https://192.0.2.10:6443\n    https://[2001:db8::1]:6443\n",
				"replicas: 1\n", "kind: PodMonitor\n", "kind: PrometheusRule\n", "- --metrics-bind-address=[$(HOST_IP)]:19257\n", "- --expose-agent-metrics\n",
				"replacement: kube-proxy\n", `grafana_dashboard: "1"`,
			},
			lacks: []string{":dev\n", "replicas: 2\n", "127.0.0.1:19257"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, out, err := installManifest(t, c.variables...)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, part := range c.holds {
				if !strings.Contains(text, part) {
					t.Errorf("it lacks %q", part)
				}
			}
			for _, part := range c.lacks {
				if strings.Contains(text, part) {
					t.Errorf("it holds %q", part)
				}
			}
			if !strings.HasPrefix(text, "apiVersion: v1\nkind: Namespace\n") {
				t.Error("it does not begin with the namespace, in which other objects are made")
			}
			file := filepath.Join(t.TempDir(), "install.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			dryRun(t, "-f", file)
		})
	}
}

// TestInstallManifestInAnotherNamespace does what docs/security.md describes.
func TestInstallManifestInAnotherNamespace(t *testing.T) {
	text, out, err := installManifest(t, "VERSION=v1.2.3", "API_SERVERS=https://192.0.2.10:6443")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	other := newNamespace(t, "another")
	file := filepath.Join(t.TempDir(), "install.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, namespace, other)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err = kubectl(t.Context(), "apply", "--dry-run=server", "--server-side", "--force-conflicts", "-f", file)
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestInstallManifestRejectsWhatCannotWork(t *testing.T) {
	for name, c := range map[string]struct{ variable, reports string }{
		"version":    {"VERSION=v1+dirty", `VERSION is "v1+dirty"`},
		"API server": {"API_SERVERS=192.0.2.10:6443", `API_SERVERS holds "192.0.2.10:6443"`},
		"component":  {"COMPONENTS=rbac", `COMPONENTS names "rbac"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, out, err := installManifest(t, "VERSION=v1", c.variable)
			if err == nil || !strings.Contains(out, c.reports) {
				t.Errorf("%v, %s; want a failure that reports %s", err, out, c.reports)
			}
		})
	}
}

func TestCRDsAreSmall(t *testing.T) {
	files, err := filepath.Glob(configDirectory("crd", "bases", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("CRDs %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if len(text) >= maxCRDBytes {
			t.Errorf("%s has %d bytes, want less than %d", file, len(text), maxCRDBytes)
		}
	}
}
