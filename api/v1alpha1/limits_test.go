package v1alpha1

import (
	"strings"
	"testing"
)

func TestServiceSizeExcess(t *testing.T) {
	most := ServiceSize{Ports: 5, Addresses: 0, SourceRanges: 0, Endpoints: MaxServiceEndpoints, PortEndpoints: MaxServiceEntries}
	for name, c := range map[string]struct {
		size ServiceSize
		want string // the beginning
	}{
		"nothing":                   {},
		"as many as may be":         {size: most},
		"ports":                     {size: ServiceSize{Ports: 1001}, want: "it has 1001 ports, more than the limit of 1000; "},
		"addresses":                 {size: ServiceSize{Ports: 1, Addresses: 1001}, want: "it has 1001 external and load-balancer IPs, "},
		"source ranges":             {size: ServiceSize{Ports: 1, SourceRanges: 5001}, want: "it has 5001 loadBalancerSourceRanges, "},
		"endpoints":                 {size: ServiceSize{Ports: 1, Endpoints: 20_001}, want: "it has 20001 endpoints, "},
		"endpoints of all ports":    {size: ServiceSize{Ports: 1000, Endpoints: 101, PortEndpoints: 101_000}, want: "it has 101000 combinations "},
		"addresses with all ports":  {size: ServiceSize{Ports: 200, Addresses: 501}, want: "it has 100200 combinations "},
		"ranges with all the ports": {size: ServiceSize{Ports: 21, SourceRanges: 5000}, want: "it has 105000 combinations "},
	} {
		if limit, got := c.size.Excess(); (limit == "") != (c.want == "") || (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, %q, want %q", name, limit, got, c.want)
		}
	}
}
