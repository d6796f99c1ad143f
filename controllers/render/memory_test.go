package render

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestMemoryOfPortsInDifferentSlices: a port takes no memory for endpoints of slices that lack it.
func TestMemoryOfPortsInDifferentSlices(t *testing.T) {
	const ports, slices, endpoints = 1000, 20, 1000
	var of []corev1.ServicePort
	for i := range int32(ports) {
		of = append(of, corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: corev1.ProtocolTCP, Port: 1 + i})
	}
	var list []*discoveryv1.EndpointSlice
	for n := range slices {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", n)}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: &of[n].Name, Protocol: &of[n].Protocol, Port: new(int32(8080))}},
		}
		for i := range endpoints {
			address := netip.AddrFrom4([4]byte{10, byte(n), byte(i >> 8), byte(i)}) //nolint:gosec // few
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{address.String()}})
		}
		list = append(list, slice)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	winners, problems := mergeEndpoints(of, list, families{corev1.IPv4Protocol: true})
	runtime.ReadMemStats(&after)
	if n := len(winners[portKey{name: "p0", protocol: protocolOf(of[0])}]); n != endpoints || len(problems) > 0 {
		t.Errorf("%d endpoints, problems %v", n, problems)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 50<<20 {
		t.Errorf("it takes %d MB", took>>20)
	}
}

// TestMemoryOfManyPortsBesideManyEndpoints: the ports of one slice take no memory for the endpoints of
// another.
func TestMemoryOfManyPortsBesideManyEndpoints(t *testing.T) {
	list := portsBesideEndpoints(20_000, 4_999)
	if OverLimit(list) {
		t.Fatal("it is over a limit: nothing is shown")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	ports := endpointsOn("n1", list)
	runtime.ReadMemStats(&after)
	if len(ports) != 1 || len(ports[0].Endpoints) != 4_999 {
		t.Errorf("%d ports", len(ports))
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 50<<20 {
		t.Errorf("it takes %d MB", took>>20)
	}
}

// portsBesideEndpoints is a slice with many ports and one endpoint, and slices of one port with many on node n1.
func portsBesideEndpoints(ports, endpoints int) []*discoveryv1.EndpointSlice {
	wide := slice("wide", endpoint("10.255.0.1"))
	wide.Ports = nil
	for i := range ports {
		wide.Ports = append(wide.Ports, slicePortOf(fmt.Sprintf("p%d", i), 8080))
	}
	list := []*discoveryv1.EndpointSlice{wide}
	for i := range endpoints {
		if i%1000 == 0 {
			list = append(list, slice(fmt.Sprintf("tall%d", i)))
		}
		last := list[len(list)-1]
		last.Endpoints = append(last.Endpoints, endpoint(fmt.Sprintf("10.0.%d.%d", i>>8, i&0xff), on("n1")))
	}
	return list
}
