package v1alpha1

import "fmt"

// Limits of one Service. They are far above what legitimate Services have, and keep one from
// taking the memory and time of all others: the controller checks them on Service and
// EndpointSlices before it makes anything of them, agents once more on ServiceProxyRules. A
// Service over one is refused on its own, and nodes keep its former rules.
const (
	// MaxServicePorts bounds spec.ports.
	MaxServicePorts = 1_000
	// MaxServiceAddresses bounds external and load-balancer IPs together.
	MaxServiceAddresses = 1_000
	// MaxServiceSourceRanges bounds loadBalancerSourceRanges.
	MaxServiceSourceRanges = 5_000
	// MaxServiceEndpoints bounds endpoints, of both IP families together.
	MaxServiceEndpoints = 20_000
	// MaxServiceEntries bounds what a data plane makes of a Service: each of its ports with
	// each of its endpoints, addresses and source ranges.
	MaxServiceEntries = 100_000
)

// ServiceSize is what is limited of a Service.
// +kubebuilder:object:generate=false
type ServiceSize struct {
	Ports, Addresses, SourceRanges, Endpoints int
	// PortEndpoints are the endpoints of all ports.
	PortEndpoints int
}

// SizeOf returns the size of a Service as it is rendered.
func SizeOf(rules *ServiceProxyRulesSpec) ServiceSize {
	size := ServiceSize{
		Ports: len(rules.Ports), Addresses: len(rules.ExternalIPs) + len(rules.LoadBalancerIPs), SourceRanges: len(rules.LoadBalancerSourceRanges),
	}
	for i := range rules.Ports {
		n := 0
		for j := range rules.Ports[i].Endpoints {
			n += len(rules.Ports[i].Endpoints[j].Addresses)
		}
		size.PortEndpoints += n
		size.Endpoints = max(size.Endpoints, n)
	}
	return size
}

// Plus adds up parts of one Service.
func (s ServiceSize) Plus(o ServiceSize) ServiceSize {
	return ServiceSize{
		s.Ports + o.Ports, s.Addresses + o.Addresses, s.SourceRanges + o.SourceRanges, s.Endpoints + o.Endpoints, s.PortEndpoints + o.PortEndpoints,
	}
}

// Excess names the limit that a Service is over, and says by how much and what to do; empty:
// none.
func (s ServiceSize) Excess() (limit, text string) {
	for _, limit := range []struct {
		figure, most int
		what, remedy string
	}{
		{s.Ports, MaxServicePorts, "ports", "split the Service"},
		{s.Addresses, MaxServiceAddresses, "external and load-balancer IPs", "split the Service"},
		{s.SourceRanges, MaxServiceSourceRanges, "loadBalancerSourceRanges", "merge them"},
		{s.Endpoints, MaxServiceEndpoints, "endpoints", "let it select fewer pods"},
		{
			s.PortEndpoints + s.Ports*(s.Addresses+s.SourceRanges), MaxServiceEntries,
			"combinations of a port with an endpoint, IP or source range", "split the Service",
		},
	} {
		if limit.figure > limit.most {
			return limit.what, fmt.Sprintf("it has %d %s, more than the limit of %d; %s", limit.figure, limit.what, limit.most, limit.remedy)
		}
	}
	return "", ""
}
