package render

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestSourceRangeProblems(t *testing.T) {
	const bogus = `spec.loadBalancerSourceRanges[0]: "bogus" is not a CIDR`
	open := func(family string) string {
		return "there is no " + family + " range, so its " + family + " load-balancer addresses are open to every source"
	}
	for name, c := range map[string]struct {
		ranges, ips []string
		want        []string
	}{
		"none":                              {ips: []string{"203.0.113.9"}},
		"good":                              {ranges: []string{" 203.0.113.000/025 "}, ips: []string{"203.0.113.9"}},
		"one cannot be read":                {ranges: []string{"bogus", "10.0.0.0/8"}, ips: []string{"203.0.113.9"}, want: []string{bogus}},
		"none can be read":                  {ranges: []string{"bogus"}, ips: []string{"203.0.113.9"}, want: []string{bogus, open("IPv4")}},
		"of the other family":               {ranges: []string{"fd00::/64"}, ips: []string{"203.0.113.9"}, want: []string{open("IPv4")}},
		"everything, which may be intended": {ranges: []string{"0.0.0.0/0"}, ips: []string{"203.0.113.9"}},
		"one family of two":                 {ranges: []string{"10.0.0.0/8"}, ips: []string{"203.0.113.9", "fd00::9"}, want: []string{open("IPv6")}},
		"no address yet":                    {ranges: []string{"fd00::/64"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := SourceRangeProblems(service(func(s *corev1.Service) {
				s.Spec.ClusterIPs = []string{"10.96.12.7", "fd00::1"}
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
				s.Spec.LoadBalancerSourceRanges = c.ranges
				for _, ip := range c.ips {
					s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
				}
			}))
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
