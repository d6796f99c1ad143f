package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// facts are what the rules depend on that only the node itself knows.
type facts struct {
	// addresses are those of the node's interfaces, of any family.
	addresses []netip.Addr
	// liberal: nf_conntrack_tcp_be_liberal is on, so that no packet is invalid for being outside
	// the window.
	liberal bool
}

// config is what the rules depend on besides Services. Two that are deeply equal plan alike.
type config struct {
	family        dataplane.Family
	pods          dataplane.PodTraffic
	masqueradeAll bool
	mark          uint32
	nodeIP        netip.Addr // the primary address; invalid if unknown
	nodePorts     dataplane.NodePorts
	// nodePortIPs are the addresses of the node on which NodePorts answer, sorted.
	nodePortIPs []netip.Addr
	dropInvalid bool
	probe       bool // the table is for Supported
}

// newConfig derives what the rules depend on from a node's settings and facts. The error names the
// field that cannot be parsed.
func newConfig(family dataplane.Family, n *dataplane.Node, f facts) (*config, error) {
	s := n.Settings
	c := &config{
		family:        family,
		masqueradeAll: *s.Masquerade.All == v1alpha1.Enabled,
		mark:          1 << uint(*s.Masquerade.Bit), //nolint:gosec // validated
		dropInvalid:   !f.liberal,
	}
	if len(n.Addresses) > 0 {
		c.nodeIP = n.Addresses[0]
	}
	var err error
	if c.pods, err = dataplane.PodTrafficOf(family, n); err != nil {
		return nil, err
	}
	if c.nodePorts, err = dataplane.NodePortsOf(family, n); err != nil {
		return nil, err
	}
	c.nodePortIPs = c.nodePortAddresses(f.addresses)
	return c, nil
}

// nodePortAddresses are those of the interfaces' addresses on which NodePorts answer, sorted; never
// loopback ones.
func (c *config) nodePortAddresses(interfaces []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range interfaces {
		if c.nodePorts.InRange(a) && !a.IsLoopback() {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// header is where addresses are in the network header.
func (c *config) header() header {
	if c.family == dataplane.IPv4 {
		return header{12, 16, 4, nft.IPv4Address}
	}
	return header{8, 24, 16, nft.IPv6Address}
}

type header struct {
	source, destination, length uint32
	address                     nft.Type
}

// registers is how many registers an address takes.
func (h header) registers() nft.Register { return nft.Register(h.length / 4) }

// appendPadded appends bytes, and zeros to the end of a register.
func appendPadded(b []byte, value ...byte) []byte {
	b = append(b, value...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendPort(b []byte, port uint16) []byte {
	return appendPadded(b, binary.BigEndian.AppendUint16(nil, port)...)
}
