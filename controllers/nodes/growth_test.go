package nodes

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/formats"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// slicesOnly is a cache with slices of one Service, in which every Node exists.
type slicesOnly []discoveryv1.EndpointSlice

// Get implements client.Reader.
func (slicesOnly) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// List implements client.Reader.
func (s slicesOnly) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	asked := (&client.ListOptions{}).ApplyOptions(options)
	switch list := list.(type) {
	case *discoveryv1.EndpointSliceList:
		if list.Items = s; asked.Limit > 0 && int(asked.Limit) < len(s) {
			list.Items = s[:asked.Limit]
		}
	case *corev1.NodeList:
	default:
		return fmt.Errorf("unexpected list %T", list)
	}
	return nil
}

// TestGrowthOfSliceEvents: the event of a slice takes no disproportionately longer with more slices of
// its Service, each on a node of its own.
func TestGrowthOfSliceEvents(t *testing.T) {
	type service struct {
		affectedNodes
		changed discoveryv1.EndpointSlice
	}
	prepare := func(n int) *service {
		all := make(slicesOnly, n)
		for i := range all {
			all[i] = *sliceOn(fmt.Sprintf("s%d", i), 0, 1, fmt.Sprintf("n%d", i))
			all[i].Endpoints[0].Addresses[0] = fmt.Sprintf("10.1.%d.%d", i>>8, i&0xff)
		}
		pace := newEnqueuePace(all, clocktesting.NewFakeClock(controllertest.Noon))
		return &service{affectedNodes{all, pace, newOverLimits(all), NewLeftOut(metrics.New(prometheus.NewRegistry()))}, all[n/2]}
	}
	growth.Linear(t, 100, prepare, func(s *service) {
		before, after := s.changed, *s.changed.DeepCopy()
		after.Endpoints[0].Addresses[0] = "10.255.0.1"
		q := &controllertest.RecordingQueue{Added: map[string][]time.Duration{}}
		s.bySlice().Update(t.Context(), event.UpdateEvent{ObjectOld: &before, ObjectNew: &after}, q)
		if len(q.Added) != 1 {
			t.Fatalf("%d nodes are enqueued, want that of the slice", len(q.Added))
		}
	})
}

// TestSlicesBeyondTheLimit: a Service stays over the limit if a slice goes that the cache still has.
func TestSlicesBeyondTheLimit(t *testing.T) {
	all := make(slicesOnly, v1alpha1.MaxServiceSlices+2)
	for i := range all {
		all[i] = *sliceOn(fmt.Sprintf("s%d", i), 0, 1, "n1")
	}
	svc, _ := render.ServiceOf(&all[0])
	if c, err := newOverLimits(all).change(t.Context(), svc, "s0", nil); err != nil || !c.over {
		t.Errorf("with %d other slices it is over the limit: %t (%v)", len(all)-1, c.over, err)
	}
}

// oneNode is a cluster with one node, whose rules stay as they are, whatever is written, and Services
// with one slice each, all of which name it.
type oneNode struct {
	client.Client
	slices  []discoveryv1.EndpointSlice
	of      map[client.ObjectKey]int // by Service, the index of its slice
	stored  *v1alpha1.NodeProxyRules
	written *v1alpha1.NodeProxyRules
	version string // what an update returns
}

// Get implements client.Reader.
func (s *oneNode) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *v1alpha1.NodeProxy, *corev1.Service:
	case *corev1.Node:
		into.Name, into.Labels = key.Name, map[string]string{corev1.LabelOSStable: "linux"}
	case *v1alpha1.NodeProxyRules:
		if s.stored == nil {
			return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
		}
		*into = *s.stored
	default:
		return fmt.Errorf("unexpected kind %T", into)
	}
	return nil
}

// List implements client.Reader.
func (s *oneNode) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	slices, ok := list.(*discoveryv1.EndpointSliceList)
	if !ok {
		return nil
	}
	asked := (&client.ListOptions{}).ApplyOptions(options)
	if asked.Namespace == "" { // by node
		slices.Items = s.slices
		return nil
	}
	for _, term := range asked.FieldSelector.Requirements() {
		if i, found := s.of[client.ObjectKey{Namespace: asked.Namespace, Name: term.Value}]; found {
			slices.Items = s.slices[i : i+1]
		}
	}
	return nil
}

