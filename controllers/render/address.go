package render

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// parsed parses addresses or CIDRs, without the invalid ones.
func parsed[T any](texts []string, parse func(string) (T, bool)) []T {
	var out []T
	for _, text := range texts {
		if value, ok := parse(strings.TrimSpace(text)); ok {
			out = append(out, value)
		}
	}
	return out
}

func familyOf(addr netip.Addr) corev1.IPFamily {
	if addr.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// families is a set of IP families.
type families map[corev1.IPFamily]bool

// addresses returns the valid addresses of these families: canonical, in their order, without
// duplicates. It returns nil for none.
func (f families) addresses(in []string) []string {
	var out []string
	for _, addr := range parsed(in, parseAddr) {
		if f[familyOf(addr)] {
			out = append(out, addr.String())
		}
	}
	return eachOnce(out)
}

// eachOnce removes duplicates. It preserves the order because kube-proxy has rules for clients in the
// order of the Service.
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

// sourceRanges returns the valid client ranges: canonical, in their order, without duplicates. A
// range of prefix length 0 lifts the restriction of its family, so all ranges of this family are
// left out: to agents, no range of a family means no restriction.
func sourceRanges(in []string) []string {
	prefixes := parsed(in, parsePrefix)
	unrestricted := families{}
	for _, prefix := range prefixes {
		if prefix.Bits() == 0 {
			unrestricted[familyOf(prefix.Addr())] = true
		}
	}
	var out []string
	for _, prefix := range prefixes {
		if !unrestricted[familyOf(prefix.Addr())] {
			out = append(out, prefix.String())
		}
	}
	return eachOnce(out)
}

// SourceRangeProblems reports which source ranges of a Service are invalid, and for which IP family
// its load-balancer addresses are therefore open to every client although ranges are given.
// kube-proxy does the same without reporting it.
func SourceRangeProblems(svc *corev1.Service) []string {
	var out []string
	for i, s := range svc.Spec.LoadBalancerSourceRanges {
		if _, ok := parsePrefix(strings.TrimSpace(s)); !ok {
			out = append(out, fmt.Sprintf("spec.loadBalancerSourceRanges[%d]: %q is not a CIDR", i, s))
		}
	}
	if len(svc.Spec.LoadBalancerSourceRanges) == 0 {
		return nil
	}
	_, fams := clusterIPs(svc)
	for _, f := range openFamilies(fams.addresses(loadBalancerIPs(svc)), svc.Spec.LoadBalancerSourceRanges) {
		out = append(out, fmt.Sprintf("there is no %s range, so its %s load-balancer addresses are open to every source", f, f))
	}
	return out
}

// openFamilies returns the IP families of valid addresses without a range, which agents do not
// restrict. A range of prefix length 0 counts as a range, because it may be intended.
func openFamilies(addresses, ranges []string) []corev1.IPFamily {
	restricted := families{}
	for _, prefix := range parsed(ranges, parsePrefix) {
		restricted[familyOf(prefix.Addr())] = true
	}
	var open []corev1.IPFamily
	for _, addr := range parsed(addresses, parseAddr) {
		if f := familyOf(addr); !restricted[f] {
			open = append(open, f)
		}
	}
	slices.Sort(open)
	return slices.Compact(open)
}
