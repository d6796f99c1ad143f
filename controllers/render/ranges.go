package render

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// SourceRangeProblems says which source ranges of a Service cannot be used, and for which IP family
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
		out = append(out, fmt.Sprintf("no range is of %s, so that its %s load-balancer addresses are open to every source", f, f))
	}
	return out
}

// openFamilies returns the IP families of addresses without a range, which agents interpret as no
// restriction. The range of everything counts as a range, because it may be intended.
func openFamilies(addresses, ranges []string) []string {
	restricted, has := families{}, families{}
	for _, s := range ranges {
		if prefix, ok := parsePrefix(strings.TrimSpace(s)); ok {
			restricted[familyOf(prefix.Addr())] = true
		}
	}
	for _, s := range addresses {
		if addr, ok := parseAddr(s); ok {
			has[familyOf(addr)] = true
		}
	}
	var open []string
	for _, f := range []struct {
		family family
		name   string
	}{{familyIPv4, "IPv4"}, {familyIPv6, "IPv6"}} {
		if has[f.family] && !restricted[f.family] {
			open = append(open, f.name)
		}
	}
	return open
}
