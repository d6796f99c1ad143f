package nodes

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

// sliceOn is a slice of shop/cart with addresses from 10.0.<net>.0 on, each on the node.
func sliceOn(name string, net, endpoints int, node string) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "cart"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(80))}},
	}
	for i := range endpoints {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", net, i/250, i%250)}, NodeName: &node})
	}
	return out
}

// TestNodesOfAServiceOverALimit: while it is over one, a change costs what the changed slice names.
// Afterwards all nodes get what they have missed.
func TestNodesOfAServiceOverALimit(t *testing.T) {
	p, _, c := newEnqueueRig(t, 5)
	affected := affectedNodes{c, p, newOverLimits(c), NewLeftOut(metrics.New(prometheus.NewRegistry()))}
	enqueued := func(handle func(watches.Queue)) []string {
		q := &controllertest.RecordingQueue{Added: map[string][]time.Duration{}}
		handle(q)
		for _, node := range nodeNames(5) { // so that none waits
			p.began(node)
		}
		return slices.Sorted(maps.Keys(q.Added))
	}
	create := func(slice *discoveryv1.EndpointSlice) []string {
		if err := c.Create(t.Context(), slice); err != nil {
			t.Fatal(err)
		}
		return enqueued(func(q watches.Queue) { affected.bySlice().Create(t.Context(), event.CreateEvent{Object: slice}, q) })
	}
	remove := func(slice *discoveryv1.EndpointSlice) []string {
		if err := c.Delete(t.Context(), slice); err != nil {
			t.Fatal(err)
		}
		return enqueued(func(q watches.Queue) { affected.bySlice().Delete(t.Context(), event.DeleteEvent{Object: slice}, q) })
	}
	local := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal},
	}
	want := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: enqueued %v, want %v", what, got, want)
		}
	}
	small, same := sliceOn("small", 1, 1, "node-1"), sliceOn("same", 1, 1, "node-2")
	large := sliceOn("large", 2, v1alpha1.MaxServiceEndpoints, "node-3")
	want("within the limits", create(small), "node-1")
	want("an address that another slice has", create(same), "node-1", "node-2")
	want("over a limit", create(large), "node-3")
	want("another slice meanwhile", remove(same), "node-2")
	want("a new policy meanwhile", enqueued(func(q watches.Queue) {
		affected.byPolicy().Create(t.Context(), event.CreateEvent{Object: local}, q)
	}))
	want("within the limits again", remove(large), "node-1", "node-3")
	want("afterwards", create(sliceOn("new", 3, 1, "node-4")), "node-4")
	if over := affected.limits.services; len(over) > 0 {
		t.Errorf("over a limit are %v", over)
	}
}
