package render

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Cluster is what the cluster has at the addresses that Services name as external or load-balancer
// IPs. The zero value knows nothing.
type Cluster struct {
	// APIServers are the addresses of the API servers, with their ports.
	APIServers map[netip.Addr][]uint16
	// Ranges are those from which Services get cluster IPs.
	Ranges ServiceRanges
	// OfNode reports whether an address is one of a Node. Nil: none is.
	OfNode func(netip.Addr) bool
	// Skipped were skipped by an earlier rendering that knew more of the cluster.
	Skipped []v1alpha1.SkippedAddress
}

// StoredCluster is what rules show of the cluster, for callers without access to it.
func StoredCluster(rules *v1alpha1.ServiceProxyRulesSpec) Cluster {
	return Cluster{
		Skipped: rules.SkippedAddresses,
		OfNode:  func(a netip.Addr) bool { return slices.Contains(rules.NodeAddresses, a.String()) },
	}
}

// APIServerSlice is the EndpointSlice of default/kubernetes that API servers maintain. Others may
// write more slices of that Service with any addresses: those do not count.
const APIServerSlice = "kubernetes"

// maxAPIServerPorts is more than API servers have: a slice with more is ignored.
const maxAPIServerPorts = 100

// APIServers returns the addresses and ports of API servers: those of the EndpointSlice of
// default/kubernetes that they maintain, ready or not, those in spec.apiServer of NodeProxy, if
// there is one, and those of URLs. Host names are not resolved: their addresses may change at any
// time, and all nodes must get the same rules.
func APIServers(ofKubernetes []*discoveryv1.EndpointSlice, np *v1alpha1.NodeProxy, urls ...string) map[netip.Addr][]uint16 {
	out := map[netip.Addr][]uint16{}
	add := func(text string, port uint16) {
		if a, ok := parseAddr(text); ok && !slices.Contains(out[a], port) {
			out[a] = append(out[a], port)
		}
	}
	for _, slice := range ofKubernetes {
		if slice.Name != APIServerSlice || len(slice.Ports) > maxAPIServerPorts {
			continue
		}
		for i := range slice.Endpoints {
			for _, port := range slice.Ports {
				if addresses := slice.Endpoints[i].Addresses; port.Port != nil && len(addresses) > 0 {
					add(addresses[0], uint16(*port.Port)) //nolint:gosec // the API takes no others
				}
			}
		}
	}
	if np != nil && np.Spec.APIServer != nil {
		urls = slices.Concat(urls, np.Spec.APIServer.Endpoints)
	}
	for _, text := range urls {
		parsed, err := url.Parse(text)
		if err != nil {
			continue
		}
		port, err := strconv.ParseUint(parsed.Port(), 10, 16)
		if err != nil {
			port = 443 // https has it where none is named
		}
		add(parsed.Hostname(), uint16(port))
	}
	return out
}

// ServiceRanges are the ranges of cluster IPs. A lookup takes the same time however many there are.
type ServiceRanges struct {
	ranges sets.Set[netip.Prefix]
	bits   []int // without duplicates, ascending
}

// NewServiceRanges parses CIDRs. It ignores invalid ones, which the API does not accept.
func NewServiceRanges(cidrs []string) ServiceRanges {
	out := ServiceRanges{ranges: sets.Set[netip.Prefix]{}}
	for _, prefix := range parsed(cidrs, parsePrefix) {
		out.ranges.Insert(prefix)
		out.bits = append(out.bits, prefix.Bits())
	}
	slices.Sort(out.bits)
	out.bits = slices.Compact(out.bits)
	return out
}

// Of returns the widest range that an address is in.
func (r ServiceRanges) Of(a netip.Addr) (netip.Prefix, bool) {
	for _, bits := range r.bits {
		// Prefix fails for more bits than IPv4 addresses have.
		if prefix, err := a.Prefix(bits); err == nil && r.ranges.Has(prefix) {
			return prefix, true
		}
	}
	return netip.Prefix{}, false
}

// special returns the reason why no Service may have an address, in any cluster.
func special(a netip.Addr) string {
	switch {
	case a.IsUnspecified():
		return "is the unspecified address"
	case a.IsLoopback():
		return "is a loopback address"
	case a.IsMulticast():
		return "is a multicast address"
	case a.IsLinkLocalUnicast():
		return "is a link-local address"
	}
	return ""
}

// reserved returns the reason why a Service must not have an address, if any.
func (c *Cluster) reserved(a netip.Addr) string {
	text := a.String()
	if i := slices.IndexFunc(c.Skipped, func(s v1alpha1.SkippedAddress) bool { return s.Address == text }); i >= 0 {
		return c.Skipped[i].Reason
	}
	if why := special(a); why != "" {
		return why
	}
	if _, found := c.APIServers[a]; found {
		return "is the address of an API server"
	}
	if prefix, found := c.Ranges.Of(a); found {
		return fmt.Sprintf("is inside the service range %s", prefix)
	}
	return ""
}

// besideAPIServer reports whether a Service may have the address of an API server: that of a Node, on
// other ports. Load balancers on the nodes assign the addresses of all nodes, and administrators name
// them as external IPs.
func (c *Cluster) besideAPIServer(a netip.Addr, ports []corev1.ServicePort) bool {
	own, found := c.APIServers[a]
	return found && special(a) == "" && c.ofNode(a) && !slices.ContainsFunc(ports, func(p corev1.ServicePort) bool {
		return protocolOf(p) == v1alpha1.ProtocolTCP && slices.ContainsFunc(own, func(n uint16) bool { return int32(n) == p.Port })
	})
}

func (c *Cluster) ofNode(a netip.Addr) bool { return c.OfNode != nil && c.OfNode(a) }

// settleAddresses removes from rules the external and load-balancer IPs that no Service may have,
// and records which of the rest are addresses of Nodes. The Service's own cluster IPs stay: there
// they change nothing.
func (c *Cluster) settleAddresses(rules *v1alpha1.ServiceProxyRulesSpec, ports []corev1.ServicePort) {
	skipped := map[string]bool{}
	permitted := func(list []string) []string {
		var out []string
		for _, text := range list {
			a := netip.MustParseAddr(text) // canonical, as families.addresses writes them
			switch why := c.reserved(a); {
			case why == "" || slices.Contains(rules.ClusterIPs, text) || c.besideAPIServer(a, ports):
				out = append(out, text)
				if c.ofNode(a) {
					rules.NodeAddresses = append(rules.NodeAddresses, text)
				}
			case !skipped[text]:
				skipped[text] = true
				rules.SkippedAddresses = append(rules.SkippedAddresses, v1alpha1.SkippedAddress{Address: text, Reason: why})
			}
		}
		return out
	}
	rules.ExternalIPs = permitted(rules.ExternalIPs)
	rules.LoadBalancerIPs = permitted(rules.LoadBalancerIPs)
	rules.NodeAddresses = eachOnce(rules.NodeAddresses)
}
