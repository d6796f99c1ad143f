package combine

import (
	"slices"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Claimant is who claims: a Service, as whoever keeps the Registry knows it.
type Claimant[T any] interface {
	comparable
	// Precedes reports whether its claims are better than another's.
	Precedes(T) bool
}

// Registry knows who claims which address, port and protocol. Nearly always it
// is one each.
type Registry[T Claimant[T]] map[Claim][]T

// Set replaces what a claimant claims and returns the others that this may
// concern.
func (r Registry[T]) Set(claimant T, before, after []Claim) []T {
	var concerned []T
	for _, claim := range before {
		rest := slices.DeleteFunc(r[claim], func(o T) bool { return o == claimant })
		if len(rest) == 0 {
			delete(r, claim)
			continue
		}
		r[claim] = rest
		concerned = append(concerned, rest...)
	}
	for _, claim := range after {
		concerned = append(concerned, r[claim]...)
		r[claim] = append(r[claim], claimant)
	}
	return concerned
}

// Lost reports whether another has the better claim.
func (r Registry[T]) Lost(claimant T, claim Claim) bool {
	return slices.ContainsFunc(r[claim], func(o T) bool { return o != claimant && o.Precedes(claimant) })
}

// Holder returns the claimant that has the best claim.
func (r Registry[T]) Holder(claim Claim) (T, bool) {
	for _, claimant := range r[claim] {
		if !r.Lost(claimant, claim) {
			return claimant, true
		}
	}
	var none T
	return none, false
}

// SameClaims reports whether two states of a Service claim the same in the
// same order of precedence. It is cheap, because it is asked on every change
// of an endpoint.
func SameClaims(a, b *v1alpha1.ServiceProxyRulesSpec) bool {
	return a.ServiceCreated.Equal(&b.ServiceCreated) &&
		a.HealthCheckNodePort == b.HealthCheckNodePort &&
		slices.Equal(a.ClusterIPs, b.ClusterIPs) &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
		slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.EqualFunc(a.Ports, b.Ports, func(x, y v1alpha1.ServicePort) bool {
			return x.Name == y.Name && x.Port == y.Port && x.NodePort == y.NodePort && x.Protocol == y.Protocol
		})
}
