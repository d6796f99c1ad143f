package controllers

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// stocked reads policies and Namespaces from maps, as the cache does.
type stocked struct {
	client.Reader
	policies   []v1alpha1.ServiceProxyPolicy
	namespaces map[string]*corev1.Namespace
}

// Get implements client.Reader.
func (s *stocked) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if namespace, ok := into.(*corev1.Namespace); ok && s.namespaces[key.Name] != nil {
		*namespace = *s.namespaces[key.Name]
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// List implements client.Reader.
func (s *stocked) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if policies, ok := list.(*v1alpha1.ServiceProxyPolicyList); ok {
		policies.Items = s.policies
	}
	return nil
}

// stock is a cluster with Services in 50 namespaces, each of which 2 of 100 policies
// select, or of none.
func stock(policies, services int) (client.Reader, []*corev1.Service) {
	s := &stocked{namespaces: map[string]*corev1.Namespace{}}
	for i := range policies {
		s.policies = append(s.policies, v1alpha1.ServiceProxyPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("policy-%03d", i), Generation: 1},
			Spec: v1alpha1.ServiceProxyPolicySpec{
				NamespaceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprint(i % 50)}},
				Overrides:         v1alpha1.ServiceOverrides{NodePorts: new(v1alpha1.Disabled), IPVSScheduler: new("sh")},
			},
		})
	}
	var list []*corev1.Service
	for i := range services {
		namespace := fmt.Sprintf("ns-%d", i%50)
		s.namespaces[namespace] = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: namespace, ResourceVersion: "1", Labels: map[string]string{"team": fmt.Sprint(i % 50)},
		}}
		list = append(list, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(i), ResourceVersion: "1"}})
	}
	return s, list
}

// shapedRules are those of a Service as they are stored.
func shapedRules(b *testing.B, o *overrides, svc *corev1.Service) *v1alpha1.ServiceProxyRules {
	b.Helper()
	s, err := o.shape(b.Context(), svc, nil)
	if err != nil {
		b.Fatal(err)
	}
	rules := &v1alpha1.ServiceProxyRules{}
	rules.Spec.Policies = s.shape.Policies
	if s.annotation != "" {
		rules.Annotations = map[string]string{v1alpha1.AnnotationOverrides: s.annotation}
	}
	return rules
}

// BenchmarkOverrides is what policies cost a Service whose endpoints change, and all
// Services after a change of a policy.
func BenchmarkOverrides(b *testing.B) {
	const services = 5000
	for _, policies := range []int{0, 100} {
		reader, list := stock(policies, services)
		o := newOverrides(reader, clock.RealClock{})
		var stored []*v1alpha1.ServiceProxyRules
		for _, svc := range list {
			stored = append(stored, shapedRules(b, o, svc))
		}
		look := func(b *testing.B, i int) {
			if _, err := o.shape(b.Context(), list[i], stored[i]); err != nil {
				b.Fatal(err)
			}
		}
		for i := range list {
			look(b, i) // what the controller has seen before
		}
		b.Run(fmt.Sprintf("endpoint change/policies=%d", policies), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				look(b, i%services)
				i++
			}
		})
		b.Run(fmt.Sprintf("policy change/policies=%d", policies), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				o.policies.changed()
				for i := range list {
					look(b, i)
				}
			}
		})
	}
}

// TestOverridesOfAnUnchangedService: they are resolved once, however often endpoints
// change.
func TestOverridesOfAnUnchangedService(t *testing.T) {
	reader, list := stock(100, 1)
	o := newOverrides(reader, clock.RealClock{})
	ctx := t.Context()
	set, err := o.policies.current(ctx)
	if err != nil {
		t.Fatal(err)
	}
	of := func() *knownOverride {
		t.Helper()
		known, err := o.policies.of(ctx, set, list[0], nil)
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
	o.forget(client.ObjectKeyFromObject(list[0]))
	if len(o.policies.services) != 0 {
		t.Error("a Service that is gone is remembered")
	}
}
