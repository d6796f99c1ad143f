package rules

import (
	"fmt"
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// owner returns the Service that owns a claim that another one has lost.
func owner(set *combine.Set, spec *v1alpha1.ServiceProxyRulesSpec, claim combine.Claim) string {
	name, found := set.Holders.At(spec, claim)
	if !found {
		return "another Service"
	}
	return name.String()
}

// lost lists the claims of a Service that another one owns.
func lost(svc *dataplane.Service, set *combine.Set, spec *v1alpha1.ServiceProxyRulesSpec) []Lost {
	everywhere := netip.IPv4Unspecified()
	if set.Family == dataplane.IPv6 {
		everywhere = netip.IPv6Unspecified()
	}
	var list []Lost
	if port := spec.HealthCheckNodePort; port > 0 && port <= 65535 && svc.HealthCheckNodePort == 0 {
		list = append(list, Lost{Address: fmt.Sprintf("health check node port %d", port), Owner: owner(set, spec, combine.Claim{Address: everywhere, Port: uint16(port), Protocol: v1alpha1.ProtocolTCP})})
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, a := range p.Lost {
			list = append(list, Lost{
				Address: fmt.Sprintf("%s/%s", netip.AddrPortFrom(a, p.Port), p.Protocol),
				Owner:   owner(set, spec, combine.Claim{Address: a, Port: p.Port, Protocol: p.Protocol}),
			})
		}
		if port := nodePortOf(spec, p); port > 0 && port <= 65535 && p.NodePort == 0 {
			list = append(list, Lost{
				Address: fmt.Sprintf("node port %d/%s", port, p.Protocol),
				Owner:   owner(set, spec, combine.Claim{Address: everywhere, Port: uint16(port), Protocol: p.Protocol}),
			})
		}
	}
	return list
}

// nodePortOf is the node port that a port claims.
func nodePortOf(spec *v1alpha1.ServiceProxyRulesSpec, p *dataplane.Port) int32 {
	for i := range spec.Ports {
		if s := &spec.Ports[i]; s.Name == p.Name && s.Protocol == p.Protocol && s.Port == int32(p.Port) {
			return s.NodePort
		}
	}
	return 0
}
