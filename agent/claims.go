package agent

import (
	"cmp"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// claims knows which Services claim which address, port and protocol. Nearly
// always it is one each.
type claims map[combine.Claim][]*entry

// set replaces what e claims and returns the other Services that this may
// concern.
func (c claims) set(e *entry, before, after []combine.Claim) []*entry {
	var concerned []*entry
	for _, claim := range before {
		rest := slices.DeleteFunc(c[claim], func(o *entry) bool { return o == e })
		if len(rest) == 0 {
			delete(c, claim)
			continue
		}
		c[claim] = rest
		concerned = append(concerned, rest...)
	}
	for _, claim := range after {
		concerned = append(concerned, c[claim]...)
		c[claim] = append(c[claim], e)
	}
	return concerned
}

// lost reports whether another Service than e has the better claim.
func (c claims) lost(e *entry, claim combine.Claim) bool {
	return slices.ContainsFunc(c[claim], func(o *entry) bool { return o != e && o.precedes(e) })
}

// precedes reports whether e's claims are better than o's: by precedence, then by
// the lower name.
func (e *entry) precedes(o *entry) bool {
	return cmp.Or(e.precedence().Compare(o.precedence()), e.name.Compare(o.name)) < 0
}

func (e *entry) precedence() dataplane.Precedence {
	p := dataplane.Precedence{Held: !e.live}
	if e.rules != nil {
		p.Created = e.rules.Spec.ServiceCreated.Time
	}
	return p
}

// sameClaims reports whether two states of a Service claim the same in the
// same order of precedence. It is cheap, because it is asked on every change
// of an endpoint.
func sameClaims(a, b *v1alpha1.ServiceProxyRulesSpec) bool {
	return a.ServiceCreated.Equal(&b.ServiceCreated) &&
		a.HealthCheckNodePort == b.HealthCheckNodePort &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.EqualFunc(a.Ports, b.Ports, func(x, y v1alpha1.ServicePort) bool {
			return x.Name == y.Name && x.Port == y.Port && x.NodePort == y.NodePort && x.Protocol == y.Protocol
		})
}
