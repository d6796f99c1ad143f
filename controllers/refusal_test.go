package controllers

import (
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/controllers/admission"
)

// TestRenderedPolicy: a refusal by our own policy is known by the name that the policy has.
func TestRenderedPolicy(t *testing.T) {
	objects, err := admission.Read(admission.Owner{Name: "home", UID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, policy := range objects.Policies {
		for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
			if slices.Contains(rule.Resources, "serviceproxyrules") {
				names = append(names, admission.KindPolicy+" '"+*policy.Name+"'")
			}
		}
	}
	if !slices.Equal(names, []string{renderedPolicy}) {
		t.Errorf("rendered objects are guarded by %q, and refusals of %q are known", names, renderedPolicy)
	}
}
