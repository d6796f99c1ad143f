package nftables

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// key is what a packet is sent to.
type key struct {
	netip.AddrPort
	protocol v1alpha1.Protocol
}

// servicePlan is what one Service needs in the table. The endpoints of its destinations are in the
// order of their indexes.
type servicePlan struct {
	name         dataplane.ServiceName
	destinations []destination
	// clusterIP is invalid for none.
	clusterIP netip.Addr
	// hairpin are the addresses of endpoints of this node, which may be their own clients. Sorted.
	hairpin []netip.Addr
}

// destination is a destination of a Service with what becomes of packets to it.
type destination struct {
	key
	port string // its name
	// chain treats the packets; empty: they are dropped.
	chain chain
	// endpoints are those of all nodes, local those of this node. Nil where chain uses none.
	endpoints, local []netip.AddrPort
	// circuit is where packets from pods and the node itself go if the policy is Local; zero: nowhere.
	circuit chain
	// ranges are the only allowed sources, if chain is limited. Sorted, and none is inside another.
	ranges []netip.Prefix
	// affinity is for how many seconds a client keeps its endpoint; 0: it does not.
	affinity int32
}

// treatment is what a chain does with packets besides choosing an endpoint.
type treatment string

const (
	// pick chooses an endpoint, and nothing else.
	pick treatment = "pick"
	// cluster is for cluster IPs: it masquerades what does not come from pods.
	cluster treatment = "cluster"
	// external masquerades all packets.
	external treatment = "external"
	// externalLocal sends packets from pods and the node as short-circuit decides.
	externalLocal treatment = "external-local"
	// reject answers that there is no endpoint.
	reject treatment = "no-endpoints"
)

// chain identifies a chain that is shared by all destinations that need the same.
type chain struct {
	treatment treatment
	// limited: only some sources are allowed.
	limited bool
	// local: the endpoints are those of this node.
	local bool
	// affine: a client keeps its endpoint.
	affine bool
	count  int // of endpoints
}

// name is the chain's name in the table.
func (c chain) name() string {
	text := string(c.treatment)
	if c.treatment == reject {
		if c.limited {
			text = "limited-" + text
		}
		return text
	}
	if c.local && c.treatment != externalLocal {
		text += "-local"
	}
	if c.affine {
		text += "-affine"
	}
	if c.limited {
		text = "limited-" + text
	}
	return text + "-" + strconv.Itoa(c.count)
}

// next are the chains to which the chain leads besides itself.
func (c chain) next() []chain {
	switch {
	case c.limited:
		c.limited = false
		return []chain{c}
	case c.treatment == pick && c.affine && c.count > 0:
		c.affine = false
		return []chain{c}
	case c.treatment != pick && c.treatment != reject && c.count > 0:
		return []chain{{treatment: pick, local: c.local, affine: c.affine, count: c.count}}
	default:
		return nil
	}
}

// same reports whether two destinations need the same of the table.
func (d *destination) same(o *destination) bool {
	return d.key == o.key && d.port == o.port && d.chain == o.chain && d.circuit == o.circuit && d.affinity == o.affinity &&
		slices.Equal(d.endpoints, o.endpoints) && slices.Equal(d.local, o.local) && slices.Equal(d.ranges, o.ranges)
}

// addNumbered adds the numbered sets that a destination needs.
func (d *destination) addNumbered(to numberedSets) {
	if d.affinity != 0 {
		to[numberedSet{affinePrefix, d.affinity}] = struct{}{}
	}
	for _, r := range d.ranges {
		to[numberedSet{rangesPrefix, int32(r.Bits())}] = struct{}{} //nolint:gosec // up to 128
	}
}

// planService plans all destinations of a Service.
func (c *config) planService(s *dataplane.Service) servicePlan {
	p := servicePlan{name: s.Name, clusterIP: s.ClusterIP}
	ranges := merged(s.SourceRanges)
	var before dataplane.Once[key]
	count := 0
	for d := range s.Destinations() {
		count += len(c.addresses(&d))
	}
	p.destinations = make([]destination, 0, count)
	for d := range s.Destinations() {
		for _, a := range c.addresses(&d) {
			k := key{netip.AddrPortFrom(a, d.Number), d.Port.Protocol}
			if before.First(k) {
				p.destinations = append(p.destinations, c.planDestination(s, &d, k, ranges))
			}
		}
	}
	for i := range s.Ports {
		for _, m := range s.Ports[i].LocalEndpoints {
			p.hairpin = append(p.hairpin, m.Addr())
		}
	}
	slices.SortFunc(p.hairpin, netip.Addr.Compare)
	p.hairpin = slices.Compact(p.hairpin)
	return p
}

