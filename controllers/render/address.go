package render

import (
	"net/netip"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"
)

// parseAddr reads an IP address and tolerates leading zeros, which old objects
// may still carry. An IPv4 address written as IPv6 counts as IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	// The strict parser takes nearly every address and allocates nothing.
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Unmap(), addr.Zone() == ""
	}
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return addr.Unmap(), ok
}

// parsePrefix reads a CIDR, tolerates leading zeros and masks the host bits.
func parsePrefix(s string) (netip.Prefix, bool) {
	if prefix, err := netip.ParsePrefix(s); err == nil && !prefix.Addr().Is4In6() {
		return prefix.Masked(), true
	}
	_, ipnet, err := netutils.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr, ok := netip.AddrFromSlice(ipnet.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	ones, _ := ipnet.Mask.Size()
	prefix := netip.PrefixFrom(addr, ones)
	return prefix.Masked(), prefix.IsValid()
}

// family is an IP family, or neither.
type family uint8

const (
	familyNone family = iota
	familyIPv4
	familyIPv6
)

func familyOf(addr netip.Addr) family {
	switch {
	case addr.Is4():
		return familyIPv4
	case addr.Is6():
		return familyIPv6
	}
	return familyNone
}

// families is a set of IP families.
type families map[family]bool

// addresses returns those of in that parse and belong to one of the families,
// canonical, in the order of in, each once. It returns nil for none.
func (f families) addresses(in []string) []string {
	var out []string
	for _, s := range in {
		if addr, ok := parseAddr(strings.TrimSpace(s)); ok && f[familyOf(addr)] {
			out = append(out, addr.String())
		}
	}
	return eachOnce(out)
}

// eachOnce takes out what is there twice. The order stays: rules for clients
// stand in the order of the Service, as kube-proxy writes them.
func eachOnce(list []string) []string {
	if len(list) < 2 {
		return list
	}
	seen := make(map[string]struct{}, len(list))
	return slices.DeleteFunc(list, func(s string) bool {
		_, twice := seen[s]
		seen[s] = struct{}{}
		return twice
	})
}

// sourceRanges returns the canonical client ranges in the order of in, each
// once. What does not parse is left out. A family with a range of prefix length
// 0 is not restricted at all, so all ranges of that family are left out: an
// agent takes "no range of my family" as "no restriction", and the other
// family keeps its own ranges.
func sourceRanges(in []string) []string {
	var prefixes []netip.Prefix
	unrestricted := families{}
	for _, s := range in {
		prefix, ok := parsePrefix(strings.TrimSpace(s))
		if !ok {
			continue
		}
		if prefix.Bits() == 0 {
			unrestricted[familyOf(prefix.Addr())] = true
		}
		prefixes = append(prefixes, prefix)
	}
	var out []string
	for _, prefix := range prefixes {
		if !unrestricted[familyOf(prefix.Addr())] {
			out = append(out, prefix.String())
		}
	}
	return eachOnce(out)
}
