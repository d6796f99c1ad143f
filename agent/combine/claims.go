package combine

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
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
	Rank Rank
}

// Rank is how good a claim is, before it counts whose it is. The zero value is that of most.
type Rank int8

const (
	// Yielding claims are for a node port: the Service has the port at an address of a Node,
	// and asks whether it is another's node port. It never has the node port itself, and of
	// several none yields to the others.
	Yielding Rank = iota - 1
	// Ordinary claims are decided by whose they are.
	Ordinary
	// Own claims are on the Service's own cluster IP. No other claim on it counts, however
	// old; otherwise anyone who may create Services could claim a cluster IP in advance.
	Own
)

// Registry knows who claims which address, port and protocol. Nearly always it
// is one each; of several the best comes first, the others in any order.
type Registry[T Claimant[T]] map[Claim][]asking[T]

// asking is a claimant of one claim.
type asking[T Claimant[T]] struct {
	claimant T
	rank     Rank
}

func (a asking[T]) precedes(o asking[T]) bool {
	if a.rank != o.rank {
		return a.rank > o.rank
	}
	return a.rank != Yielding && a.claimant.Precedes(o.claimant)
}

// Set replaces what a claimant claims and returns the others that this may
// concern, each once. A change of how its claims rank is one, too.
func (r Registry[T]) Set(claimant T, before, after []Asked) []T {
	concerned := map[T]struct{}{}
	for _, asked := range before {
		r.remove(asking[T]{claimant, asked.Rank}, asked.Claim, concerned)
	}
	for _, asked := range after {
		r.add(asking[T]{claimant, asked.Rank}, asked.Claim, concerned)
	}
	delete(concerned, claimant)
	out := make([]T, 0, len(concerned))
	for c := range concerned {
		out = append(out, c)
	}
	return out
}

// add adds an asking. If it is the best, it concerns those that had the claim: the former
// best, or all that yield.
func (r Registry[T]) add(one asking[T], claim Claim, concerned map[T]struct{}) {
	r[claim] = append(r[claim], one)
	all := r[claim]
	if last := len(all) - 1; one.precedes(all[0]) {
		concernBest(all[:last], concerned)
		all[0], all[last] = all[last], all[0]
	}
}

// remove removes an asking. If it was the best, it concerns those that have the claim now.
func (r Registry[T]) remove(one asking[T], claim Claim, concerned map[T]struct{}) {
	all := r[claim]
	i := slices.Index(all, one)
	switch {
	case i < 0:
		return
	case len(all) == 1:
		delete(r, claim)
		return
	}
	rest := slices.Delete(all, i, i+1)
	r[claim] = rest
	if i > 0 || one.rank == Yielding {
		return
	}
	for j := range rest {
		if rest[j].precedes(rest[0]) {
			rest[0], rest[j] = rest[j], rest[0]
		}
	}
	concernBest(rest, concerned)
}

// concernBest notes those that have the claim: the best, or all if they yield.
func concernBest[T Claimant[T]](all []asking[T], concerned map[T]struct{}) {
	if all[0].rank != Yielding {
		all = all[:1]
	}
	for _, a := range all {
		concerned[a.claimant] = struct{}{}
	}
}

// Lost reports whether another has the better claim.
func (r Registry[T]) Lost(claimant T, claim Claim) bool {
	all := r[claim]
	return len(all) > 0 && all[0].claimant != claimant && all[0].rank != Yielding
}

// Holder returns the claimant that has the best claim.
func (r Registry[T]) Holder(claim Claim) (T, bool) {
	if all := r[claim]; len(all) > 0 && all[0].rank != Yielding {
		return all[0].claimant, true
	}
	var none T
	return none, false
}

// Served yields the claims by which a Service of a family, which may be nil, is programmed: of
// those on addresses only those on some, and those on node ports.
func Served(svc *dataplane.Service, family dataplane.Family, some map[netip.Addr]struct{}) iter.Seq[Claim] {
	return func(yield func(Claim) bool) {
		if svc == nil {
			return
		}
		for d := range svc.Destinations() {
			claim := Claim{Address: d.Address, Port: d.Number, Protocol: d.Port.Protocol}
			if d.Kind == dataplane.NodePort {
				claim.Address = everywhere(family)
			} else if _, found := some[d.Address]; !found || d.Repeated {
				continue
			}
			if !yield(claim) {
				return
			}
		}
		if svc.HealthCheckNodePort != 0 {
			yield(healthClaim(svc.HealthCheckNodePort, family))
		}
	}
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
		slices.Equal(a.NodeAddresses, b.NodeAddresses) &&
		slices.EqualFunc(a.Ports, b.Ports, func(x, y v1alpha1.ServicePort) bool {
			return x.Name == y.Name && x.Port == y.Port && x.NodePort == y.NodePort && x.Protocol == y.Protocol
		})
}
