package render

import (
	"net/netip"
	"slices"
	"strings"

	netutils "k8s.io/utils/net"
)

// parseAddr parses an IP address and tolerates leading zeros, which old objects may still have. An
// IPv4 address in IPv6 notation counts as IPv4.
func parseAddr(s string) (netip.Addr, bool) {
	// The strict parser accepts nearly every address and allocates nothing.
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Unmap(), addr.Zone() == ""
	}
	addr, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(s))
	return addr.Unmap(), ok
}

// parsePrefix parses a CIDR, tolerates leading zeros and masks the host bits.
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

// addresses returns the addresses that parse and belong to one of the families: canonical, in their
// order, without duplicates. It returns nil for none.
func (f families) addresses(in []string) []string {
	var out []string
	for _, s := range in {
		if addr, ok := parseAddr(strings.TrimSpace(s)); ok && f[familyOf(addr)] {
			out = append(out, addr.String())
		}
	}
	return eachOnce(out)
}

// eachOnce removes duplicates. The order stays: rules for clients are in the order of the Service,
// as in kube-proxy.
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

// sourceRanges returns the canonical client ranges in their order, without duplicates and what does
// not parse. A family with a range of prefix length 0 is not restricted at all, so all its ranges
// are left out: an agent interprets "no range of this family" as "no restriction", and the other
// family retains its ranges.
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
