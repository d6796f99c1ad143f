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
	restricted := families{}
	for i, s := range svc.Spec.LoadBalancerSourceRanges {
		prefix, ok := parsePrefix(strings.TrimSpace(s))
		if !ok {
			out = append(out, fmt.Sprintf("spec.loadBalancerSourceRanges[%d]: %q is not a CIDR", i, s))
			continue
		}
		// Everything as a range is what somebody may want: that is no problem.
		restricted[familyOf(prefix.Addr())] = true
	}
	if len(svc.Spec.LoadBalancerSourceRanges) == 0 {
		return nil
	}
	_, fams := clusterIPs(svc)
	open := families{}
	for _, s := range fams.addresses(loadBalancerIPs(svc)) {
		if addr, ok := parseAddr(s); ok {
			open[familyOf(addr)] = !restricted[familyOf(addr)]
		}
	}
	for _, f := range []struct {
		family family
		name   string
	}{{familyIPv4, "IPv4"}, {familyIPv6, "IPv6"}} {
		if open[f.family] {
			out = append(out, fmt.Sprintf("no range is of %s, so that its %s load-balancer addresses are open to every source", f.name, f.name))
		}
	}
	return out
}