// addresses are those of a destination.
func (c *config) addresses(d *dataplane.Destination) []netip.Addr {
	if d.Kind == dataplane.NodePort {
		return c.nodePortIPs
	}
	return []netip.Addr{d.Address}
}

// planDestination plans a destination of a Service with some source ranges.
func (c *config) planDestination(s *dataplane.Service, d *dataplane.Destination, k key, ranges []netip.Prefix) destination {
	port := d.Port
	out := destination{key: k, port: port.Name}
	// As in kube-proxy's mode nftables, an external IP that is a load balancer's as well is restricted.
	limited := len(ranges) > 0 && (d.Kind == dataplane.LoadBalancerIP || d.Kind == dataplane.ExternalIP && slices.Contains(s.LoadBalancerIPs, d.Address))
	if limited {
		out.ranges = c.sources(ranges, d.Address)
	}
	if !port.Available {
		out.chain = chain{treatment: reject, limited: limited}
		return out
	}
	out.affinity = affinityStep(s.AffinitySeconds)
	out.chain = chain{treatment: external, limited: limited, affine: out.affinity > 0, local: d.Local}
	if d.Local {
		out.local = port.Local
	} else {
		out.endpoints = port.Cluster
	}
	switch {
	case d.Kind == dataplane.ClusterIP:
		out.chain.treatment = cluster
	case d.Local:
		out.chain.treatment = externalLocal
		if out.endpoints = port.Cluster; len(port.Cluster) > 0 {
			out.circuit = chain{treatment: pick, affine: out.chain.affine, count: len(port.Cluster)}
		}
	}
	if out.chain.count = len(out.local); !d.Local {
		out.chain.count = len(out.endpoints)
	}
	if out.chain.count == 0 && out.circuit == (chain{}) {
		out.chain, out.ranges, out.affinity = chain{}, nil, 0
	}
	return out
}

// affinitySteps are the timeouts of session affinity, in seconds. Each has a set of its own, and rules
// that every new connection passes, so there are few of them.
var affinitySteps = [...]int32{1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400}

// affinityStep is the step for a timeout: the next one that is no shorter. 0: no session affinity.
func affinityStep(seconds int32) int32 {
	if seconds <= 0 {
		return 0
	}
	i, _ := slices.BinarySearch(affinitySteps[:], seconds)
	return affinitySteps[min(i, len(affinitySteps)-1)]
}

// sources are the ranges that may use a load-balancer address, given those of its Service. The node's
// own processes have that address as their source.
func (c *config) sources(ranges []netip.Prefix, address netip.Addr) []netip.Prefix {
	allow := func(a netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	}
	if !allow(c.nodeIP) || allow(address) {
		return ranges
	}
	own := netip.PrefixFrom(address, address.BitLen())
	at, _ := slices.BinarySearchFunc(ranges, own, netip.Prefix.Compare)
	return slices.Insert(slices.Clone(ranges), at, own)
}

// merged are ranges without those inside others, sorted.
func merged(ranges []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, r := range slices.SortedFunc(slices.Values(ranges), netip.Prefix.Compare) {
		if n := len(out); n > 0 && out[n-1].Overlaps(r) { // the wider one comes first
			continue
		}
		out = append(out, r.Masked())
	}
	return out
}

// arrange orders endpoints by the indexes that they have: one stays where it is if its index is
// still among them, others fill the gaps, so that few elements change.
func arrange(former, now []netip.AddrPort) []netip.AddrPort {
	if slices.Equal(former, now) {
		return now
	}
	out := make([]netip.AddrPort, len(now))
	left := make(map[netip.AddrPort]struct{}, len(now))
	for _, e := range now {
		left[e] = struct{}{}
	}
	for i, e := range former[:min(len(former), len(now))] {
		if _, found := left[e]; found {
			out[i] = e
			delete(left, e)
		}
	}
	at := 0
	for _, e := range now { // in their order, so that the result does not depend on chance
		if _, found := left[e]; !found {
			continue
		}
		delete(left, e)
		for out[at].IsValid() {
			at++
		}
		out[at] = e
	}
	return out
}
