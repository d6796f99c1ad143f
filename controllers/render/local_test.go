package render

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func cart(in ...*discoveryv1.EndpointSlice) []ServiceSlices {
	return []ServiceSlices{{Service: types.NamespacedName{Namespace: "shop", Name: "cart"}, Slices: in}}
}

// localOf are the local endpoints of a node that had none before.
func localOf(node string, services []ServiceSlices) []v1alpha1.ServiceLocalEndpoints {
	return LocalEndpoints(node, services, nil).Services
}

func TestLocalEndpoints(t *testing.T) {
	v6 := slice("six", endpoint("fd00::1", on("n1")))
	v6.AddressType = discoveryv1.AddressTypeIPv6
	fqdn := slice("fqdn", endpoint("host.example.org", on("n1")))
	fqdn.AddressType = discoveryv1.AddressTypeFQDN
	for name, c := range map[string]struct {
		slices []*discoveryv1.EndpointSlice
		want   []string
	}{
		"whatever the state": {
			slices: []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.0.2", on("n1"), notReady()),
				endpoint("10.0.0.1", on("n1")), endpoint("10.0.0.3", on("n2")), endpoint("10.0.0.4"))},
			want: []string{"10.0.0.1:8080", "10.0.0.2:8080"},
		},
		"both families, no host names": {
			slices: []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.0.1", on("n1"))), v6, fqdn},
			want:   []string{"10.0.0.1:8080", "[fd00::1]:8080"},
		},
		"an address reused elsewhere belongs to the winner's node": {
			slices: []*discoveryv1.EndpointSlice{
				slice("a", endpoint("10.0.0.1", on("n1"), terminating())),
				slice("b", endpoint("10.0.0.1", on("n2"))),
			},
		},
		"and so here": {
			slices: []*discoveryv1.EndpointSlice{
				slice("a", endpoint("10.0.0.1", on("n2"), notReady())),
				slice("b", endpoint("10.0.0.1", on("n1"))),
			},
			want: []string{"10.0.0.1:8080"},
		},
		"a winner without a node belongs to no node": {
			slices: []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.0.1")), slice("b", endpoint("10.0.0.1", on("n1")))},
		},
		"no endpoint here, no entry": {
			slices: []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.0.1", on("n2")))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var want []v1alpha1.ServiceLocalEndpoints
			if c.want != nil {
				want = []v1alpha1.ServiceLocalEndpoints{{Namespace: "shop", Name: "cart",
					Ports: []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: c.want}}}}
			}
			if diff := cmp.Diff(want, localOf("n1", cart(c.slices...))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceOf(t *testing.T) {
	headless, nameless := slice("a"), slice("b")
	headless.Labels[corev1.IsHeadlessService] = ""
	delete(nameless.Labels, discoveryv1.LabelServiceName)
	for _, s := range []*discoveryv1.EndpointSlice{headless, nameless} {
		if svc, ok := ServiceOf(s); ok {
			t.Errorf("slice %s belongs to %s, want to none", s.Name, svc)
		}
	}
	if svc, ok := ServiceOf(slice("c")); !ok || svc.String() != "shop/cart" {
		t.Errorf("ServiceOf = %s, %v", svc, ok)
	}
}

// Both rendered kinds agree on which node has an endpoint: over all nodes every
// winner with a node is local exactly once, in whatever order slices come.
func TestLocalEndpointsOrder(t *testing.T) {
	in := crowd(250)
	random := rand.New(rand.NewPCG(3, 4))
	total := 0
	for i := range 7 {
		node := fmt.Sprintf("node-%d", i)
		want := localOf(node, cart(in...))
		for _, p := range want[0].Ports {
			total += len(p.Endpoints)
		}
		for range 10 {
			if diff := cmp.Diff(want, localOf(node, cart(permuted(random, in)...))); diff != "" {
				t.Fatalf("another order gives other local endpoints of %s (-want +got):\n%s", node, diff)
			}
		}
	}
	// 250 addresses on http and metrics; all are named for some node.
	if total != 500 {
		t.Errorf("%d local endpoints on all nodes, want 500", total)
	}
}

func TestNodesAffected(t *testing.T) {
	base := func() *discoveryv1.EndpointSlice {
		return slice("a", endpoint("10.0.0.1", on("n1")), endpoint("10.0.0.2", on("n2")), endpoint("10.0.0.3"))
	}
	other := slice("b", endpoint("10.0.0.1", on("n3"), terminating()), endpoint("10.0.0.9", on("n9")))
	with := func(edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		s := base()
		edit(s)
		return s
	}
	for name, c := range map[string]struct {
		old, changed *discoveryv1.EndpointSlice
		others       []*discoveryv1.EndpointSlice
		want         []string
	}{
		"created":                   {changed: base(), want: []string{"n1", "n2"}},
		"deleted":                   {old: base(), want: []string{"n1", "n2"}},
		"deleted, others name them": {old: base(), others: []*discoveryv1.EndpointSlice{other}, want: []string{"n1", "n2", "n3"}},
		"unchanged":                 {old: base(), changed: base(), others: []*discoveryv1.EndpointSlice{other}},
		"readiness of a lone endpoint": {
			old: base(), changed: with(func(s *discoveryv1.EndpointSlice) { notReady()(&s.Endpoints[1]) }),
			others: []*discoveryv1.EndpointSlice{other},
		},
		"state of an endpoint named twice": {
			old: base(), changed: with(func(s *discoveryv1.EndpointSlice) { terminating()(&s.Endpoints[0]) }),
			others: []*discoveryv1.EndpointSlice{other}, want: []string{"n1", "n3"},
		},
		"added": {
			old:     base(),
			changed: with(func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, endpoint("10.0.0.4", on("n4"))) }),
			want:    []string{"n4"},
		},
		"moved to another node": {
			old: base(), changed: with(func(s *discoveryv1.EndpointSlice) { on("n5")(&s.Endpoints[1]) }), want: []string{"n2", "n5"},
		},
		"given a node": {
			old: base(), changed: with(func(s *discoveryv1.EndpointSlice) { on("n5")(&s.Endpoints[2]) }), want: []string{"n5"},
		},
		"another port": {
			old: base(), changed: with(func(s *discoveryv1.EndpointSlice) { s.Ports[0] = slicePortOf("http", 8081) }), want: []string{"n1", "n2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, NodesAffected(c.old, c.changed, c.others)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever changes, no node that NodesAffected leaves out has other local endpoints.
func TestNodesAffectedMissesNone(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	three := func() []*discoveryv1.EndpointSlice {
		var out []*discoveryv1.EndpointSlice
		for i := range 3 {
			s := slice(fmt.Sprintf("s%d", i))
			s.Ports = nil
			for _, name := range []string{"http", "web"} {
				if random.IntN(4) > 0 {
					s.Ports = append(s.Ports, slicePortOf(name, 8080+int32(random.IntN(2))))
				}
			}
			for range random.IntN(6) {
				e := endpoint(fmt.Sprintf("10.0.0.%d", random.IntN(5)))
				if n := random.IntN(4); n > 0 {
					on(fmt.Sprintf("n%d", n))(&e)
				}
				conditions(random.IntN(2) == 0, random.IntN(2) == 0, random.IntN(2) == 0)(&e)
				s.Endpoints = append(s.Endpoints, e)
			}
			out = append(out, s)
		}
		return out
	}
	for range 3000 {
		before := three()
		after := []*discoveryv1.EndpointSlice{three()[0], before[1], before[2]}
		affected := map[string]bool{}
		for _, n := range NodesAffected(before[0], after[0], before[1:]) {
			affected[n] = true
		}
		for _, n := range []string{"n1", "n2", "n3"} {
			diff := cmp.Diff(localOf(n, cart(before...)), localOf(n, cart(after...)))
			if diff != "" && !affected[n] {
				t.Fatalf("%s is not affected, but its local endpoints changed:\n%s", n, diff)
			}
		}
	}
}

// A Service over a limit retains its local endpoints, and nodes whose endpoints change meanwhile are
// woken all the same: they find that they have it.
func TestLocalEndpointsOverALimit(t *testing.T) {
	small, more := slice("small", endpoint("10.0.0.1", on("n1"))), slice("more", endpoint("10.0.0.2", on("n2")))
	large := crowded("large", v1alpha1.MaxServicePortEndpoints+1)
	former := localOf("n1", cart(small))
	got := LocalEndpoints("n1", cart(large, more), former)
	if diff := cmp.Diff(former, got.Services); diff != "" || !got.OverLimit {
		t.Errorf("local endpoints over the limit, reported %t (-want +got):\n%s", got.OverLimit, diff)
	}
	if got := LocalEndpoints("n2", cart(large, more), former[:0]); len(got.Services) > 0 || !got.OverLimit {
		t.Errorf("a node without local endpoints has %v, over the limit %t", got.Services, got.OverLimit)
	}
	if got := LocalEndpoints("n2", cart(small, more), nil); len(got.Services) != 1 || got.OverLimit {
		t.Errorf("within the limit: %v, over the limit %t", got.Services, got.OverLimit)
	}
	if got := NodesAffected(nil, more, []*discoveryv1.EndpointSlice{large}); !slices.Equal(got, []string{"n2"}) {
		t.Errorf("woken: %v", got)
	}
}

// crowded is a slice of many endpoints on many ports, all on one node.
func crowded(name string, entries int) *discoveryv1.EndpointSlice {
	const endpoints = 1000
	s := slice(name)
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, endpoint(fmt.Sprintf("10.1.%d.%d", i/250, i%250), on("n1")))
	}
	for i := range (entries + endpoints - 1) / endpoints {
		s.Ports = append(s.Ports, slicePortOf(fmt.Sprintf("p%d", i), int32(i+1)))
	}
	return s
}
