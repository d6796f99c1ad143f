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

// Asked is a claim as one Service makes it.
type Asked struct {
	Claim
	// ClusterIP: the address is the Service's own. No other claim on it counts, however old;
	// otherwise anyone who may create Services could claim a cluster IP in advance.
	ClusterIP bool
}

// Registry knows who claims which address, port and protocol. Nearly always it
// is one each.
type Registry[T Claimant[T]] map[Claim][]asking[T]

// asking is a claimant of one claim.
type asking[T Claimant[T]] struct {
	claimant  T
	clusterIP bool
}

func (a asking[T]) precedes(o asking[T]) bool {
	if a.clusterIP != o.clusterIP {
		return a.clusterIP
	}
	return a.claimant.Precedes(o.claimant)
}

// Set replaces what a claimant claims and returns the others that this may
// concern, each once.
func (r Registry[T]) Set(claimant T, before, after []Asked) []T {
	concerned := map[T]struct{}{}
	concern := func(all []asking[T]) {
		for _, a := range all {
			concerned[a.claimant] = struct{}{}
		}
	}
	for _, asked := range before {
		rest := slices.DeleteFunc(r[asked.Claim], func(o asking[T]) bool { return o.claimant == claimant })
		if len(rest) == 0 {
			delete(r, asked.Claim)
			continue
		}
		r[asked.Claim] = rest
		concern(rest)
	}
	for _, asked := range after {
		concern(r[asked.Claim])
		r[asked.Claim] = append(r[asked.Claim], asking[T]{claimant, asked.ClusterIP})
	}
	out := make([]T, 0, len(concerned))
	for c := range concerned {
		out = append(out, c)
	}
	return out
}

// Lost reports whether another has the better claim.
func (r Registry[T]) Lost(claimant T, claim Claim) bool {
	all := r[claim]
	if len(all) == 1 && all[0].claimant == claimant {
		return false
	}
	own := asking[T]{claimant: claimant}
	if i := slices.IndexFunc(all, func(o asking[T]) bool { return o.claimant == claimant }); i >= 0 {
		own = all[i]
	}
	return slices.ContainsFunc(all, func(o asking[T]) bool { return o.claimant != claimant && o.precedes(own) })
}

// Holder returns the claimant that has the best claim.
func (r Registry[T]) Holder(claim Claim) (T, bool) {
	all := r[claim]
	if len(all) == 0 {
		var none T
		return none, false
	}
	best := all[0]
	for _, a := range all[1:] {
		if a.precedes(best) {
			best = a
		}
	}
	return best.claimant, true
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