// Create implements client.Writer.
func (s *oneNode) Create(_ context.Context, o client.Object, _ ...client.CreateOption) error {
	s.written = o.(*v1alpha1.NodeProxyRules)
	return nil
}

// Update implements client.Writer.
func (s *oneNode) Update(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
	if s.version != "" {
		o.SetResourceVersion(s.version)
	}
	return s.Create(ctx, o)
}

func (s *oneNode) reconciler(clk clock.WithTicker, m *metrics.Metrics) *Reconciler {
	return &Reconciler{
		Client: s, Live: s, Clock: clk, Metrics: m, Formats: formats.New(s, v1alpha1.FormatVersions()), LeftOut: NewLeftOut(m),
		Events: events.NewRecorder(events.NewQueue(leader.Always{}, s, clk, m), clk), pace: newNodePace(), limits: newOverLimits(s),
	}
}

// TestStaleRules: a change that reverts the last write is written, though the cache still has the rules from
// before that write, which are equal.
func TestStaleRules(t *testing.T) {
	slice := sliceOn("slice", 1, 1, "n1")
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	s := &oneNode{of: map[client.ObjectKey]int{{Namespace: slice.Namespace, Name: "web"}: 0}, slices: []discoveryv1.EndpointSlice{*slice}}
	clk, m := clocktesting.NewFakeClock(controllertest.Noon), metrics.New(prometheus.NewRegistry())
	r := s.reconciler(clk, m)
	render := func() (written *v1alpha1.NodeProxyRules, after time.Duration) {
		t.Helper()
		clk.Step(time.Hour) // nothing waits
		s.written = nil
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "n1"}})
		if err != nil {
			t.Fatal(err)
		}
		return s.written, result.RequeueAfter
	}
	first, _ := render()
	first.UID, first.ResourceVersion = "u", "1"
	s.stored = first

	slices := s.slices
	s.slices, s.version = nil, "2"
	second, _ := render()
	if second == nil || len(second.Spec.LocalEndpoints) > 0 {
		t.Fatalf("without slices: %+v", second)
	}
	s.slices, s.version = slices, "3"
	if written, after := render(); written != nil || after != behindRetry {
		t.Errorf("with stale rules %+v is written, and rendered again after %s", written, after)
	}
	s.stored = second
	if written, _ := render(); written == nil || len(written.Spec.LocalEndpoints) != 1 {
		t.Errorf("with current rules %+v is written", written)
	}
	s.stored = first.DeepCopy()
	if s.stored.UID = "of another object"; r.pace.behind(s.stored) {
		t.Error("rules that were created again are older than those that were deleted")
	}
}

// TestGrowthOfPublishing: publishing a change of a node's local endpoints takes as long as there are
// Services that name it, of one namespace or many, also beyond what its rules carry.
func TestGrowthOfPublishing(t *testing.T) {
	for name, namespaces := range map[string]int{"one namespace": 1, "many namespaces": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 100, func(n int) func(*testing.T) {
				s := &oneNode{of: map[client.ObjectKey]int{}}
				for i := range n {
					slice := sliceOn("slice", 1, 10, "n1")
					slice.Namespace = fmt.Sprintf("ns%d", i%namespaces)
					slice.Labels = map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("s%d", i)}
					s.of[client.ObjectKey{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}] = i
					s.slices = append(s.slices, *slice)
				}
				clk, m := clocktesting.NewFakeClock(controllertest.Noon), metrics.New(prometheus.NewRegistry())
				r := s.reconciler(clk, m)
				publish := func(t *testing.T) {
					t.Helper()
					clk.Step(time.Hour) // nothing waits
					s.written = nil
					if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "n1"}}); err != nil || s.written == nil {
						t.Fatalf("with %d Services nothing is written (%v)", n, err)
					}
				}
				publish(t)
				if s.stored = s.written; len(s.stored.Spec.LocalEndpoints) == 0 {
					t.Fatal("the node has no local endpoints")
				}
				for i := range s.slices {
					s.slices[i].Endpoints[0].Addresses = []string{"10.2.0.1"}
				}
				return publish
			}, func(publish func(*testing.T)) { publish(t) })
		})
	}
}
