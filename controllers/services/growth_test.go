package services

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/formats"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// oneService is a cluster with one Service, whose rules stay as they are, whatever is written.
type oneService struct {
	client.Client
	service *corev1.Service
	slices  []discoveryv1.EndpointSlice
	stored  *v1alpha1.ServiceProxyRules
	written *v1alpha1.ServiceProxyRules
}

// Get implements client.Reader.
func (s *oneService) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *v1alpha1.NodeProxy:
		return nil
	case *corev1.Service:
		*into = *s.service
		return nil
	case *v1alpha1.ServiceProxyRules:
		if s.stored != nil {
			*into = *s.stored
			return nil
		}
	}
	return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
}

// List implements client.Reader.
func (s *oneService) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	of := (&client.ListOptions{}).ApplyOptions(options)
	if list, ok := list.(*discoveryv1.EndpointSliceList); ok && of.Namespace == s.service.Namespace {
		list.Items = s.slices
	}
	return nil
}

// Create implements client.Writer.
func (s *oneService) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	s.written = o.(*v1alpha1.ServiceProxyRules)
	return nil
}

// Update implements client.Writer.
func (s *oneService) Update(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
	return s.Create(ctx, o)
}

// newOneService returns a cluster with a Service that has an endpoint, but no port.
func newOneService() *oneService {
	s := &oneService{service: controllertest.ServiceNamed("shop", "cart"), slices: []discoveryv1.EndpointSlice{{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "cart", Labels: map[string]string{discoveryv1.LabelServiceName: "cart"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.1.0.1"}}},
	}}}
	s.service.Spec.ClusterIP, s.service.Spec.ClusterIPs = "10.96.0.7", []string{"10.96.0.7"}
	return s
}

func (s *oneService) reconciler(t *testing.T) (*Reconciler, *clocktesting.FakeClock) {
	t.Helper()
	clk := clocktesting.NewFakeClock(controllertest.Noon)
	m, _ := newTestMemory(t)
	m.NewTerm()
	m.begin(nil)
	return &Reconciler{
		Client: s, Live: s, Events: events.NewRecorder(events.NewQueue(leader.Always{}, s, clk, m.metrics), clk), Clock: clk, Metrics: m.metrics, Memory: m,
		Formats: formats.New(s, v1alpha1.FormatVersions()), Overrides: overrides.New(s, clk), Ranges: knownRanges(),
	}, clk
}

// addPort adds a port to the Service and its slice.
func (s *oneService) addPort(i int) {
	name := fmt.Sprintf("p%d", i)
	s.service.Spec.Ports = append(s.service.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(i + 1), Protocol: corev1.ProtocolTCP}) //nolint:gosec // small
	s.slices[0].Ports = append(s.slices[0].Ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(8080))})
}

// TestHintsAreNotExpanded: rules repeat hints for each port, so that those of one slice are 65 MB of
// JSON. They are counted first.
func TestHintsAreNotExpanded(t *testing.T) {
	s := newOneService()
	for i := range 98 { // its slice has one already
		s.addPort(i)
	}
	s.slices[0].Endpoints = nil
	for i := range 252 {
		hints := &discoveryv1.EndpointHints{}
		for j := range 8 {
			hints.ForZones = append(hints.ForZones, discoveryv1.ForZone{Name: fmt.Sprintf("%d-%d-%s", i, j, strings.Repeat("z", 57))})
			hints.ForNodes = append(hints.ForNodes, discoveryv1.ForNode{Name: fmt.Sprintf("%d-%d-%s", i, j, strings.Repeat("n", 247))})
		}
		s.slices[0].Endpoints = append(s.slices[0].Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}, Hints: hints})
	}
	r, _ := s.reconciler(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: cart})
	runtime.ReadMemStats(&after)
	if err != nil || s.written != nil {
		t.Errorf("written: %v, error %v", s.written != nil, err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("%d KiB are allocated", took>>10)
	}
	if out := r.Memory.Unrendered(); len(out) != 1 || !strings.Contains(out[0].Message, "bytes of hints") {
		t.Errorf("not rendered: %v", out)
	}
}

// TestGrowthOfPublishing: publishing a change of a Service takes as long as it is large, whatever is
// large in it.
func TestGrowthOfPublishing(t *testing.T) {
	for name, large := range map[string]struct {
		size    int
		enlarge func(s *oneService, n int)
	}{
		"ports": {10, func(s *oneService, n int) {
			for i := range n {
				s.addPort(i)
			}
		}},
		"external IPs": {10, func(s *oneService, n int) {
			for i := range n {
				s.service.Spec.ExternalIPs = append(s.service.Spec.ExternalIPs, fmt.Sprintf("198.18.%d.%d", i>>8, i&0xff))
			}
		}},
		"source ranges": {50, func(s *oneService, n int) {
			for i := range n {
				s.service.Spec.LoadBalancerSourceRanges = append(s.service.Spec.LoadBalancerSourceRanges, fmt.Sprintf("198.18.%d.%d/32", i>>8, i&0xff))
			}
		}},
		"endpoints": {100, func(s *oneService, n int) {
			for i := range n - 1 { // one is there
				s.slices[0].Endpoints = append(s.slices[0].Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i>>8, i&0xff)}})
			}
		}},
		"slices": {10, func(s *oneService, n int) {
			for i := range n - 1 {
				slice := s.slices[0]
				slice.Name, slice.Endpoints = fmt.Sprintf("cart-%d", i), []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i>>8, i&0xff)}}}
				s.slices = append(s.slices, slice)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, large.size, func(n int) func(*testing.T) {
				s := newOneService()
				if name != "ports" {
					s.service.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
				}
				large.enlarge(s, n)
				r, clk := s.reconciler(t)
				publish := func(t *testing.T) {
					t.Helper()
					clk.Step(time.Hour) // nothing waits
					s.written = nil
					_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: "shop", Name: "cart"}})
					if err != nil || s.written == nil {
						t.Fatalf("with %d %s nothing is written (%v)", n, name, err)
					}
				}
				publish(t)
				s.stored = s.written
				s.slices[0].Endpoints[0].Addresses = []string{"10.1.0.2"}
				return publish
			}, func(publish func(*testing.T)) { publish(t) })
		})
	}
}
