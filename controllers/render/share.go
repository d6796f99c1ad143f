package render

import (
	"cmp"
	"container/heap"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// LeftOut is a Service whose local endpoints are not in the rules of a node.
type LeftOut struct {
	Service types.NamespacedName
	// Bytes is an upper bound of the size of its local endpoints.
	Bytes int
	// Limit is the exceeded one: v1alpha1.MaxNamespaceLocalBytes or v1alpha1.MaxNodeLocalBytes.
	Limit int
}

// Why returns the reason.
func (l LeftOut) Why() string {
	switch {
	case l.Bytes > v1alpha1.MaxNamespaceLocalBytes:
		return fmt.Sprintf("they take %d bytes, more than the limit of %d for one namespace on one node", l.Bytes, v1alpha1.MaxNamespaceLocalBytes)
	case l.Limit == v1alpha1.MaxNamespaceLocalBytes:
		return fmt.Sprintf("those of its namespace there exceed the limit of %d bytes, or are less than an eighth below it (this Service: %d)", l.Limit, l.Bytes)
	}
	return fmt.Sprintf("those of all Services there exceed the limit of %d bytes, and its namespace takes the most (this Service: %d)", l.Limit, l.Bytes)
}

// weighed is a Service with the size of its local endpoints.
type weighed struct {
	*ServiceSlices
	bytes int
	// absent: the stored rules of the node have other Services, but not this one.
	absent bool
}

// weight is the size that the Service counts for. One that is left out counts for an eighth more,
// so that it does not alternate with another one of about the same size.
func (w *weighed) weight() int {
	if w.absent {
		return w.bytes + w.bytes/8
	}
	return w.bytes
}

// returnBytes is how small the local endpoints within a limit must be for a Service to return
// although it would be the next to be left out.
func returnBytes(limit int) int { return limit / 8 * 7 }

// leftOutBefore orders the Services of a namespace. Those with policy Local come last: without local
// endpoints policy Local drops packets, while policy Cluster still works.
func leftOutBefore(a, b weighed) int {
	if a.Local != b.Local {
		if b.Local {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.weight(), a.weight()), cmp.Compare(b.Service.Name, a.Service.Name))
}

// share decides which Services' local endpoints are in the rules of a node. While those of a
// namespace exceed its limit, its largest Service without policy Local is left out, then its largest
// with it. While all together exceed the limit of the node, the largest Service of the largest
// namespace is left out: however a namespace splits its Services, it loses nothing as long as others
// take more. A Service returns once an eighth of the limit is free. The decision follows from the
// stored object and the sizes alone, so all controllers and the previews agree.
func share(all []weighed) (carried []weighed, leftOut []LeftOut) {
	out := settle(all)
	for _, s := range all {
		if limit, isOut := out[s.Service]; isOut {
			leftOut = append(leftOut, LeftOut{Service: s.Service, Bytes: s.bytes, Limit: limit})
			continue
		}
		carried = append(carried, s)
	}
	slices.SortFunc(leftOut, func(a, b LeftOut) int {
		return cmp.Or(cmp.Compare(a.Service.Namespace, b.Service.Namespace), cmp.Compare(a.Service.Name, b.Service.Name))
	})
	return carried, leftOut
}

// maxPasses limits how often a decision is repeated as if its result were stored.
const maxPasses = 20

// settle decides until the result is stable, so that one write is enough: a Service that returns
// counts for less than before, which may leave space for another.
func settle(all []weighed) map[types.NamespacedName]int {
	all = slices.Clone(all)
	out := crowdedOut(all)
	for range maxPasses {
		for i := range all {
			_, isOut := out[all[i].Service]
			all[i].absent = isOut && len(out) < len(all) // an empty object is like a new one
		}
		next := crowdedOut(all)
		if maps.Equal(out, next) {
			break
		}
		out = next
	}
	return out
}

// crowdedOut returns the Services that are left out, each with the exceeded limit.
func crowdedOut(all []weighed) map[types.NamespacedName]int {
	byNamespace := map[string]*claimant{}
	for _, s := range all {
		of := byNamespace[s.Service.Namespace]
		if of == nil {
			of = &claimant{namespace: s.Service.Namespace}
			byNamespace[s.Service.Namespace] = of
		}
		of.services = append(of.services, s)
		of.weight += s.weight()
		of.bytes += s.bytes
	}
	out := map[types.NamespacedName]int{}
	order := make(claimants, 0, len(byNamespace))
	total := 0
	for _, c := range byNamespace {
		slices.SortFunc(c.services, leftOutBefore)
		c.trim(out)
		total += c.weight
		order = append(order, c)
	}
	heap.Init(&order)
	for total > returnBytes(v1alpha1.MaxNodeLocalBytes) {
		most := order[0]
		s := &most.services[0]
		if total > v1alpha1.MaxNodeLocalBytes || s.absent {
			out[s.Service] = v1alpha1.MaxNodeLocalBytes
		}
		total -= s.weight()
		most.weight -= s.weight()
		most.services = most.services[1:]
		heap.Fix(&order, 0)
	}
	return out
}

// claimant is a namespace with its undecided Services, in the order in which they are left out.
type claimant struct {
	namespace string
	services  []weighed
	weight    int // of services
	bytes     int // of all its Services
}

// trim leaves out the largest Services until the rest is within the limit of a namespace. One that
// the limit of the node left out returns at once if its namespace is an eighth below its limit.
func (c *claimant) trim(out map[types.NamespacedName]int) {
	const limit = v1alpha1.MaxNamespaceLocalBytes
	if c.bytes <= returnBytes(limit) {
		return
	}
	rest := c.weight // of the Services that follow
	c.services = slices.DeleteFunc(c.services, func(s weighed) bool {
		if rest <= returnBytes(limit) {
			return false
		}
		leave := rest > limit || s.absent
		rest -= s.weight()
		if leave {
			out[s.Service] = limit
			c.weight -= s.weight()
		}
		return leave
	})
}

// claimants is a heap with the largest namespace first; of two equal ones the last by name.
type claimants []*claimant

// Len implements heap.Interface.
func (c claimants) Len() int { return len(c) }

// Less implements heap.Interface.
func (c claimants) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(c[j].weight, c[i].weight), cmp.Compare(c[j].namespace, c[i].namespace)) < 0
}

