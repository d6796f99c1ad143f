package dataplane

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NodePorts says on which of a node's addresses NodePorts answer, by its
// settings.
type NodePorts struct {
	family Family
	// Ranges are those that an address must be in. None: any address will do.
	Ranges []netip.Prefix
	// Localhost: they answer on loopback addresses too.
	Localhost bool
}

// NodePortsOf derives from a node's settings where NodePorts answer in a
// family. As kube-proxy, it takes all addresses where the settings name no range
// of the family, or one of all addresses, and where the primary address is not
// known. The error names the field that cannot be read.
func NodePortsOf(family Family, n *Node) (NodePorts, error) {
	s := n.Settings.NodePorts
	out := NodePorts{family: family}
	switch *s.AddressMode {
	case v1alpha1.NodePortsPrimary:
		if len(n.Addresses) > 0 {
			out.Ranges = append(out.Ranges, netip.PrefixFrom(n.Addresses[0], n.Addresses[0].BitLen()))
		}
	case v1alpha1.NodePortsCIDRs:
		for i, cidr := range s.CIDRs {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				return out, fmt.Errorf("spec.settings.nodePorts.cidrs[%d]: %w", i, err)
			}
			if family.Of(p.Addr()) {
				out.Ranges = append(out.Ranges, p.Masked())
			}
		}
	}
	if slices.ContainsFunc(out.Ranges, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		out.Ranges = nil
	}
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	out.Localhost = family == IPv4 && *s.Localhost == v1alpha1.Enabled &&
		(len(out.Ranges) == 0 || slices.ContainsFunc(out.Ranges, loopback.Overlaps))
	return out, nil
}

// AnswerOn reports whether NodePorts answer on a, an address of the node.
func (p NodePorts) AnswerOn(a netip.Addr) bool {
	return (p.Localhost || !a.IsLoopback()) && p.InRange(a)
}

// InRange reports whether the settings name a, loopback or not.
func (p NodePorts) InRange(a netip.Addr) bool {
	return p.family.Of(a) &&
		(len(p.Ranges) == 0 || slices.ContainsFunc(p.Ranges, func(r netip.Prefix) bool { return r.Contains(a) }))
}
