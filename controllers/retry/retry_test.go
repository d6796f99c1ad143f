package retry

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodeproxy-io/nodeproxy/controllers/admission"
)

func TestDenied(t *testing.T) {
	kind := schema.GroupResource{Group: "nodeproxy.io", Resource: "serviceproxyrules"}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"policy":    {apierrors.NewForbidden(kind, "x", errors.New("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")), true},
		"webhook":   {apierrors.NewBadRequest(`admission webhook "w" denied the request: no`), true},
		"quota":     {apierrors.NewForbidden(kind, "x", errors.New("exceeded quota: q")), true},
		"invalid":   {apierrors.NewInvalid(schema.GroupKind{Kind: "x"}, "x", nil), true},
		"too large": {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), true},

		"no permissions":    {apierrors.NewForbidden(kind, "x", errors.New(`User "u" cannot create resource "serviceproxyrules" in API group "nodeproxy.io" at the cluster scope`)), false},
		"our own policy":    {apierrors.NewForbidden(kind, "x", errors.New("ValidatingAdmissionPolicy 'nodeproxy-rendered-objects' with binding 'nodeproxy-rendered-objects' denied request: no")), false},
		"CRD being deleted": {apierrors.NewForbidden(kind, "x", errors.New("create not allowed while custom resource definition is terminating")), false},
		"webhook down":      {apierrors.NewInternalError(errors.New(`failed calling webhook "w"`)), false},
		"conflict":          {apierrors.NewConflict(kind, "x", errors.New("modified")), false},
		"down":              {errors.New("connection refused"), false},
	} {
		if got := Denied(fmt.Errorf("create: %w", c.err)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	err := fmt.Errorf("create ServiceProxyRules x: %w", apierrors.NewForbidden(kind, "x", errors.New("denied request: not here")))
	if got := Message(err); got != `serviceproxyrules.nodeproxy.io "x" is forbidden: denied request: not here` {
		t.Errorf("message %q", got)
	}
}

func TestIgnoreRace(t *testing.T) {
	kind := schema.GroupResource{Resource: "serviceproxyrules"}
	for name, c := range map[string]struct {
		err   error
		after time.Duration
		fails bool
	}{
		"nothing":             {err: nil},
		"conflict":            {err: apierrors.NewConflict(kind, "x", nil), after: Soon},
		"exists":              {err: apierrors.NewAlreadyExists(kind, "x"), after: Soon},
		"gone":                {err: apierrors.NewNotFound(kind, "x")},
		"the kind is missing": {err: fmt.Errorf("%w x: %w", ErrCreate, apierrors.NewNotFound(kind, "x")), fails: true},
		"down":                {err: errors.New("connection refused"), fails: true},
	} {
		result, err := IgnoreRace(c.err)
		if result.RequeueAfter != c.after || (err != nil) != c.fails {
			t.Errorf("%s: %v, %v", name, result, err)
		}
	}
}

// TestRenderedPolicy: a denial by our own policy is known by the name of the policy.
func TestRenderedPolicy(t *testing.T) {
	objects, err := admission.Read(admission.Owner{Name: "home", UID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, object := range objects {
		if object.GetKind() != admission.KindPolicy {
			continue
		}
		policy := &admissionv1.ValidatingAdmissionPolicy{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, policy); err != nil {
			t.Fatal(err)
		}
		for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
			if slices.Contains(rule.Resources, "serviceproxyrules") {
				names = append(names, admission.KindPolicy+" '"+policy.Name+"'")
			}
		}
	}
	if !slices.Equal(names, []string{renderedPolicy}) {
		t.Errorf("rendered objects are guarded by %q, and denials by %q are known", names, renderedPolicy)
	}
}
