package ipvs

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Chains of the mode, in the tables nat and filter. As those of the ipsets, the
// names are kube-proxy's, so that a node is taken over in place and tools that
// know them keep working.
const (
	chainServices      = "KUBE-SERVICES"
	chainPostrouting   = "KUBE-POSTROUTING"
	chainNodePort      = "KUBE-NODE-PORT" // in both tables
	chainLoadBalancer  = "KUBE-LOAD-BALANCER"
	chainMarkMasq      = "KUBE-MARK-MASQ"
	chainForward       = "KUBE-FORWARD"
	chainProxyFirewall = "KUBE-PROXY-FIREWALL"
	chainSourceRanges  = "KUBE-SOURCE-RANGES-FIREWALL"
	chainIPVSFilter    = "KUBE-IPVS-FILTER"
	chainIPVSOutFilter = "KUBE-IPVS-OUT-FILTER"
	tableNAT           = "nat"
	tableFilter        = "filter"
	maxSetName         = 31 // bytes; the kernel's limit
	prefixSet          = "KUBE-"
	prefixSetIPv6      = "KUBE-6-"
	prefixOwnSet       = "NODEPROXY-"
	prefixOwnSetIPv6   = "NODEPROXY-6-"
	schedulerMaglev    = "mh"
)

// deviceName is the device that the addresses of Services are bound to, which
// makes the kernel take their packets for its own.
const deviceName = "kube-ipvs0"

// setName is the name of an ipset in a family, from its name for IPv4.
func setName(family dataplane.Family, name string) SetName {
	if family == dataplane.IPv4 {
		return SetName(name)
	}
	if rest, own := strings.CutPrefix(name, prefixOwnSet); own {
		name = prefixOwnSetIPv6 + rest
	} else {
		name = prefixSetIPv6 + strings.TrimPrefix(name, prefixSet)
	}
	return SetName(name[:min(len(name), maxSetName)])
}

// protocolName is a protocol as iptables and ipset write it.
func protocolName(p v1alpha1.Protocol) string {
	switch p {
	case v1alpha1.ProtocolUDP:
		return "udp"
	case v1alpha1.ProtocolSCTP:
		return "sctp"
	default:
		return "tcp"
	}
}

// addressEntry is an entry of an ipset of type hash:ip.
func addressEntry(a netip.Addr) Entry { return Entry(a.String()) }

// portEntry is an entry of an ipset of type bitmap:port.
func portEntry(port uint16) Entry { return Entry(strconv.Itoa(int(port))) }

// keyEntry is an entry of an ipset of type hash:ip,port.
func keyEntry(k Key) Entry {
	return Entry(k.Addr.String() + "," + protocolName(k.Protocol) + ":" + strconv.Itoa(int(k.Port)))
}

// keyAndAddress is an entry of an ipset of type hash:ip,port,ip.
func keyAndAddress(k Key, a netip.Addr) Entry { return keyEntry(k) + "," + Entry(a.String()) }

// keyAndRange are the entries of an ipset of type hash:ip,port,net for a range:
// one, but two halves for the range of all addresses, which such a set cannot
// hold.
func keyAndRange(k Key, r netip.Prefix) []Entry {
	entry := keyEntry(k) + ","
	switch {
	case r.Bits() == r.Addr().BitLen():
		return []Entry{entry + Entry(r.Addr().String())}
	case r.Bits() > 0:
		return []Entry{entry + Entry(r.Masked().String())}
	case r.Addr().Is4():
		return []Entry{entry + "0.0.0.0/1", entry + "128.0.0.0/1"}
	default:
		return []Entry{entry + "::/1", entry + "8000::/1"}
	}
}
