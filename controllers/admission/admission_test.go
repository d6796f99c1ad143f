package admission_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/controllers/admission"
)

// stored reads what is applied as the API server would, which knows each field.
func stored[T any](t *testing.T, applied any) *T {
	t.Helper()
	out := new(T)
	text, err := json.Marshal(applied)
	if err == nil {
		err = yaml.UnmarshalStrict(text, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func of(objects []*unstructured.Unstructured, kind string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return o.GetKind() != kind })
}

// In each namespace the objects are those of the manifests, about the service
// accounts there.
func TestRead(t *testing.T) {
	files, err := filepath.Glob("../../config/admission/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifests := map[string]string{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for document := range strings.SplitSeq(string(text), "\n---\n") {
			var head struct {
				Kind     string
				Metadata struct{ Name string }
			}
			if err := yaml.Unmarshal([]byte(document), &head); err != nil {
				t.Fatal(err)
			}
			manifests[head.Kind+"/"+head.Metadata.Name] = document
		}
	}
	for key := range manifests {
		if strings.HasPrefix(key, "Kustomization/") {
			delete(manifests, key)
		}
	}
	for _, namespace := range []string{"nodeproxy-system", "elsewhere", "123", "null"} {
		t.Run(namespace, func(t *testing.T) {
			objects, err := admission.Read(admission.Owner{Name: namespace, UID: "u"})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, applied := range of(objects, admission.KindPolicy) {
				policy := stored[admissionv1.ValidatingAdmissionPolicy](t, applied)
				names = append(names, admission.KindPolicy+"/"+policy.Name)
				want := &admissionv1.ValidatingAdmissionPolicy{}
				if err := yaml.UnmarshalStrict([]byte(manifests[names[len(names)-1]]), want); err != nil {
					t.Fatal(err)
				}
				for i := range want.Spec.MatchConditions {
					c := &want.Spec.MatchConditions[i]
					before := c.Expression
					c.Expression = strings.ReplaceAll(before, "serviceaccount:nodeproxy-system:", "serviceaccount:"+namespace+":")
					if namespace != "nodeproxy-system" && c.Expression == before {
						t.Errorf("%s: %s names no service account", policy.Name, c.Name)
					}
				}
				for i := range want.Spec.Validations {
					v := &want.Spec.Validations[i]
					v.Expression = strings.ReplaceAll(v.Expression, "'nodeproxy-system'", "'"+namespace+"'")
					v.Message = strings.ReplaceAll(v.Message, "nodeproxy-system", namespace)
				}
				if diff := cmp.Diff(want.Spec, policy.Spec); diff != "" {
					t.Errorf("%s (-want +got):\n%s", policy.Name, diff)
				}
				if diff := cmp.Diff(want.Labels, policy.Labels); diff != "" || policy.Labels[admission.LabelPartOf] != admission.PartOf {
					t.Errorf("%s: labels %v", policy.Name, policy.Labels)
				}
				if o := policy.OwnerReferences; len(o) != 1 || o[0].Kind != "Namespace" || o[0].Name != namespace || o[0].UID != "u" || o[0].BlockOwnerDeletion != nil {
					t.Errorf("%s: owners %+v", policy.Name, o)
				}
			}
			for _, applied := range of(objects, admission.KindBinding) {
				binding := stored[admissionv1.ValidatingAdmissionPolicyBinding](t, applied)
				names = append(names, admission.KindBinding+"/"+binding.Name)
				if binding.Labels[admission.LabelPartOf] != admission.PartOf || len(binding.OwnerReferences) != 1 {
					t.Errorf("%s: labels %v, owners %v", binding.Name, binding.Labels, binding.OwnerReferences)
				}
				if binding.Spec.MatchResources != nil {
					t.Errorf("%s does not apply everywhere: %v", binding.Name, binding.Spec.MatchResources)
				}
			}
			if diff := cmp.Diff(slices.Sorted(maps.Keys(manifests)), slices.Sorted(slices.Values(names))); diff != "" {
				t.Errorf("objects (-want +got):\n%s", diff)
			}
		})
	}
}

// The labels are those of the plain manifests, and nothing else of the namespace is
// applied.
func TestNamespace(t *testing.T) {
	text, err := os.ReadFile("../../config/manager/namespace.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manifest := &corev1.Namespace{}
	if err := yaml.UnmarshalStrict(text, manifest); err != nil {
		t.Fatal(err)
	}
	delete(manifest.Labels, "app.kubernetes.io/name")
	manifest.Annotations = nil // for tools that have created it
	manifest.Name, manifest.UID = "elsewhere", "u"
	got := stored[corev1.Namespace](t, admission.Namespace(admission.Owner{Name: "elsewhere", UID: "u"}))
	if diff := cmp.Diff(manifest, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
