package combine

import (
	"fmt"
	"net/netip"
	"slices"
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
		"groups": func(s *v1alpha1.ServiceProxyRulesSpec, n int) {
			for i, a := range manyAddresses(n + 1)[1:] {
				s.Ports[0].Endpoints = append(s.Ports[0].Endpoints, v1alpha1.EndpointGroup{
					State: v1alpha1.EndpointReady, Zones: []string{fmt.Sprintf("z%d", i)}, Addresses: []string{a + ":8080"},
				})
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

// TestGrowthTogether: nor whatever is large at once, with local endpoints of all ports.
func TestGrowthTogether(t *testing.T) {
	prepare := func(size growth.Size) Input {
		rules := rulesOf("Local", "", 3001, groupOf(ready, "", ".1"))
		rules.Ports, rules.ExternalIPs = nil, manyAddresses(size.Addresses + 1)[1:]
		in := Input{Rules: rules, Family: dataplane.IPv4, Lost: func(c Claim) bool { return c.Address.IsUnspecified() }}
		for i := range size.Ports {
			p := v1alpha1.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: v1alpha1.ProtocolTCP, Port: int32(i + 1)} //nolint:gosec // small
			group := v1alpha1.EndpointGroup{State: v1alpha1.EndpointReady}
			for _, a := range manyAddresses(size.Endpoints + 1)[1:] {
				group.Addresses = append(group.Addresses, a+":8080")
			}
			p.Endpoints = []v1alpha1.EndpointGroup{group}
			rules.Ports = append(rules.Ports, p)
			in.LocalEndpoints = append(in.LocalEndpoints, v1alpha1.PortLocalEndpoints{Name: p.Name, Protocol: p.Protocol, Endpoints: group.Addresses})
		}
		return in
	}
	t.Run("Service", func(t *testing.T) { growth.Service(t, prepare, func(in Input) { Service(in) }) })
	t.Run("Claims", func(t *testing.T) { growth.Service(t, prepare, func(in Input) { Claims(in.Rules) }) })
}

// TestGrowthOfLocalEndpoints: each port finds its own, however many ports there are.
func TestGrowthOfLocalEndpoints(t *testing.T) {
	growth.Linear(t, 100, func(n int) []v1alpha1.PortLocalEndpoints {
		list := make([]v1alpha1.PortLocalEndpoints, n)
		for i := range list {
			list[i] = v1alpha1.PortLocalEndpoints{Name: fmt.Sprintf("p%d", i), Protocol: v1alpha1.ProtocolTCP, Endpoints: []string{"10.0.0.1:8080"}}
		}
		return list
	}, func(list []v1alpha1.PortLocalEndpoints) {
		r, local := &reader{family: dataplane.IPv4}, byPort(list)
		for i := range list {
			if got := r.localEndpoints(local[portName{list[i].Name, list[i].Protocol}]); len(got) != 1 {
				t.Fatalf("%s has %v", list[i].Name, got)
			}
		}
	})
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
		for i, w := range all { // the best first
			if concerned := r.Set(w, Claims(w.rules), nil); len(concerned) != min(1, len(all)-1-i) {
				t.Fatalf("Service %d goes, and %d are concerned", i, len(concerned))
			}
		}
	})
}

// BenchmarkAtLimits has as many endpoints as one Service may, some on the node: what a namespace may
// have there. The store waits meanwhile.
func BenchmarkAtLimits(b *testing.B) {
	const ports = 100
	rules, here := rulesOf("Local", "", 0, groupOf(ready, "", ".1")), []v1alpha1.PortLocalEndpoints{}
	rules.Ports = nil
	local := v1alpha1.ServiceLocalEndpoints{Namespace: "shop", Name: "cart"}
	for i := range ports {
		p := v1alpha1.ServicePort{Name: fmt.Sprintf("p%d", i), Protocol: v1alpha1.ProtocolTCP, Port: int32(i + 1)} //nolint:gosec // small
		group := v1alpha1.EndpointGroup{State: v1alpha1.EndpointReady}
		for _, a := range manyAddresses(v1alpha1.MaxServicePortEndpoints/ports + 1)[1:] {
			group.Addresses = append(group.Addresses, a+":8080")
		}
		slices.Sort(group.Addresses) // as the controller writes them
		p.Endpoints = []v1alpha1.EndpointGroup{group}
		rules.Ports = append(rules.Ports, p)
		local.Ports = append(local.Ports, v1alpha1.PortLocalEndpoints{Name: p.Name, Protocol: p.Protocol, Endpoints: group.Addresses})
		if local.MaxBytes() <= v1alpha1.MaxNamespaceLocalBytes {
			here = local.Ports
		}
	}
	b.Run("local endpoints", func(b *testing.B) {
		for b.Loop() {
			r, of := &reader{family: dataplane.IPv4}, byPort(here)
			for i := range here {
				r.localEndpoints(of[portName{here[i].Name, here[i].Protocol}])
			}
		}
	})
	b.Run("Service", func(b *testing.B) {
		for b.Loop() {
			Service(Input{Rules: rules, Family: dataplane.IPv4, LocalEndpoints: here, Lost: func(Claim) bool { return false }})
		}
	})
}