// Swap implements heap.Interface.
func (c claimants) Swap(i, j int) { c[i], c[j] = c[j], c[i] }

// Push implements heap.Interface.
func (c *claimants) Push(x any) { *c = append(*c, x.(*claimant)) }

// Pop implements heap.Interface.
func (c *claimants) Pop() any {
	last := (*c)[len(*c)-1]
	*c = (*c)[:len(*c)-1]
	return last
}

// endpointBytes are those of an endpoint as JSON, without address and port, and with the comma.
const endpointBytes = len(`":",`)

// localBytes is an upper bound of the size of the local endpoints of a Service on a node; 0: it has
// none there. It does not list them: an address that several slices name counts for each.
func localBytes(node string, s *ServiceSlices) int {
	var buffer [64]byte
	ports := sets.Set[portKey]{}
	total := 0
	for _, slice := range s.Slices {
		endpoints, addresses := 0, 0
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if (claim{endpoint: e}).node() != node {
				continue
			}
			addr, _, detail := usableAddr(e, slice.AddressType)
			if detail != "" {
				continue
			}
			endpoints++
			addresses += len(addr.AppendTo(buffer[:0]))
			if addr.Is6() {
				addresses += len("[]")
			}
		}
		if endpoints == 0 {
			continue
		}
		for _, p := range usablePorts(slice, ignoreProblem) {
			ports.Insert(p.key)
			total += endpoints*(endpointBytes+len(strconv.Itoa(int(p.number)))) + addresses
		}
	}
	if len(ports) == 0 {
		return 0
	}
	names := v1alpha1.ServiceLocalEndpoints{Namespace: s.Service.Namespace, Name: s.Service.Name}
	for key := range ports {
		names.Ports = append(names.Ports, v1alpha1.PortLocalEndpoints{Name: key.name})
	}
	return total + names.MaxBytes()
}
