package render

import (
	"cmp"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ServiceSlices are all EndpointSlices of one Service.
type ServiceSlices struct {
	Service types.NamespacedName
	Slices  []*discoveryv1.EndpointSlice
}

// Members returns the endpoints that live on a node, in whatever state, of the
// given Services. The claim that wins over all slices of a Service says on
// which node an endpoint lives, as in Service, so an address that is named for
// two nodes belongs to one of them. Whether the Service itself exists does not
// matter: the two rendered kinds never wait for each other.
func Members(node string, services []ServiceSlices) []v1alpha1.ServiceMembers {
	var out []v1alpha1.ServiceMembers
	for _, s := range services {
		if ports := membersOf(node, s.Slices); len(ports) > 0 {
			out = append(out, v1alpha1.ServiceMembers{Namespace: s.Service.Namespace, Name: s.Service.Name, Ports: ports})
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.ServiceMembers) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// membersOf finds the node's endpoints of one Service.
func membersOf(node string, endpointSlices []*discoveryv1.EndpointSlice) []v1alpha1.PortMembers {
	winners := map[endpointKey]claim{}
	for _, slice := range endpointSlices {
		eachClaim(slice, ignoreProblem, func(key endpointKey, c claim) {
			if c.node() == node {
				keepWinner(winners, key, c)
			}
		})
	}
	// Only what this node claims can be taken from it by another's claim.
	for _, slice := range endpointSlices {
		eachClaim(slice, ignoreProblem, func(key endpointKey, c claim) {
			if mine, ok := winners[key]; ok && c.node() != node && c.beats(mine) {
				delete(winners, key)
			}
		})
	}
	byPort := map[portKey][]string{}
	for key := range winners {
		byPort[key.port] = append(byPort[key.port], key.addr.String())
	}
	out := make([]v1alpha1.PortMembers, 0, len(byPort))
	for key, addresses := range byPort {
		slices.Sort(addresses)
		out = append(out, v1alpha1.PortMembers{Name: key.name, Protocol: key.protocol, Endpoints: addresses})
	}
	slices.SortFunc(out, func(a, b v1alpha1.PortMembers) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}

// NodesNamed returns the nodes that a slice names, sorted, each once.
func NodesNamed(slice *discoveryv1.EndpointSlice) []string {
	nodes := map[string]struct{}{}
	for i := range slice.Endpoints {
		if n := slice.Endpoints[i].NodeName; n != nil && *n != "" {
			nodes[*n] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// NodesAffected returns the nodes whose members may differ after a slice of a
// Service changed from old to changed (nil: it did not exist or does not any
// more), given the other slices of the Service. A node is affected when it
// gained or lost an endpoint, or when the change may have shifted the winner
// of an address that another slice names too. The result is sorted.
func NodesAffected(old, changed *discoveryv1.EndpointSlice, others []*discoveryv1.EndpointSlice) []string {
	before, after := claimsOf(old), claimsOf(changed)
	nodes := map[string]struct{}{}
	contested := map[endpointKey][]string{}
	note := func(key endpointKey, was, is claim, hadIt, hasIt bool) {
		if hadIt && hasIt && was.node() == is.node() {
			if !was.sameState(is) { // matters only if somebody else claims it too
				contested[key] = []string{is.node()}
			}
			return
		}
		contested[key] = nil
		for _, c := range []struct {
			claim
			there bool
		}{{was, hadIt}, {is, hasIt}} {
			if c.there {
				nodes[c.node()] = struct{}{}
			}
		}
	}
	for key, was := range before {
		is, hasIt := after[key]
		note(key, was, is, true, hasIt)
	}
	for key, is := range after {
		if _, hadIt := before[key]; !hadIt {
			note(key, claim{}, is, false, true)
		}
	}
	if len(contested) > 0 {
		for _, slice := range others {
			eachClaim(slice, ignoreProblem, func(key endpointKey, c claim) {
				if mine, ok := contested[key]; ok {
					nodes[c.node()] = struct{}{}
					for _, n := range mine {
						nodes[n] = struct{}{}
					}
				}
			})
		}
	}
	delete(nodes, "") // an endpoint without a node lives nowhere
	return slices.Sorted(maps.Keys(nodes))
}

// claimsOf returns the winning claims within one slice.
func claimsOf(slice *discoveryv1.EndpointSlice) map[endpointKey]claim {
	winners := map[endpointKey]claim{}
	if slice == nil {
		return winners
	}
	eachClaim(slice, ignoreProblem, func(key endpointKey, c claim) { keepWinner(winners, key, c) })
	return winners
}
