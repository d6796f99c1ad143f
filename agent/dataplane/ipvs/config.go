package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// config is what the plan depends on besides Services. Deeply equal configs give the same
// plan.
type config struct {
	family        dataplane.Family
	podMatch      string // matches traffic of local pods in an iptables rule; "" matches none
	masqueradeAll bool
	mark          string       // such as 0x4000
	nodeIP        netip.Addr   // primary address; invalid if unknown
	ownIPs        []netip.Addr // of the Node object
	// addresses are those of interfaces other than kube-ipvs0, to which they must not be
	// bound too. Sorted.
	addresses []netip.Addr
	// nodePorts are the settings of NodePorts, nodePortIPs the addresses on which they answer. Sorted.
	nodePorts   dataplane.NodePorts
	nodePortIPs []netip.Addr
	scheduler   string
	missing     []string // schedulers that the kernel lacks; sorted

	// The rest is about the node as a whole.

	strictARP bool
	timeouts  Timeouts
	exclude   []netip.Prefix // of the family
}

// newConfig derives a config from a node's settings, the addresses of its interfaces other than
// kube-ipvs0, of any family and in any order, and the schedulers that the kernel lacks, sorted.
// The error names the invalid field.
func newConfig(family dataplane.Family, n *dataplane.Node, addresses []netip.Addr, missing []string) (*config, error) {
	s := n.Settings
	c := &config{
		family:        family,
		masqueradeAll: *s.Masquerade.All == v1alpha1.Enabled,
		mark:          "0x" + strconv.FormatUint(1<<uint(*s.Masquerade.Bit), 16),
		scheduler:     *s.IPVS.Scheduler,
		missing:       missing,
		strictARP:     *s.IPVS.StrictARP == v1alpha1.Enabled,
		timeouts: Timeouts{
			TCP: uint32(*s.IPVS.TCPTimeoutSeconds), TCPFin: uint32(*s.IPVS.TCPFinTimeoutSeconds), UDP: uint32(*s.IPVS.UDPTimeoutSeconds),
		},
	}
	if len(n.Addresses) > 0 {
		c.nodeIP, c.ownIPs = n.Addresses[0], slices.Clone(n.Addresses)
	}
	var err error
	if c.exclude, err = excludedBy(family, s.IPVS.ExcludeCIDRs); err != nil {
		return nil, err
	}
	if c.podMatch, err = fixedrules.PodMatch(family, n); err != nil {
		return nil, err
	}
	if c.nodePorts, err = dataplane.NodePortsOf(family, n); err != nil {
		return nil, err
	}
	c.setAddresses(addresses)
	return c, nil
}

// excludedBy parses the ranges of a family in excludeCIDRs.
func excludedBy(family dataplane.Family, cidrs []string) ([]netip.Prefix, error) {
	all, err := dataplane.ParsePreserved(cidrs)
	return ofFamily(family, all), err
}

func ofFamily(family dataplane.Family, ranges []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(ranges), func(p netip.Prefix) bool { return !family.Of(p.Addr()) })
}

// setAddresses sets addresses and nodePortIPs, given the addresses of the node's interfaces.
// As in kube-proxy, a link-local one of IPv6 counts only if a range includes it, and
// NodePorts never answer on loopback ones: the kernel does not route from there to a pod.
func (c *config) setAddresses(all []netip.Addr) {
	for _, a := range all {
		if !c.family.Of(a) || a.IsLoopback() {
			continue
		}
		linkLocal := a.Is6() && a.IsLinkLocalUnicast()
		if !linkLocal {
			c.addresses = append(c.addresses, a)
		}
		if c.nodePorts.InRange(a) && (!linkLocal || len(c.nodePorts.Ranges) > 0) {
			c.nodePortIPs = append(c.nodePortIPs, a)
		}
	}
	c.addresses = sortedAddrs(c.addresses)
	c.nodePortIPs = sortedAddrs(c.nodePortIPs)
}

func sortedAddrs(list []netip.Addr) []netip.Addr {
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// excluded reports whether virtual servers on a are unmanaged.
func (c *config) excluded(a netip.Addr) bool {
	return slices.ContainsFunc(c.exclude, func(p netip.Prefix) bool { return p.Contains(a) })
}

// onNode reports whether an interface other than kube-ipvs0 has the address.
func (c *config) onNode(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(c.addresses, a, netip.Addr.Compare)
	return found
}

// ofOthers returns those of a Service's addresses that belong to other Nodes. Bound to
// kube-ipvs0, they would be local here, and the other Nodes unreachable.
func (c *config) ofOthers(s *dataplane.Service) sets.Set[netip.Addr] {
	out := s.OfOthers(c.ownIPs)
	maps.DeleteFunc(out, func(a netip.Addr, _ sets.Empty) bool { return c.onNode(a) })
	return out
}
