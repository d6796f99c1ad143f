package combine

import (
	"iter"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Claimant is a Service with claims.
type Claimant[T any] interface {
	comparable
	// Precedes reports whether its claims have priority over another's.
	Precedes(T) bool
}

// Asked is a claim of one Service.
type Asked struct {
	Claim
	Rank Rank
}

// Rank is the priority of a claim, before that of its claimant. Most have the zero value.
type Rank int8

const (
	// Yielding claims are for a node port: the Service has the port at an address of a Node,
	// where another Service's node port has priority. It never has the node port itself, and
	// several do not yield to each other.
	Yielding Rank = iota - 1
	// Ordinary claims are decided by their claimants.
	Ordinary
	// Own claims are on the Service's own cluster IP. No other claim on it counts, however old;
	// otherwise a user with permission to create Services could claim a cluster IP in advance.
	Own
)

// Registry has the claimants of each address, port and protocol, nearly always one. The best comes
// first, others in any order.
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

// Set replaces the claims of a claimant and returns the others that this may affect. A change of
// ranks is one, too.
func (r Registry[T]) Set(claimant T, before, after []Asked) []T {
	concerned := sets.Set[T]{}
	for _, asked := range before {
		r.remove(asking[T]{claimant, asked.Rank}, asked.Claim, concerned)
	}
	for _, asked := range after {
		r.add(asking[T]{claimant, asked.Rank}, asked.Claim, concerned)
	}
	return concerned.Delete(claimant).UnsortedList()
}

// add adds a claim. If it is the best, it affects those that had it: the former best, or all that
// yield.
func (r Registry[T]) add(one asking[T], claim Claim, concerned sets.Set[T]) {
	r[claim] = append(r[claim], one)
	all := r[claim]
	if last := len(all) - 1; one.precedes(all[0]) {
		concernBest(all[:last], concerned)
		all[0], all[last] = all[last], all[0]
	}
}

// remove removes a claim. If it was the best, it affects those that have it now.
func (r Registry[T]) remove(one asking[T], claim Claim, concerned sets.Set[T]) {
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

// concernBest adds those that have the claim: the best, or all if they yield.
func concernBest[T Claimant[T]](all []asking[T], concerned sets.Set[T]) {
	if all[0].rank != Yielding {
		all = all[:1]
	}
	for _, a := range all {
		concerned.Insert(a.claimant)
	}
}

// Lost reports whether another claimant has the claim.
func (r Registry[T]) Lost(claimant T, claim Claim) bool {
	all := r[claim]
	return len(all) > 0 && all[0].claimant != claimant && all[0].rank != Yielding
}

// Holder returns the claimant that has the best claim.
func (r Registry[T]) Holder(claim Claim) (holder T, found bool) {
	if all := r[claim]; len(all) > 0 && all[0].rank != Yielding {
		return all[0].claimant, true
	}
	return holder, false
}

// Served yields the claims with which a Service of a family, which may be nil, is programmed: those
// on node ports and on some addresses.
func Served(svc *dataplane.Service, family dataplane.Family, some map[netip.Addr]struct{}) iter.Seq[Claim] {
	return func(yield func(Claim) bool) {
		if svc == nil {
			return
		}
		for d := range svc.Destinations() {
			claim := Claim{Address: d.Address, Port: d.Number, Protocol: d.Port.Protocol}
			if d.Kind == dataplane.NodePort {
				claim = nodePortClaim(d.Number, d.Port.Protocol, family)
			} else if _, found := some[d.Address]; !found || d.Repeated {
				continue
			}
			if !yield(claim) {
				return
			}
		}
		if svc.HealthCheckNodePort != 0 {
			yield(nodePortClaim(svc.HealthCheckNodePort, v1alpha1.ProtocolTCP, family))
		}
	}
}

// SameClaims reports whether two states of a Service claim the same with the same precedence. It is
// cheap, because every change of an endpoint calls it.
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
