package api_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// One setting stays one setting: a schema that filled in defaults would make
// every policy set every field.
func TestOneSettingStaysOne(t *testing.T) {
	for _, spec := range []string{
		`settings: {mode: IPTables}`,
		`settings: {masquerade: {bit: 0}}`,
		`settings: {nodePorts: {localhost: Disabled}}`,
		`settings: {detectLocal: {mode: None}}`,
		`settings: {conntrack: {min: 0}}`,
		`settings: {}`,
		`rollout: {maxUnavailable: 1}`,
		`agent: {management: Managed}`,
	} {
		t.Run(spec, func(t *testing.T) {
			object := newNodeProxy(t, v1alpha1.NodeProxyName, spec)
			want := object.DeepCopy().Object["spec"]
			if err := server.client.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
			deleteAfter(t, object)

			stored := &unstructured.Unstructured{}
			stored.SetGroupVersionKind(object.GroupVersionKind())
			if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(object), stored); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, stored.Object["spec"]); diff != "" {
				t.Errorf("the stored spec differs from the written one (-written +stored):\n%s", diff)
			}
		})
	}
}

// The Go type keeps what was written too: reading an object and writing it
// back adds no field.
func TestOneSettingSurvivesTheGoType(t *testing.T) {
	object := newNodeProxy(t, v1alpha1.NodeProxyName, `settings: {masquerade: {bit: 0}}`)
	want := object.DeepCopy().Object["spec"]
	if err := server.client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	deleteAfter(t, object)

	typed := &v1alpha1.NodeProxy{}
	if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(object), typed); err != nil {
		t.Fatal(err)
	}
	typed.Labels = map[string]string{"example.com/touched": "yes"}
	if err := server.client.Update(t.Context(), typed); err != nil {
		t.Fatal(err)
	}
	if err := server.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, object.Object["spec"]); diff != "" {
		t.Errorf("writing the typed object changed the spec (-before +after):\n%s", diff)
	}
}

// What GitOps tools compare: after kubectl apply of a sample, kubectl diff has
// nothing to report.
func TestSamplesApplyWithoutDifference(t *testing.T) {
	for _, sample := range sampleFiles(t) {
		t.Run(filepath.Base(sample), func(t *testing.T) {
			object := readSample(t, sample)
			deleteAfter(t, object)
			for _, serverSide := range []string{"--server-side=false", "--server-side=true"} {
				if out, code := kubectl(t, "apply", "--validate=strict", "--force-conflicts="+serverSide[len("--server-side="):], serverSide, "-f", sample); code != 0 {
					t.Fatalf("kubectl apply %s: exit code %d\n%s", serverSide, code, out)
				}
				if out, code := kubectl(t, "diff", serverSide, "-f", sample); code != 0 || out != "" {
					t.Errorf("kubectl diff %s after apply: exit code %d\n%s", serverSide, code, out)
				}
			}
		})
	}
}

// The full sample shows every field of the spec, so that a field cannot be
// added without being shown.
func TestFullSampleHasEveryField(t *testing.T) {
	sample := readSample(t, filepath.Join(samplesDirectory, "nodeproxy-full.yaml"))
	crd := readCRDs(t)["NodeProxy"]
	for _, field := range crd.fields("spec") {
		switch field.path {
		case "spec.settings.detectLocal.interface", "spec.settings.detectLocal.interfaceNamePrefix", "spec.settings.nodePorts.cidrs":
			continue // fields of unions that have another one in the sample
		}
		if field.ofKubernetes {
			continue
		}
		if _, found, err := unstructured.NestedFieldNoCopy(sample.Object, field.segments()...); err != nil || !found {
			t.Errorf("nodeproxy-full.yaml does not show %s", field.path)
		}
	}
}

func sampleFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(samplesDirectory, "*-*.yaml"))
	if err != nil || len(files) < 13 {
		t.Fatalf("%d samples in %s, %v", len(files), samplesDirectory, err)
	}
	return files
}

func readSample(t *testing.T, file string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict(text, &object.Object); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return object
}
