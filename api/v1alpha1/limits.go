package v1alpha1

import "fmt"

// Limits of one Service. They are above what legitimate Services have and keep one Service from
// using the memory and time of all others. The controller checks them on the Service and its
// EndpointSlices before it expands anything, agents check them again on ServiceProxyRules. A
// Service over a limit is rejected alone, and nodes keep its former rules.
const (
	// MaxServicePorts bounds spec.ports.
	MaxServicePorts = 1_000
	// MaxServiceAddresses bounds external and load-balancer IPs together.
	MaxServiceAddresses = 1_000
	// MaxServiceSourceRanges bounds loadBalancerSourceRanges.
	MaxServiceSourceRanges = 5_000
	// MaxServiceEndpoints bounds endpoints, of both IP families together.
	MaxServiceEndpoints = 20_000
	// MaxServicePortAddresses bounds ports times external IPs, load-balancer IPs and source
	// ranges: each pair is several rules on every node.
	MaxServicePortAddresses = 10_000
	// MaxServiceRestrictions bounds ports times load-balancer IPs times source ranges: each
	// is an ipset entry on every node in mode IPVS.
	MaxServiceRestrictions = 50_000
	// MaxServicePortEndpoints bounds the endpoints of all ports: Kubernetes is tested with
	// up to 5,000 endpoints of a Service, which may thus have ten ports.
	MaxServicePortEndpoints = 50_000
)

// Limits of the local endpoints that the NodeProxyRules of one node carries, in bytes of JSON.
// Whole Services are left out until the rest is within the limits.
const (
	// MaxNamespaceLocalBytes bounds the local endpoints of the Services of one namespace on one
	// node: about 5,000 pairs of a port and an endpoint. It bounds, too, what one namespace
	// adds to the store, as slices may name every node.
	MaxNamespaceLocalBytes = 128 << 10
	// MaxNodeLocalBytes bounds the local endpoints of all Services on one node. With settings
	// and facts the object stays below 1 MiB; etcd takes 1.5 MiB, and the rest is for the
	// agent's report.
	MaxNodeLocalBytes = 960 << 10
)

// ServiceSize is how large a Service is, in what is limited.
// +kubebuilder:object:generate=false
type ServiceSize struct {
	Ports, Addresses, SourceRanges, Endpoints int
	// LoadBalancerIPs are among Addresses.
	LoadBalancerIPs int
	// PortEndpoints are the endpoints of all ports.
	PortEndpoints int
}

// SizeOf returns the size of a Service as it is rendered.
func SizeOf(rules *ServiceProxyRulesSpec) ServiceSize {
	size := ServiceSize{
		Ports: len(rules.Ports), Addresses: len(rules.ExternalIPs) + len(rules.LoadBalancerIPs), SourceRanges: len(rules.LoadBalancerSourceRanges),
		LoadBalancerIPs: len(rules.LoadBalancerIPs),
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

// Combinations are those of a port with an endpoint, an address, a source range, or both of
// the latter.
func (s ServiceSize) Combinations() int {
	return s.PortEndpoints + s.Ports*(s.Addresses+s.SourceRanges) + s.restrictions()
}

// restrictions are what MaxServiceRestrictions bounds.
func (s ServiceSize) restrictions() int { return s.Ports * s.LoadBalancerIPs * s.SourceRanges }

// Plus adds up parts of one Service.
func (s ServiceSize) Plus(o ServiceSize) ServiceSize {
	return ServiceSize{
		s.Ports + o.Ports, s.Addresses + o.Addresses, s.SourceRanges + o.SourceRanges, s.Endpoints + o.Endpoints,
		s.LoadBalancerIPs + o.LoadBalancerIPs, s.PortEndpoints + o.PortEndpoints,
	}
}

// Excess returns the limit that a Service exceeds, and a text with the figure, the limit and a
// remedy. Both are empty if it exceeds none.
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
			s.Ports * (s.Addresses + s.SourceRanges), MaxServicePortAddresses,
			"combinations of a port with an external IP, load-balancer IP or source range", "split the Service",
		},
		{
			s.restrictions(), MaxServiceRestrictions,
			"combinations of a port with a load-balancer IP and a source range", "split the Service or merge its source ranges",
		},
		{s.PortEndpoints, MaxServicePortEndpoints, "combinations of a port with an endpoint", "split the Service"},
	} {
		if limit.figure > limit.most {
			return limit.what, fmt.Sprintf("it has %d %s, more than the limit of %d; %s", limit.figure, limit.what, limit.most, limit.remedy)
		}
	}
	return "", ""
}
