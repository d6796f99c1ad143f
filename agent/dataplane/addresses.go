package dataplane

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// HasFamily returns an error that wraps ErrUnsupported if the node lacks IPv6 or has disabled
// it. It always has IPv4. Proc and sysctl are the directories of the proc file system and of
// sysctls.
func HasFamily(family Family, proc, sysctl string) error {
	if family != IPv6 {
		return nil
	}
	// /proc/net would be that of the process's first thread.
	if _, err := os.Stat(filepath.Join(proc, "thread-self/net/if_inet6")); err != nil {
		return fmt.Errorf("%w: the node has no IPv6; start its kernel with the module ipv6 and without ipv6.disable=1: %w", ErrUnsupported, err)
	}
	const name = "net/ipv6/conf/all/disable_ipv6"
	if value, err := Sysctls(sysctl).Read(name); err == nil && value == "1" {
		return fmt.Errorf("%w: IPv6 is disabled on the node; set the sysctl %s to 0", ErrUnsupported, strings.ReplaceAll(name, "/", "."))
	}
	return nil
}

// InterfaceAddresses reads the addresses of the node's interfaces, of both families, in the
// network namespace of the calling thread.
func InterfaceAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the node's interfaces: %w", err)
	}
	return addressesOf(list), nil
}

// NodeAddresses returns the same without the addresses of Services that one of the modes has bound
// to its link.
func NodeAddresses(modes []Declaration) ([]netip.Addr, error) {
	out, err := InterfaceAddresses()
	if err != nil {
		return nil, err
	}
	return withoutBound(out, modes, net.Interfaces)
}

// withoutBound removes the addresses of Services. Unless it is known which links there are, it returns an
// error: NodePorts would answer on these addresses.
func withoutBound(addresses []netip.Addr, modes []Declaration, links func() ([]net.Interface, error)) ([]netip.Addr, error) {
	var names []string
	for i := range modes {
		if modes[i].BindsAddresses {
			names = append(names, modes[i].Owns.Links...)
		}
	}
	if len(names) == 0 {
		return addresses, nil
	}
	all, err := links()
	if err != nil {
		return nil, fmt.Errorf("list the node's interfaces: %w", err)
	}
	bound := map[netip.Addr]int{} // another interface may have the same address
	for i := range all {
		if !slices.Contains(names, all[i].Name) {
			continue
		}
		list, err := all[i].Addrs()
		if err != nil {
			return nil, fmt.Errorf("read the addresses of the device %s: %w", all[i].Name, err)
		}
		for _, a := range addressesOf(list) {
			bound[a]++
		}
	}
	return slices.DeleteFunc(addresses, func(a netip.Addr) bool {
		bound[a]--
		return bound[a] >= 0
	}), nil
}

func addressesOf(list []net.Addr) (out []netip.Addr) {
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out
}

// PodTraffic is how traffic of this node's pods is recognized. The zero value recognizes none.
type PodTraffic struct {
	// Source is the range of its sources.
	Source netip.Prefix
	// Interface is where it arrives; with Prefix: what the interface's name begins with.
	Interface string
	Prefix    bool
}

// Known reports whether traffic of pods can be recognized.
func (p PodTraffic) Known() bool { return p.Source.IsValid() || p.Interface != "" }

// PodTrafficOf derives from a node's settings how traffic of its pods is recognized in a family. The
// error names the invalid field.
func PodTrafficOf(family Family, n *Node) (PodTraffic, error) {
	d := n.Settings.DetectLocal
	switch d.Mode {
	case v1alpha1.DetectLocalClusterCIDR:
		for i, cidr := range d.ClusterCIDRs {
			p, err := netip.ParsePrefix(cidr)
			if err != nil {
				return PodTraffic{}, fmt.Errorf("spec.settings.detectLocal.clusterCIDRs[%d]: %w", i, err)
			}
			if family.Of(p.Addr()) {
				return PodTraffic{Source: p.Masked()}, nil
			}
		}
	case v1alpha1.DetectLocalNodeCIDR:
		if len(n.PodCIDRs) > 0 {
			return PodTraffic{Source: n.PodCIDRs[0].Masked()}, nil
		}
	case v1alpha1.DetectLocalBridgeInterface:
		if d.Interface != nil {
			return PodTraffic{Interface: *d.Interface}, nil
		}
	case v1alpha1.DetectLocalInterfaceNamePrefix:
		if d.InterfaceNamePrefix != nil {
			return PodTraffic{Interface: *d.InterfaceNamePrefix, Prefix: true}, nil
		}
	}
	return PodTraffic{}, nil
}

// NodePorts determines on which of a node's addresses NodePorts answer.
type NodePorts struct {
	family Family
	// Ranges limit the addresses. None: no limit.
	Ranges []netip.Prefix
	// Localhost: they answer on loopback addresses too.
	Localhost bool
}

// NodePortsOf derives from a node's settings where NodePorts answer in a family. As in
// kube-proxy, that is on all addresses if the settings name no range of the family, or one of
// all addresses, or if the primary address is unknown. The error names the invalid field.
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

// InRange reports whether the settings include a, loopback or not.
func (p NodePorts) InRange(a netip.Addr) bool {
	return p.family.Of(a) &&
		(len(p.Ranges) == 0 || slices.ContainsFunc(p.Ranges, func(r netip.Prefix) bool { return r.Contains(a) }))
}
