package render

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// sized is a Service with its slices.
type sized struct {
	service *corev1.Service
	slices  []*discoveryv1.EndpointSlice
}

// steps are what is done with a Service.
func steps() map[string]func(*sized) {
	return map[string]func(*sized){
		"Service":        func(s *sized) { Service(s.service, s.slices, Shape{}, Cluster{}, 1) },
		"LocalEndpoints": func(s *sized) { endpointsOn("n1", s.slices) },
		"localBytes":     func(s *sized) { localBytes("n1", &ServiceSlices{Slices: s.slices}) },
		"NodesAffected":  func(s *sized) { NodesAffected(nil, s.slices[len(s.slices)-1], s.slices[:len(s.slices)-1]) },
		"Problems":       func(s *sized) { SourceRangeProblems(s.service) },
	}
}

// TestGrowth: no step takes disproportionately longer with a larger Service, whatever is large
// in it.
func TestGrowth(t *testing.T) {
	for name, enlarge := range map[string]func(*sized, int){
		"external IPs": func(s *sized, n int) {
			for i := range n {
				s.service.Spec.ExternalIPs = append(s.service.Spec.ExternalIPs, fmt.Sprintf("198.%d.%d.%d", 18+i>>16, i>>8&0xff, i&0xff))
			}
		},
		"source ranges": func(s *sized, n int) {
			for i := range n {
				s.service.Spec.LoadBalancerSourceRanges = append(s.service.Spec.LoadBalancerSourceRanges, fmt.Sprintf("10.%d.%d.%d/32", i>>16, i>>8&0xff, i&0xff))
			}
		},
		"ports": func(s *sized, n int) {
			for i := range n {
				name := fmt.Sprintf("p%d", i)
				s.service.Spec.Ports = append(s.service.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(i + 1)}) //nolint:gosec // small
				s.slices[0].Ports = append(s.slices[0].Ports, slicePortOf(name, int32(i+1)))                            //nolint:gosec // small
			}
		},
		"ports of empty slices": func(s *sized, n int) {
			for i := range n {
				s.slices = append(s.slices, slice(fmt.Sprintf("s%d", i)))
				for range 10 {
					s.slices[i+1].Ports = append(s.slices[i+1].Ports, slicePortOf("http", 70_000))
				}
			}
		},
		"ports of one slice beside the endpoints of others": func(s *sized, n int) {
			s.slices = append(s.slices, portsBesideEndpoints(n, n)...)
		},
		"endpoints": func(s *sized, n int) {
			for i := range n {
				if i%1000 == 0 {
					s.slices = append(s.slices, slice(fmt.Sprintf("s%d", i)))
				}
				last := s.slices[len(s.slices)-1]
				last.Endpoints = append(last.Endpoints, endpoint(fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&0xff, i&0xff), on(fmt.Sprintf("n%d", i%100))))
			}
		},
	} {
		prepare := func(n int) *sized {
			s := &sized{service: service(), slices: []*discoveryv1.EndpointSlice{slice("s", endpoint("10.255.0.1", on("n1")))}}
			enlarge(s, n)
			return s
		}
		for step, do := range steps() {
			t.Run(name+"/"+step, func(t *testing.T) { growth.Linear(t, 100, prepare, do) })
		}
	}
}

// TestGrowthTogether: nor with whatever is large at once.
func TestGrowthTogether(t *testing.T) {
	for name, do := range steps() {
		t.Run(name, func(t *testing.T) {
			growth.Service(t, func(size growth.Size) *sized {
				s := &sized{service: service(), slices: []*discoveryv1.EndpointSlice{slice("s")}}
				for i := range size.Addresses {
					s.service.Spec.ExternalIPs = append(s.service.Spec.ExternalIPs, fmt.Sprintf("198.18.%d.%d", i>>8, i&0xff))
				}
				s.service.Spec.Ports, s.slices[0].Ports = nil, nil
				for i := range size.Ports {
					name := fmt.Sprintf("p%d", i)
					s.service.Spec.Ports = append(s.service.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(i + 1)}) //nolint:gosec // small
					s.slices[0].Ports = append(s.slices[0].Ports, slicePortOf(name, int32(i+1)))                            //nolint:gosec // small
				}
				for i := range size.Endpoints {
					s.slices[0].Endpoints = append(s.slices[0].Endpoints, endpoint(fmt.Sprintf("10.0.%d.%d", i>>8, i&0xff), on(fmt.Sprintf("n%d", i%2))))
				}
				return s
			}, do)
		})
	}
}

// TestGrowthOfNodes: nor does it with more Services on a node, in one namespace or in many, up to
// many times what its rules carry.
func TestGrowthOfNodes(t *testing.T) {
	for name, namespaces := range map[string]int{"one namespace": 1, "many namespaces": 1 << 30} {
		prepare := func(n int) (out []ServiceSlices) {
			for i := range n {
				s := onePod(fmt.Sprintf("n%d", i%namespaces), 1, 50)[0]
				s.Service.Name = fmt.Sprintf("s%d", i)
				out = append(out, s)
			}
			return out
		}
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 100, prepare, func(services []ServiceSlices) { LocalEndpoints("n1", services, nil) })
		})
	}
}
