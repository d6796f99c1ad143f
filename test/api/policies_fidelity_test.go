package api_test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// A field that the API server defaulted would be set by a policy whose author did not
// set it.
func TestPoliciesKeepWhatWasWritten(t *testing.T) {
	specs := map[string][]string{
		"NodeProxyPolicy": {
			`{nodeSelector: {}, settings: {}}`,
			`{nodeSelector: {matchLabels: {}}, settings: {mode: IPTables}, rollout: {}}`,
			`{nodeSelector: {}, settings: {nodePorts: {localhost: Disabled}}, rollout: {paused: false}}`,
			`{priority: 0, nodeSelector: {matchExpressions: []}, settings: {ipvs: {excludeCIDRs: []}}, rollout: {maxUnavailable: "25%"}}`,
		},
		"ServiceProxyPolicy": {
			`{namespaceSelector: {}, serviceSelector: {}, overrides: {}}`,
			`{namespaceSelector: {}, serviceSelector: {matchLabels: {}}, overrides: {nodePorts: Enabled}}`,
			`{priority: 0, namespaceSelector: {}, serviceSelector: {}, overrides: {loadBalancerSourceRanges: ["198.51.100.7/24"]}}`,
		},
	}
	for _, kind := range slices.Sorted(maps.Keys(specs)) {
		for _, spec := range specs[kind] {
			t.Run(kind+" "+spec, func(t *testing.T) { preserves(t, kind, spec) })
		}
	}
}

// preserves creates an object, and writes it again after reading it by the Go type.
func preserves(t *testing.T, kind, spec string) {
	object := newObject(t, kind, "preserves", spec)
	want := object.DeepCopy().Object["spec"]
	if err := server.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, object)
	if diff := cmp.Diff(want, object.Object["spec"]); diff != "" {
		t.Errorf("the stored spec differs from the written one (-written +stored):\n%s", diff)
	}
	typed, err := server.client.Scheme().New(object.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	policy, ok := typed.(client.Object)
	if !ok {
		t.Fatalf("%T is no object", typed)
	}
	if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(object), policy); err != nil {
		t.Fatal(err)
	}
	again, err := runtime.DefaultUnstructuredConverter.ToUnstructured(policy)
	if err != nil {
		t.Fatal(err)
	}
	held, ok := again["spec"].(map[string]any)
	if !ok {
		t.Fatalf("no spec: %v", again)
	}
	if diff := cmp.Diff(want, any(held), cmp.FilterPath(isEmptyList, cmp.Ignore())); diff != "" {
		t.Errorf("the Go type loses written values (-written +read):\n%s", diff)
	}
}

// isEmptyList leaves out lists and labels without entries: Go types drop them.
// Nothing is written back by Go types but statuses, which are a resource of their own.
func isEmptyList(p cmp.Path) bool {
	x, y := p.Last().Values()
	if !x.IsValid() || !x.CanInterface() || y.IsValid() {
		return false
	}
	switch v := x.Interface().(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		key, ok := p.Last().(cmp.MapIndex)
		return ok && key.Key().String() == "matchLabels" && len(v) == 0
	}
	return false
}

// examples are the objects of testdata/policies.yaml.
func examples(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "policies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		fields, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			t.Fatal(err)
		}
		if err := object.UnmarshalJSON(fields); err != nil {
			t.Fatal(err)
		}
		out = append(out, object)
	}
	return out
}

// createExamples creates them, with their statuses.
func createExamples(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects := examples(t)
	for _, object := range objects {
		status := object.Object["status"]
		if err := server.client.Create(t.Context(), object, client.FieldValidation("Strict")); err != nil {
			t.Fatal(err)
		}
		deleteAfter(t, object)
		object.Object["status"] = status
		if err := server.client.Status().Update(t.Context(), object, client.FieldValidation("Strict")); err != nil {
			t.Fatal(err)
		}
	}
	return objects
}

// Nothing of the examples is lost on its way through the API, by the Go types
// neither, and a status that is written raises no generation.
func TestExamplesOfPoliciesAreStored(t *testing.T) {
	want := examples(t)
	for i, object := range createExamples(t) {
		t.Run(object.GetKind(), func(t *testing.T) {
			if object.GetGeneration() != 1 {
				t.Errorf("generation %d after the status was written, want 1", object.GetGeneration())
			}
			typed, err := server.client.Scheme().New(object.GroupVersionKind())
			if err != nil {
				t.Fatal(err)
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true); err != nil {
				t.Fatal(err)
			}
			held, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range []string{"spec", "status"} {
				if diff := cmp.Diff(want[i].Object[part], object.Object[part]); diff != "" {
					t.Errorf("%s as stored (-written +stored):\n%s", part, diff)
				}
				if diff := cmp.Diff(want[i].Object[part], held[part]); part == "spec" && diff != "" {
					t.Errorf("%s of the Go type (-written +held):\n%s", part, diff)
				}
			}
		})
	}
}

