package gitops_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// situation is an object, and what tools are to make of it.
type situation struct {
	Name   string         `json:"name"`
	Object map[string]any `json:"object"`
	// ArgoCD is its health by our script, Message a part of what that reports.
	ArgoCD  string `json:"argocd"`
	Message string `json:"message"`
	// KStatus is what a tool makes of it that knows nothing of our kinds.
	KStatus string `json:"kstatus"`
	// Flux is what Flux makes of it by our expressions.
	Flux string `json:"flux"`

	kind   string
	object *unstructured.Unstructured
}

func situations(t *testing.T) []situation {
	t.Helper()
	var all []situation
	readYAML(t, filepath.Join("testdata", "statuses.yaml"), &all)
	for i := range all {
		s := &all[i]
		s.Object["apiVersion"] = v1alpha1.GroupVersion.String()
		text, err := yaml.Marshal(s.Object)
		if err != nil {
			t.Fatal(err)
		}
		fields, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		s.object = &unstructured.Unstructured{}
		if err := s.object.UnmarshalJSON(fields); err != nil { // with int64, as from the API
			t.Fatal(err)
		}
		s.kind = s.object.GetKind()
	}
	return all
}

func readYAML(t *testing.T, file string, into any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// documents are the objects of a file.
func documents(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, object)
	}
	return out
}

func configFile(name string) string { return filepath.Join("..", "..", "config", "gitops", name) }

// TestKStatus is for tools that know nothing of our kinds but that they have
// conditions, such as Flux without expressions, kpt and `kubectl wait`'s likes.
func TestKStatus(t *testing.T) {
	for _, s := range situations(t) {
		t.Run(s.Name, func(t *testing.T) {
			result, err := status.Compute(s.object)
			if err != nil {
				t.Fatal(err)
			}
			if result.Status.String() != s.KStatus {
				t.Errorf("%s (%s), want %s", result.Status, result.Message, s.KStatus)
			}
		})
	}
}

// TestEveryReasonIsThere holds the situations to the reasons that the API has.
func TestEveryReasonIsThere(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range situations(t) {
		conditions, _, err := unstructured.NestedSlice(s.object.Object, "status", "conditions")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range conditions {
			condition, ok := c.(map[string]any)
			if !ok {
				t.Fatalf("%s: %v is no condition", s.Name, c)
			}
			if condition["type"] == v1alpha1.ConditionReady {
				reason, _ := condition["reason"].(string)
				seen[s.kind+" "+reason] = true
			}
		}
	}
	for _, want := range []string{
		"NodeProxyPolicy " + v1alpha1.ReasonApplied, "NodeProxyPolicy " + v1alpha1.ReasonNothingSelected,
		"NodeProxyPolicy " + v1alpha1.ReasonProgressing, "NodeProxyPolicy " + v1alpha1.ReasonPaused,
		"NodeProxyPolicy " + v1alpha1.ReasonRolloutHalted, "NodeProxyPolicy " + v1alpha1.ReasonNoNodeProxy,
		"NodeProxyPolicy " + v1alpha1.ReasonInvalidPolicy, "NodeProxyPolicy " + v1alpha1.ReasonInvalidResult,
		"NodeProxyPolicy " + v1alpha1.ReasonNodesNotProgrammed,
		"ServiceProxyPolicy " + v1alpha1.ReasonApplied, "ServiceProxyPolicy " + v1alpha1.ReasonRolloutHalted,
		"NodeProxy " + v1alpha1.ReasonAllProgrammed, "NodeProxy " + v1alpha1.ReasonNodesNotProgrammed,
		"NodeProxy " + v1alpha1.ReasonInvalidSettings, "NodeProxy " + v1alpha1.ReasonRolloutHalted,
		"NodeProxy " + v1alpha1.ReasonPaused, "NodeProxy " + v1alpha1.ReasonRemoving, "NodeProxy " + v1alpha1.ReasonAgentPodsFailing,
	} {
		if !seen[want] {
			t.Errorf("no status with the reason %s", want)
		}
	}
}
