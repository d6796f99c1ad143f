package render

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ServiceSlices are all EndpointSlices of one Service.
type ServiceSlices struct {
	Service types.NamespacedName
	Slices  []*discoveryv1.EndpointSlice
	// Local: the Service has a traffic policy Local, so its local endpoints are left out last.
	Local bool
}

// Local are the local endpoints in the rules of one node.
type Local struct {
	Services []v1alpha1.ServiceLocalEndpoints
	Bytes    int // an upper bound of their size as JSON
	// OverLimit: some Service exceeds a limit of its own and retains its former local endpoints. The
	// node must be rendered again later, because the end of the excess may not concern it.
	OverLimit bool
	LeftOut   []LeftOut // the Services without local endpoints in the rules, in order
}

// LocalEndpoints returns the endpoints of the given Services on a node, in any state. The winning
// claim in all slices of a Service decides on which node an endpoint is, as in Service, so an address
// that is named for two nodes belongs to one of them. The Service itself need not exist: the two
// rendered kinds never wait for each other. A Service over a limit of its own retains its local
// endpoints in current. What exceeds the limits of a node is only counted, and left out.
func LocalEndpoints(node string, services []ServiceSlices, current []v1alpha1.ServiceLocalEndpoints) Local {
	former := make(map[types.NamespacedName]*v1alpha1.ServiceLocalEndpoints, len(current))
	for i := range current {
		former[types.NamespacedName{Namespace: current[i].Namespace, Name: current[i].Name}] = &current[i]
	}
	var out Local
	overLimit := map[types.NamespacedName]bool{}
	all := make([]weighed, 0, len(services))
	for i := range services {
		s := weighed{ServiceSlices: &services[i], absent: len(current) > 0 && former[services[i].Service] == nil}
		if OverLimit(s.Slices) {
			out.OverLimit, overLimit[s.Service] = true, true
			if entry := former[s.Service]; entry != nil {
				s.bytes = entry.MaxBytes()
			}
		} else {
			s.bytes = localBytes(node, s.ServiceSlices)
		}
		if s.bytes > 0 {
			all = append(all, s)
		}
	}
	carried, leftOut := share(all)
	out.LeftOut = leftOut
	for _, s := range carried {
		out.Bytes += s.bytes
		if overLimit[s.Service] {
			out.Services = append(out.Services, *former[s.Service])
		} else if ports := endpointsOn(node, s.Slices); len(ports) > 0 {
			out.Services = append(out.Services, v1alpha1.ServiceLocalEndpoints{Namespace: s.Service.Namespace, Name: s.Service.Name, Ports: ports})
		}
	}
	slices.SortFunc(out.Services, func(a, b v1alpha1.ServiceLocalEndpoints) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out
}

// endpointsOn finds the node's endpoints of one Service.
func endpointsOn(node string, endpointSlices []*discoveryv1.EndpointSlice) []v1alpha1.PortLocalEndpoints {
	here := sets.Set[netip.Addr]{}
	ports := make([][]slicePort, len(endpointSlices))
	expected := 0 // slice by slice: the ports of one and the endpoints of another have no bound together
	for i, slice := range endpointSlices {
		if len(slice.Endpoints) == 0 {
			continue
		}
		ports[i] = usablePorts(slice, ignoreProblem)
		eachAddress(slice, ignoreProblem, func(addr netip.Addr, c claim) {
			if c.node() == node {
				here.Insert(addr)
				expected += len(ports[i])
			}
		})
	}
	winners := make(map[endpointKey]claim, expected) // of any node, for these addresses
	for i, slice := range endpointSlices {
		eachAddress(slice, ignoreProblem, func(addr netip.Addr, c claim) {
			if here.Has(addr) {
				for _, p := range ports[i] {
					storeWinner(winners, p.of(addr), c)
				}
			}
		})
	}
	byPort := map[portKey][]string{}
	for key, c := range winners {
		if c.node() == node {
			byPort[key.port] = append(byPort[key.port], key.addr.String())
		}
	}
	out := make([]v1alpha1.PortLocalEndpoints, 0, len(byPort))
	for key, addresses := range byPort {
		slices.Sort(addresses)
		out = append(out, v1alpha1.PortLocalEndpoints{Name: key.name, Protocol: key.protocol, Endpoints: addresses})
	}
	slices.SortFunc(out, func(a, b v1alpha1.PortLocalEndpoints) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
	})
	return out
}

// NodesNamed returns the nodes that slices name, sorted, without duplicates.
func NodesNamed(endpointSlices ...*discoveryv1.EndpointSlice) []string {
	nodes := sets.Set[string]{}
	for _, slice := range endpointSlices {
		for i := range slice.Endpoints {
			nodes.Insert(claim{endpoint: &slice.Endpoints[i]}.node())
		}
	}
	nodes.Delete("") // an endpoint without a node
	return slices.Sorted(maps.Keys(nodes))
}

// NodesAffected returns the nodes, sorted, whose local endpoints may differ after a slice of a
// Service changed from old to changed (nil: it does not exist), given the other slices of the
// Service: the nodes that gained or lost an endpoint, and those that may win or lose an address that
// another slice names too. All ports of a slice have the same endpoints, so it compares addresses.
func NodesAffected(old, changed *discoveryv1.EndpointSlice, others []*discoveryv1.EndpointSlice) []string {
	before, after := addressesOf(old), addressesOf(changed)
	samePorts := len(before) > 0 && len(after) > 0 && sameSlicePorts(old, changed)
	nodes := sets.Set[string]{}
	contested := map[netip.Addr]string{} // with the node that has it before and after, if any
	for addr := range sets.KeySet(before).Union(sets.KeySet(after)) {
		was, hadIt := before[addr]
		is, hasIt := after[addr]
		if hadIt && hasIt && samePorts && was.node() == is.node() {
			if !was.sameState(is) { // only matters if another slice claims it too
				contested[addr] = is.node()
			}
			continue
		}
		contested[addr] = ""
		if hadIt {
			nodes.Insert(was.node())
		}
		if hasIt {
			nodes.Insert(is.node())
		}
	}
	if len(contested) > 0 {
		for _, slice := range others {
			eachAddress(slice, ignoreProblem, func(addr netip.Addr, c claim) {
				if mine, ok := contested[addr]; ok {
					nodes.Insert(c.node(), mine)
				}
			})
		}
	}
	nodes.Delete("") // an endpoint without a node
	return slices.Sorted(maps.Keys(nodes))
}

// addressesOf returns the winning claim of each address within one slice.
func addressesOf(slice *discoveryv1.EndpointSlice) map[netip.Addr]claim {
	if slice == nil || len(slice.Endpoints) == 0 || len(usablePorts(slice, ignoreProblem)) == 0 {
		return nil
	}
	winners := make(map[netip.Addr]claim, len(slice.Endpoints))
	eachAddress(slice, ignoreProblem, func(addr netip.Addr, c claim) { storeWinner(winners, addr, c) })
	return winners
}

func sameSlicePorts(a, b *discoveryv1.EndpointSlice) bool {
	ofA, ofB := usablePorts(a, ignoreProblem), usablePorts(b, ignoreProblem)
	return slices.Equal(ofA, ofB) || sets.New(ofA...).Equal(sets.New(ofB...))
}
