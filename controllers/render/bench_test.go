package render

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// One change renders one Service, however many there are.
func BenchmarkService(b *testing.B) {
	for _, endpoints := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			svc, in := service(), crowd(endpoints)
			b.ReportAllocs()
			for b.Loop() {
				Service(svc, in, Shape{}, Cluster{}, 1)
			}
		})
	}
}

// cluster is n Services of 10 endpoints over 10 nodes, and the index by node
// that the controller's cache keeps: 30 Services have pods on node-0.
func cluster(n int) (all map[types.NamespacedName]ServiceSlices, onNode0 []types.NamespacedName) {
	all = map[types.NamespacedName]ServiceSlices{}
	for i := range n {
		s := slice("s")
		s.Namespace, s.Labels = fmt.Sprintf("ns-%d", i), map[string]string{discoveryv1.LabelServiceName: "cart"}
		for e := range 10 {
			host := fmt.Sprintf("node-%d", 1+e%9)
			if i < 30 && e == 0 {
				host = "node-0"
			}
			s.Endpoints = append(s.Endpoints, endpoint(fmt.Sprintf("10.%d.%d.%d", i/250, i%250, e+1), on(host)))
		}
		svc, _ := ServiceOf(s)
		all[svc] = ServiceSlices{Service: svc, Slices: []*discoveryv1.EndpointSlice{s}}
		if i < 30 {
			onNode0 = append(onNode0, svc)
		}
	}
	return all, onNode0
}

// One change costs the same with 100 and with 10,000 Services: a Service and
// its slices are found by index, and so are the Services of a node.
func BenchmarkOneChange(b *testing.B) {
	for _, services := range []int{100, 1000, 10000} {
		all, onNode0 := cluster(services)
		b.Run(fmt.Sprintf("Service/services=%d", services), func(b *testing.B) {
			svc := service()
			b.ReportAllocs()
			for b.Loop() {
				Service(svc, all[onNode0[0]].Slices, Shape{}, Cluster{}, 1)
			}
		})
		b.Run(fmt.Sprintf("LocalEndpoints/services=%d", services), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in := make([]ServiceSlices, 0, len(onNode0))
				for _, key := range onNode0 {
					in = append(in, all[key])
				}
				LocalEndpoints("node-0", in, nil)
			}
		})
		b.Run(fmt.Sprintf("NodesAffected/services=%d", services), func(b *testing.B) {
			before := all[onNode0[0]].Slices[0]
			after := before.DeepCopy()
			after.Endpoints = after.Endpoints[:9]
			b.ReportAllocs()
			for b.Loop() {
				NodesAffected(before, after, nil)
			}
		})
	}
}

// The inventory is over all Services, but computed at most once a second.
func BenchmarkInventory(b *testing.B) {
	for _, services := range []int{100, 10000} {
		names := make([]string, services)
		for i := range names {
			names[i] = fmt.Sprintf("namespace-%d.service-%d", i/100, i)
		}
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Inventory(names)
			}
		})
	}
}
