package combine

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// manyAddresses are n addresses of 10.0.0.0/8.
func manyAddresses(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&0xff, i&0xff)
	}
	return out[:n]
}

// TestGrowth: no step takes disproportionately longer with a larger Service, whatever is large
// in it; the limits are not in these functions.
func TestGrowth(t *testing.T) {
	for name, enlarge := range map[string]func(*v1alpha1.ServiceProxyRulesSpec, int){
		"external IPs": func(s *v1alpha1.ServiceProxyRulesSpec, n int) { s.ExternalIPs = manyAddresses(n + 1)[1:] },
		"addresses of Nodes": func(s *v1alpha1.ServiceProxyRulesSpec, n int) {
			s.ExternalIPs = manyAddresses(n + 1)[1:]
			s.NodeAddresses = s.ExternalIPs
		},
		"source ranges": func(s *v1alpha1.ServiceProxyRulesSpec, n int) {
			for _, a := range manyAddresses(n) {
				s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges, a+"/32")
			}
		},
		"ports": func(s *v1alpha1.ServiceProxyRulesSpec, n int) {
			for i := range n {
				s.Ports = append(s.Ports, v1alpha1.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: v1alpha1.ProtocolTCP, Port: int32(i + 1)}) //nolint:gosec // small
			}
		},
		"endpoints": func(s *v1alpha1.ServiceProxyRulesSpec, n int) {
			for _, a := range manyAddresses(n + 1)[1:] {
				s.Ports[0].Endpoints[0].Addresses = append(s.Ports[0].Endpoints[0].Addresses, a+":8080")
			}
		},
	} {
		prepare := func(n int) Input {
			rules := rulesOf("Local", "", 3001, groupOf(ready, "", ".1"))
			enlarge(rules, n)
			return Input{
				Rules: rules, Family: dataplane.IPv4, Lost: func(c Claim) bool { return c.Address.IsUnspecified() || len(rules.NodeAddresses) == 0 },
				LocalEndpoints: []v1alpha1.PortLocalEndpoints{{Name: rules.Ports[0].Name, Protocol: rules.Ports[0].Protocol, Endpoints: rules.Ports[0].Endpoints[0].Addresses}},
			}
		}
		t.Run(name, func(t *testing.T) {
			t.Run("Service", func(t *testing.T) { growth.Linear(t, 100, prepare, func(in Input) { Service(in) }) })
			t.Run("Claims", func(t *testing.T) { growth.Linear(t, 100, prepare, func(in Input) { Claims(in.Rules) }) })
		})
	}
}

// TestGrowthOfContestedClaims: however many Services claim the same, each costs what it claims.
func TestGrowthOfContestedClaims(t *testing.T) {
	prepare := func(n int) []*whole {
		var all []*whole
		for i := range n {
			object := claiming(fmt.Sprintf("s%05d", i), "external 192.0.2.1")
			w, _ := known(&object)
			all = append(all, w)
		}
		return all
	}
	growth.Linear(t, 100, prepare, func(all []*whole) {
		r := Registry[*whole]{}
		for i, w := range all {
			concerned := r.Set(w, nil, Claims(w.rules))
			if lost := r.Lost(w, Claim{Address: netip.MustParseAddr("192.0.2.1"), Port: 80, Protocol: v1alpha1.ProtocolTCP}); lost != (i > 0) || len(concerned) > 0 {
				t.Fatalf("Service %d has lost: %t, and %d are concerned", i, lost, len(concerned))
			}
		}
	})
}
