package gitops_test

import (
	"fmt"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// kustomization is what we use of Flux's kind.
type kustomization struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Prune     bool `json:"prune"`
		Wait      bool `json:"wait"`
		DependsOn []struct {
			Name string `json:"name"`
		} `json:"dependsOn"`
		HealthCheckExprs []expressions `json:"healthCheckExprs"`
	} `json:"spec"`
}

// expressions report for a kind how it does; the first that is true counts.
type expressions struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	InProgress string `json:"inProgress"`
	Failed     string `json:"failed"`
	Current    string `json:"current"`
}

func kustomizations(t *testing.T) []kustomization {
	t.Helper()
	var out []kustomization
	for _, object := range documents(t, configFile("flux.yaml")) {
		var k kustomization
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &k); err != nil {
			t.Fatal(err)
		}
		out = append(out, k)
	}
	return out
}

// evaluate reports whether an expression is true. The top fields of the object are
// its variables, so one that names a field that is not there fails.
func evaluate(expression string, object *unstructured.Unstructured) (bool, error) {
	options := []cel.EnvOption{cel.OptionalTypes(), cel.CrossTypeNumericComparisons(true), ext.Strings()}
	for _, field := range []string{"apiVersion", "kind", "metadata", "spec", "status"} {
		options = append(options, cel.Variable(field, cel.DynType))
	}
	environment, err := cel.NewEnv(options...)
	if err != nil {
		return false, err
	}
	tree, issues := environment.Compile(expression)
	if issues.Err() != nil {
		return false, issues.Err()
	}
	program, err := environment.Program(tree)
	if err != nil {
		return false, err
	}
	value, _, err := program.Eval(object.Object)
	if err != nil {
		return false, err
	}
	result, ok := value.Value().(bool)
	if !ok {
		return false, fmt.Errorf("%s is no truth value: %v", expression, value)
	}
	return result, nil
}

// judge is what Flux makes of an object: it waits while an expression fails.
func judge(e expressions, object *unstructured.Unstructured) status.Status {
	for _, step := range []struct {
		expression string
		status     status.Status
	}{{e.InProgress, status.InProgressStatus}, {e.Failed, status.FailedStatus}, {e.Current, status.CurrentStatus}} {
		if holds, err := evaluate(step.expression, object); err != nil {
			return status.InProgressStatus
		} else if holds {
			return step.status
		}
	}
	return status.InProgressStatus
}

func TestFluxHealth(t *testing.T) {
	byKind := map[string]expressions{}
	for _, k := range kustomizations(t) {
		for _, e := range k.Spec.HealthCheckExprs {
			byKind[e.Kind] = e
		}
	}
	for _, s := range situations(t) {
		t.Run(s.Name, func(t *testing.T) {
			e, found := byKind[s.kind]
			if !found || e.APIVersion != s.object.GetAPIVersion() {
				t.Fatalf("no expressions for %s: %+v", s.kind, e)
			}
			if got := judge(e, s.object); got.String() != s.Flux {
				t.Errorf("%s, want %s", got, s.Flux)
			}
		})
	}
}

// A mistake in an expression looks as an object that never gets ready: so each must
// be taken, and hold or not, where there is a whole status.
func TestFluxExpressionsAreTaken(t *testing.T) {
	for _, k := range kustomizations(t) {
		for _, e := range k.Spec.HealthCheckExprs {
			for _, s := range situations(t) {
				conditions, _, _ := unstructured.NestedSlice(s.object.Object, "status", "conditions")
				if s.kind != e.Kind || len(conditions) == 0 {
					continue
				}
				for _, expression := range []string{e.InProgress, e.Failed, e.Current} {
					if _, err := evaluate(expression, s.object); err != nil {
						t.Errorf("%s, %s: %s: %v", e.Kind, s.Name, expression, err)
					}
				}
			}
		}
	}
}

// Objects of our kinds come after the CRDs and the controller.
func TestFluxOrder(t *testing.T) {
	all := kustomizations(t)
	if len(all) != 2 || all[0].Metadata.Name != "nodeproxy" || len(all[1].Spec.DependsOn) != 1 || all[1].Spec.DependsOn[0].Name != "nodeproxy" {
		t.Fatalf("%+v", all)
	}
	for _, k := range all {
		if !k.Spec.Prune {
			t.Errorf("%s: a policy that is removed from the repository would stay", k.Metadata.Name)
		}
	}
	if !all[1].Spec.Wait {
		t.Error("policies are applied and their outcome is not checked")
	}
}