// The examples show every field that people write, so that none is forgotten in
// the tests above.
func TestExamplesOfPoliciesShowEveryField(t *testing.T) {
	for _, object := range examples(t) {
		for _, f := range readCRDs(t)[object.GetKind()].fields("spec") {
			if strings.HasPrefix(f.path, "spec.settings.") || strings.Contains(f.path, "Selector.") {
				continue // those of NodeProxy; a list, and a map of any labels
			}
			if _, found, err := unstructured.NestedFieldNoCopy(object.Object, f.segments()...); err != nil || !found {
				t.Errorf("the %s in policies.yaml does not show %s", object.GetKind(), f.path)
			}
		}
	}
}

func TestWhatKubectlPrintsOfPolicies(t *testing.T) {
	for _, object := range createExamples(t) {
		names := map[string][]string{
			"NodeProxyPolicy":    {"nodeproxypolicies", "nodeproxypolicy", "npp"},
			"ServiceProxyPolicy": {"serviceproxypolicies", "serviceproxypolicy", "spp"},
		}[object.GetKind()]
		for _, name := range names {
			out, code := kubectl(t, "get", name)
			if code != 0 {
				t.Fatalf("kubectl get %s: exit code %d\n%s", name, code, out)
			}
			golden(t, "get-"+names[0], withoutAges(out))
		}
		out, code := kubectl(t, "describe", names[0], object.GetName())
		if code != 0 {
			t.Fatalf("kubectl describe %s: exit code %d\n%s", names[0], code, out)
		}
		golden(t, "describe-"+object.GetName(), unique.ReplaceAllString(out, "$1 (of this object)"))
	}
}

// A policy that is new, before the controller has seen it, prints without errors.
func TestWhatKubectlPrintsOfANewPolicy(t *testing.T) {
	object := newObject(t, "NodeProxyPolicy", "new", `{nodeSelector: {}, settings: {mode: IPVS}}`)
	if err := server.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, object)
	out, code := kubectl(t, "get", "npp", "new")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, out)
	}
	golden(t, "get-new-nodeproxypolicy", withoutAges(out))
	// By this kstatus distinguishes it from one that is ready.
	if diff := cmp.Diff(map[string]any{"observedGeneration": int64(-1)}, object.Object["status"]); diff != "" {
		t.Errorf("the status of a policy that the controller has not seen (-want +got):\n%s", diff)
	}
}

// pruning are the annotations by which Argo CD and Flux leave an object in the
// cluster when it is gone from the repository.
var pruning = map[string]string{
	"argocd.argoproj.io/sync-options":   "Prune=false,Delete=false",
	"kustomize.toolkit.fluxcd.io/prune": "disabled",
}

// What takes the proxy away from a whole cluster is not pruned; policies are: that
// is how one ends.
func TestPruningOfSamples(t *testing.T) {
	for _, file := range sampleFiles(t) {
		sample := readSample(t, file)
		for key, value := range pruning {
			if sample.GetKind() != "NodeProxy" {
				value = ""
			}
			if got := sample.GetAnnotations()[key]; got != value {
				t.Errorf("%s: annotation %s is %q, want %q", filepath.Base(file), key, got, value)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(crdDirectory, "*.yaml"))
	if err != nil || len(files) != 5 {
		t.Fatalf("%d CRDs, %v", len(files), err)
	}
	for _, file := range files {
		for key, value := range pruning {
			if got := readSample(t, file).GetAnnotations()[key]; got != value {
				t.Errorf("%s: annotation %s is %q, want %q", filepath.Base(file), key, got, value)
			}
		}
	}
}

// Every sample of a policy is in the kustomization and begins with what it is for
// and what to do when it hurts.
func TestSamplesOfPolicies(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(samplesDirectory, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var kustomization struct{ Resources []string }
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		t.Fatal(err)
	}
	for _, file := range sampleFiles(t) {
		sample := readSample(t, file)
		if sample.GetKind() == "NodeProxy" {
			continue
		}
		base := filepath.Base(file)
		if !slices.Contains(kustomization.Resources, base) {
			t.Errorf("kustomization.yaml does not have %s", base)
		}
		if want := strings.ToLower(sample.GetKind()) + "-" + sample.GetName() + ".yaml"; base != want {
			t.Errorf("%s holds %s %s: call it %s", base, sample.GetKind(), sample.GetName(), want)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n# At 3 a.m.: ") {
			t.Errorf("%s does not state what to look at at 3 a.m.", base)
		}
	}
	out, code := kubectl(t, "apply", "--dry-run=server", "--validate=strict", "-k", samplesDirectory)
	if code != 0 {
		t.Errorf("kubectl apply -k: exit code %d\n%s", code, out)
	}
}

// `kubectl wait`, as scripts use it, does not take a condition of the generation
// before for an answer.
func TestKubectlWaitsForThePresentGeneration(t *testing.T) {
	policy := createExamples(t)[1] // Ready in generation 1
	wait := []string{"wait", "spp/" + policy.GetName(), "--for=condition=Ready", "--timeout=2s"}
	if out, code := kubectl(t, wait...); code != 0 {
		t.Fatalf("exit code %d: %s", code, out)
	}
	if err := unstructured.SetNestedField(policy.Object, int64(11), "spec", "priority"); err != nil {
		t.Fatal(err)
	}
	if err := server.client.Update(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if out, code := kubectl(t, wait...); code == 0 {
		t.Errorf("taken for ready in generation 2 by the status of generation 1: %s", out)
	}
}
