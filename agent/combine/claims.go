package combine

import (
	"iter"
	"net/netip"
	"slices"

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
