package v1alpha1

import (
	"strings"
	"testing"
)

func TestServiceSizeExcess(t *testing.T) {
	most := ServiceSize{Ports: 2, SourceRanges: 4000, Addresses: 1000, LoadBalancerIPs: 1, Endpoints: 49, PortEndpoints: 98}
	for name, c := range map[string]struct {
		size ServiceSize
		want string // the beginning
	}{
		"nothing":                   {},
		"as many as allowed":        {size: most},
		"as many endpoints":         {size: ServiceSize{Ports: 10, Addresses: 1, Endpoints: 5000, PortEndpoints: MaxServicePortEndpoints}},
		"as many with one port":     {size: ServiceSize{Ports: 1, Addresses: 4, Endpoints: MaxServiceEndpoints, PortEndpoints: MaxServiceEndpoints}},
		"ports":                     {size: ServiceSize{Ports: 1001}, want: "it has 1001 ports, more than the limit of 1000; "},
		"addresses":                 {size: ServiceSize{Ports: 1, Addresses: 1001}, want: "it has 1001 external and load-balancer IPs, "},
		"source ranges":             {size: ServiceSize{Ports: 1, SourceRanges: 5001}, want: "it has 5001 loadBalancerSourceRanges, "},
		"endpoints":                 {size: ServiceSize{Ports: 1, Endpoints: 20_001}, want: "it has 20001 endpoints, "},
		"endpoints of all ports":    {size: ServiceSize{Ports: 500, Endpoints: 51, PortEndpoints: 25_500}, want: "it has 25500 combinations of a port with an endpoint, more than the limit of 25000; "},
		"addresses with all ports":  {size: ServiceSize{Ports: 100, Addresses: 101}, want: "it has 10100 combinations of a port with an external IP, load-balancer IP or source range, more than the limit of 10000; "},
		"ranges with all the ports": {size: ServiceSize{Ports: 3, SourceRanges: 5000}, want: "it has 15000 combinations "},
		"ranges with load-balancer IPs": {
			size: ServiceSize{Ports: 2, Addresses: 7, LoadBalancerIPs: 7, SourceRanges: 4000},
			want: "it has 56000 combinations of a port with a load-balancer IP and a source range, more than the limit of 10000; ",
		},
		"addresses with endpoints": {
			size: ServiceSize{Ports: 1, Addresses: 1000, Endpoints: MaxServiceEndpoints, PortEndpoints: MaxServiceEndpoints},
			want: "it has 10010000 combinations of a port with an endpoint and a cluster, external or load-balancer IP, more than the limit of 100000; ",
		},
		"as many slices":           {size: ServiceSize{Slices: MaxServiceSlices, SlicePorts: MaxServiceSlicePorts}},
		"slices":                   {size: ServiceSize{Slices: MaxServiceSlices + 1, Endpoints: 20_001}, want: "it has more EndpointSlices than the limit of 1000; "},
		"ports of slices":          {size: ServiceSize{Slices: 6, SlicePorts: 120_000}, want: "it has 120000 ports in all EndpointSlices together, more than the limit of 100000; "},
		"hints":                    {size: ServiceSize{HintBytes: 8<<20 + 1}, want: "it has 8388609 bytes of hints, counted for each port, more than the limit of 8388608; "},
		"hints of usual length":    {size: ServiceSize{PortEndpoints: MaxServicePortEndpoints, HintBytes: MaxServicePortEndpoints * len(`"",`+strings.Repeat("z", 63)+`"",`+strings.Repeat("n", 253))}},
		"ranges with external IPs": {size: ServiceSize{Ports: 1, Addresses: 1000, SourceRanges: 5000}},
	} {
		if limit, got := c.size.Excess(); (limit == "") != (c.want == "") || (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, %q, want %q", name, limit, got, c.want)
		}
	}
}
