package render

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// SourceRangeProblems says which of a Service's source ranges cannot be used, and
// for which IP family that leaves its load-balancer addresses open to everybody
// though ranges are given. Both are as with kube-proxy, which says nothing of it.
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

// openFamilies names the IP families of addresses of which there is no range, which
// agents take as no restriction. Everything as a range is what somebody may want, and
// counts as one.
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
