package render

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var created = metav1.NewTime(time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC))

// service is shop/cart, ClusterIP 10.96.12.7, port http 80/TCP, changed by edit.
func service(edit ...func(*corev1.Service)) *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", CreationTimestamp: created},
		Spec: corev1.ServiceSpec{
			Type:       corev1.ServiceTypeClusterIP,
			ClusterIP:  "10.96.12.7",
			ClusterIPs: []string{"10.96.12.7"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, e := range edit {
		e(svc)
	}
	return svc
}

// slice is an IPv4 slice of shop/cart with the port http 8080/TCP.
func slice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "cart"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{slicePortOf("http", 8080)},
		Endpoints:   endpoints,
	}
}

func slicePortOf(name string, number int32) discoveryv1.EndpointPort {
	protocol := corev1.ProtocolTCP
	return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol}
}

type endpointEdit func(*discoveryv1.Endpoint)

// endpoint is a ready endpoint without a node, changed by edit.
func endpoint(address string, edit ...endpointEdit) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{address}}
	for _, f := range edit {
		f(&e)
	}
	return e
}

func on(node string) endpointEdit {
	return func(e *discoveryv1.Endpoint) { e.NodeName = &node }
}

func conditions(ready, serving, terminating bool) endpointEdit {
	return func(e *discoveryv1.Endpoint) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating}
	}
}

// The classes of endpoints.
func notReady() endpointEdit    { return conditions(false, false, false) }
func terminating() endpointEdit { return conditions(false, true, true) }

func hints(zones, nodes []string) endpointEdit {
	return func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{}
		for _, z := range zones {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: z})
		}
		for _, n := range nodes {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: n})
		}
	}
}

// permuted returns copies of the slices in another order, with their endpoints
// and ports in another order too.
func permuted(random *rand.Rand, in []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	out := make([]*discoveryv1.EndpointSlice, len(in))
	for i, j := range random.Perm(len(in)) {
		s := in[j].DeepCopy()
		random.Shuffle(len(s.Endpoints), func(a, b int) { s.Endpoints[a], s.Endpoints[b] = s.Endpoints[b], s.Endpoints[a] })
		random.Shuffle(len(s.Ports), func(a, b int) { s.Ports[a], s.Ports[b] = s.Ports[b], s.Ports[a] })
		out[i] = s
	}
	return out
}

// crowd is n endpoints in slices of 100, spread over nodes, zones and states,
// every tenth of them named a second time with another state and node.
func crowd(n int) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	again := slice("cart-z")
	for i := range n {
		if i%100 == 0 {
			out = append(out, slice(fmt.Sprintf("cart-%03d", i/100)))
			out[len(out)-1].Ports = append(out[len(out)-1].Ports, slicePortOf("metrics", 9090))
		}
		address := fmt.Sprintf("10.%d.%d.%d", 1+i/62500, i/250%250, i%250+1)
		edits := []endpointEdit{on(fmt.Sprintf("node-%d", i%7))}
		if i%5 == 0 {
			edits = append(edits, hints([]string{fmt.Sprintf("zone-%d", i%3), "zone-x"}, []string{fmt.Sprintf("node-%d", i%2)}))
		}
		if i%6 == 0 {
			edits = append(edits, terminating())
		}
		last := out[len(out)-1]
		last.Endpoints = append(last.Endpoints, endpoint(address, edits...))
		if i%10 == 0 {
			again.Endpoints = append(again.Endpoints, endpoint(address, on(fmt.Sprintf("node-%d", (i+1)%7))))
		}
	}
	return append(out, again)
}
