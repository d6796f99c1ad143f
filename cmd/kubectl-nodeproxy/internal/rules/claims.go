package rules

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// claims tells which Service has an address and port that another one has lost.
type claims struct {
	services []v1alpha1.ServiceProxyRules
	winners  map[combine.Claim]*v1alpha1.ServiceProxyRules // made when it is first needed
}

func newClaims(services []v1alpha1.ServiceProxyRules) *claims { return &claims{services: services} }

// winner returns the Service with the best claim.
func (c *claims) winner(claim combine.Claim) string {
	if c.winners == nil {
		c.winners = map[combine.Claim]*v1alpha1.ServiceProxyRules{}
		for i := range c.services {
			s := &c.services[i]
			if s.Spec.Released {
				continue
			}
			for _, claim := range combine.Claims(&s.Spec) {
				if best := c.winners[claim]; best == nil || precedence(s, best) < 0 {
					c.winners[claim] = s
				}
			}
		}
	}
	best := c.winners[claim]
	if best == nil {
		return "another Service"
	}
	name, _ := combine.ServiceOf(best.Name)
	return name.String()
}

// precedence puts the better claim first, as agents do.
func precedence(a, b *v1alpha1.ServiceProxyRules) int {
	x, y := dataplane.Precedence{Created: a.Spec.ServiceCreated.Time}, dataplane.Precedence{Created: b.Spec.ServiceCreated.Time}
	first, _ := combine.ServiceOf(a.Name)
	second, _ := combine.ServiceOf(b.Name)
	return cmp.Or(x.Compare(y), first.Compare(second))
}

// lost lists what the Service asks for and another one has.
func (c *claims) lost(svc *dataplane.Service, f dataplane.Family, spec *v1alpha1.ServiceProxyRulesSpec) []Lost {
	everywhere := netip.IPv4Unspecified()
	if f == dataplane.IPv6 {
		everywhere = netip.IPv6Unspecified()
	}
	var list []Lost
	if wanted := spec.HealthCheckNodePort; wanted > 0 && wanted <= 65535 && svc.HealthCheckNodePort == 0 {
		list = append(list, Lost{At: fmt.Sprintf("health check node port %d", wanted), To: c.winner(combine.Claim{Address: everywhere, Port: uint16(wanted), Protocol: v1alpha1.ProtocolTCP})})
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, a := range p.Lost {
			list = append(list, Lost{
				At: fmt.Sprintf("%s/%s", netip.AddrPortFrom(a, p.Port), p.Protocol),
				To: c.winner(combine.Claim{Address: a, Port: p.Port, Protocol: p.Protocol}),
			})
		}
		if wanted := nodePortOf(spec, p); wanted > 0 && wanted <= 65535 && p.NodePort == 0 {
			list = append(list, Lost{
				At: fmt.Sprintf("node port %d/%s", wanted, p.Protocol),
				To: c.winner(combine.Claim{Address: everywhere, Port: uint16(wanted), Protocol: p.Protocol}),
			})
		}
	}
	return list
}

// nodePortOf is the node port that a port asks for.
func nodePortOf(spec *v1alpha1.ServiceProxyRulesSpec, p *dataplane.Port) int32 {
	for i := range spec.Ports {
		if s := &spec.Ports[i]; s.Name == p.Name && s.Protocol == p.Protocol && s.Port == int32(p.Port) {
			return s.NodePort
		}
	}
	return 0
}
