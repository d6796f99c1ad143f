package ipvs

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// facts are what the plan depends on that only the node itself knows.
type facts struct {
	// addresses are those of the node's interfaces besides kube-ipvs0, of any
	// family, in any order.
	addresses []netip.Addr
	// missing are schedulers that the kernel is known to lack.
	missing []string
}

// config is what the plan depends on besides Services. Two that are deeply equal
// plan alike.
type config struct {
	family        dataplane.Family
	podMatch      string // matches traffic of local pods in an iptables rule; "" matches none
	masqueradeAll bool
	mark          string       // such as 0x4000
	nodeIP        netip.Addr   // primary address; invalid if unknown
	ownIPs        []netip.Addr // that the Node has, on an interface or not
	// addresses are those of the node besides kube-ipvs0's: not bound there a
	// second time. Sorted.
	addresses []netip.Addr
	// nodePortIPs are those that NodePorts answer on. Sorted.
	nodePortIPs []netip.Addr
	scheduler   string
	missing     []string // schedulers that the kernel is known to lack; sorted

	// What follows is of the node as a whole.

	strictARP bool
	timeouts  Timeouts
	exclude   []netip.Prefix // of the family
}

// newConfig derives from a node's settings and facts what its plan depends on.
// The error names the field that cannot be read.
func newConfig(family dataplane.Family, n *dataplane.Node, f facts) (*config, error) {
	s := n.Settings
	c := &config{
		family:        family,
		masqueradeAll: *s.Masquerade.All == v1alpha1.Enabled,
		mark:          "0x" + strconv.FormatUint(1<<uint(*s.Masquerade.Bit), 16),
		scheduler:     *s.IPVS.Scheduler,
		missing:       slices.Compact(slices.Sorted(slices.Values(f.missing))),
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
	if c.podMatch, err = iptables.PodMatch(family, n); err != nil {
		return nil, err
	}
	nodePorts, err := dataplane.NodePortsOf(family, n)
	if err != nil {
		return nil, err
	}
	c.setAddresses(nodePorts, f.addresses)
	return c, nil
}

// excludedBy reads the ranges of a family among excludeCIDRs.
func excludedBy(family dataplane.Family, cidrs []string) ([]netip.Prefix, error) {
	all, err := dataplane.ExcludedRanges(cidrs)
	return ofFamily(family, all), err
}

func ofFamily(family dataplane.Family, ranges []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ranges {
		if family.Of(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

// setAddresses sorts out the addresses of the node's interfaces. As by
// kube-proxy, a link-local one of IPv6 counts only where a range names it, and
// NodePorts never answer on loopback ones: the kernel routes nothing from there
// to a pod.
func (c *config) setAddresses(nodePorts dataplane.NodePorts, all []netip.Addr) {
	for _, a := range all {
		if !c.family.Of(a) || a.IsLoopback() {
			continue
		}
		linkLocal := a.Is6() && a.IsLinkLocalUnicast()
		if !linkLocal {
			c.addresses = append(c.addresses, a)
		}
		if nodePorts.InRange(a) && (!linkLocal || len(nodePorts.Ranges) > 0) {
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

// excluded reports whether virtual servers on a are none of our business.
func (c *config) excluded(a netip.Addr) bool {
	return slices.ContainsFunc(c.exclude, func(p netip.Prefix) bool { return p.Contains(a) })
}

// onNode reports whether a is an address of the node besides those of kube-ipvs0.
func (c *config) onNode(a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(c.addresses, a, netip.Addr.Compare)
	return found
}

// ofOthers are those of a Service's addresses that are other Nodes'. Bound to
// kube-ipvs0, they would be this node's own, and the other Nodes out of reach.
func (c *config) ofOthers(s *dataplane.Service) map[netip.Addr]struct{} {
	out := s.OfOthers(c.ownIPs)
	maps.DeleteFunc(out, func(a netip.Addr, _ struct{}) bool { return c.onNode(a) })
	return out
}
