package ipvs

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// BenchmarkPlan plans 1,000 Services of 10 endpoints each, two of them on this
// node, in each family.
func BenchmarkPlan(b *testing.B) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		b.Run(string(family), func(b *testing.B) {
			c := testConfig(b, family, nil)
			services := benchServices(family, 1000, 10)
			b.ReportAllocs()
			for b.Loop() {
				for _, s := range services {
					c.planService(s, nil)
				}
			}
		})
	}
}

func benchServices(family dataplane.Family, count, endpoints int) []*dataplane.Service {
	service, pod := "10.96.%d.%d", "10.1.%d.%d"
	if family == dataplane.IPv6 {
		service, pod = "fd00:96::%x:%x", "fd00:1::%x:%x"
	}
	out := make([]*dataplane.Service, count)
	for i := range out {
		p := dataplane.Port{Protocol: v1alpha1.ProtocolTCP, Port: 80, Available: true}
		for n := range endpoints {
			a := netip.MustParseAddr(fmt.Sprintf(pod, (i*endpoints+n)/250, (i*endpoints+n)%250+1))
			p.Cluster = append(p.Cluster, netip.AddrPortFrom(a, 8080))
		}
		p.LocalEndpoints = p.Cluster[:min(2, endpoints)]
		out[i] = &dataplane.Service{
			Name:      dataplane.ServiceName{Namespace: "bench", Name: fmt.Sprintf("s%d", i)},
			ClusterIP: netip.MustParseAddr(fmt.Sprintf(service, i/250, i%250+1)), Ports: []dataplane.Port{p},
		}
	}
	return out
}
