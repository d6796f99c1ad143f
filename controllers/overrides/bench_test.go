package overrides

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
)

// shapedRules are those of a Service as they are stored.
func shapedRules(b *testing.B, o *Overrides, svc *corev1.Service) *v1alpha1.ServiceProxyRules {
	b.Helper()
	s, err := o.Shape(b.Context(), svc, nil)
	if err != nil {
		b.Fatal(err)
	}
	rules := &v1alpha1.ServiceProxyRules{}
	rules.Spec.Policies = s.Shape.Policies
	if s.Annotation != "" {
		rules.Annotations = map[string]string{v1alpha1.AnnotationOverrides: s.Annotation}
	}
	return rules
}

// BenchmarkOverrides is what policies cost a Service whose endpoints change, and all
// Services after a change of a policy.
func BenchmarkOverrides(b *testing.B) {
	const services = 5000
	for _, policies := range []int{0, 100} {
		reader, list := controllertest.Stock(policies, services)
		o := New(reader, clock.RealClock{})
		var stored []*v1alpha1.ServiceProxyRules
		for _, svc := range list {
			stored = append(stored, shapedRules(b, o, svc))
		}
		decision := func(b *testing.B, i int) {
			if _, err := o.Shape(b.Context(), list[i], stored[i]); err != nil {
				b.Fatal(err)
			}
		}
		for i := range list {
			decision(b, i) // what the controller has seen before
		}
		b.Run(fmt.Sprintf("endpoint change/policies=%d", policies), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				decision(b, i%services)
				i++
			}
		})
		b.Run(fmt.Sprintf("policy change/policies=%d", policies), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				o.PoliciesChanged()
				for i := range list {
					decision(b, i)
				}
			}
		})
	}
}

// TestOverridesOfAnUnchangedService: they are resolved once, however often endpoints
// change.
func TestOverridesOfAnUnchangedService(t *testing.T) {
	reader, list := controllertest.Stock(100, 1)
	o := New(reader, clock.RealClock{})
	ctx := t.Context()
	set, err := o.CurrentPolicies(ctx)
	if err != nil {
		t.Fatal(err)
	}
	of := func() *Known {
		t.Helper()
		known, err := o.know(ctx, set, list[0], nil)
		if err != nil || known == nil {
			t.Fatal(known, err)
		}
		return known
	}
	first := of()
	if of() != first {
		t.Error("resolved again though nothing has changed")
	}
	list[0].ResourceVersion = "2"
	if of() == first {
		t.Error("not resolved again though the Service has changed")
	}
	o.Forget(client.ObjectKeyFromObject(list[0]))
	if len(o.services) != 0 {
		t.Error("a Service that is gone is remembered")
	}
}
