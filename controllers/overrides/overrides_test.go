package overrides

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
)

// While another controller leads, Services may be deleted that this one remembers: in its next term
// it knows only those that it has reconciled.
func TestOverridesInANewTerm(t *testing.T) {
	reader, list := controllertest.Stock(1, 3)
	o := New(reader, clocktesting.NewFakePassiveClock(controllertest.Noon))
	list[1].Namespace = list[0].Namespace   // the policy selects it, and not that of the last one
	before := &v1alpha1.ServiceProxyRules{} // they were there before the policy
	ask := func(i int) time.Duration {
		t.Helper()
		s, err := o.Shape(t.Context(), list[i], before)
		if err != nil {
			t.Fatal(err)
		}
		return s.Again
	}
	ask(0)
	ask(1)
	ask(2)
	o.settled(client.ObjectKeyFromObject(list[2]), true)
	if len(o.services) != 3 || len(o.Retaining()) != 1 {
		t.Fatalf("remembered: %d Services, %d retain theirs; this test proves nothing", len(o.services), len(o.Retaining()))
	}

	o.NewTerm()
	if len(o.services)+len(o.Retaining()) != 0 {
		t.Errorf("left: %d Services, %d retain theirs", len(o.services), len(o.Retaining()))
	}
	if wait, want := ask(1), time.Second/overridesPerSecond; wait != want {
		t.Errorf("the only one that is left waits %s, want %s", wait, want)
	}
	if len(o.services) != 1 {
		t.Errorf("%d Services are known, want the one that was asked about", len(o.services))
	}
}

// TestOverridesBeyondALimit: a Service that exists retains its overrides if new ones would make it exceed
// a limit, so that its own changes are still rendered. One that is new does not escape the overrides.
func TestOverridesBeyondALimit(t *testing.T) {
	reader, list := controllertest.Stock(1, 2)
	var ranges []string
	for i := range 256 {
		ranges = append(ranges, fmt.Sprintf("10.%d.0.0/16", i))
	}
	reader.(*controllertest.Stocked).Policies[0].Spec.Overrides = v1alpha1.ServiceOverrides{LoadBalancerSourceRanges: ranges}
	small, large := list[0], list[1]
	large.Namespace = small.Namespace // the policy selects both
	for svc, ports := range map[*corev1.Service]int{small: 1, large: 60} {
		svc.Spec.Type, svc.Spec.ClusterIP, svc.Spec.ClusterIPs = corev1.ServiceTypeLoadBalancer, "10.96.0.7", []string{"10.96.0.7"}
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.7"}}
		for i := range ports {
			svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(i), Port: int32(80 + i), Protocol: corev1.ProtocolTCP}) //nolint:gosec // small
		}
	}
	o := New(reader, clocktesting.NewFakePassiveClock(controllertest.Noon))
	for _, c := range []struct {
		name   string
		svc    *corev1.Service
		stored *v1alpha1.ServiceProxyRules
		gets   bool
	}{
		{"small", small, &v1alpha1.ServiceProxyRules{}, true},
		{"large", large, &v1alpha1.ServiceProxyRules{}, false},
		{"large and new", large, nil, true},
	} {
		s, err := o.Shape(t.Context(), c.svc, c.stored)
		if gets := s.Shape.Overrides != nil && s.Shape.Overrides.LoadBalancerSourceRanges != nil; err != nil || gets != c.gets || s.Retained == c.gets {
			t.Errorf("%s: gets the overrides: %t, retains its own: %t (%v)", c.name, gets, s.Retained, err)
		}
	}
	set, err := o.CurrentPolicies(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const want = "the Service would have too many combinations of a port with an external IP"
	if d, err := o.Decide(t.Context(), set, large, &v1alpha1.ServiceProxyRules{}); err != nil || !strings.Contains(d.Why, want) {
		t.Errorf("it retains its overrides because %q (%v), want %q", d.Why, err, want)
	}
}
