package v1alpha1

import "fmt"

// Limits of one Service. Legitimate Services stay below them; they keep one Service from using up
// the memory and time of all others. The controller checks them on the Service and its
// EndpointSlices before it expands anything; agents check them again on ServiceProxyRules. Only
// the Service over a limit is rejected, and nodes retain its previous rules.
const (
	// MaxServicePorts limits spec.ports.
	MaxServicePorts = 1_000
	// MaxServiceAddresses limits the sum of external and load-balancer IPs.
	MaxServiceAddresses = 1_000
	// MaxServiceSourceRanges limits loadBalancerSourceRanges.
	MaxServiceSourceRanges = 5_000
	// MaxServiceEndpoints limits the endpoints of both IP families together.
	MaxServiceEndpoints = 20_000
	// MaxServicePortAddresses limits ports times the sum of external IPs, load-balancer IPs and
	// source ranges: each pair needs several rules on every node.
	MaxServicePortAddresses = 10_000
	// MaxServiceRestrictions limits ports times load-balancer IPs times source ranges: each is
	// an ipset entry on every node in mode IPVS.
	MaxServiceRestrictions = 50_000
	// MaxServicePortEndpoints limits the sum of the endpoints of all ports. Kubernetes is
	// tested with up to 5,000 endpoints per Service; such a Service may have ten ports.
	MaxServicePortEndpoints = 50_000
)

// Limits of the local endpoints in one node's NodeProxyRules, in bytes of JSON. Whole Services
// are left out until the rest is within the limits.
const (
	// MaxNamespaceLocalBytes limits the local endpoints of one namespace: about 5,000 pairs of
	// a port and an endpoint. As slices may name any node, it also limits what it can add to
	// etcd.
	MaxNamespaceLocalBytes = 128 << 10
	// MaxNodeLocalBytes limits the local endpoints of all Services. With settings and facts the
	// object stays below 1 MiB; etcd accepts 1.5 MiB, which leaves the rest to the agent's
	// report.
	MaxNodeLocalBytes = 960 << 10
)

// ServiceSize is the size of a Service in everything that is limited.
// +kubebuilder:object:generate=false
type ServiceSize struct {
	Ports, Addresses, SourceRanges, Endpoints int
	// LoadBalancerIPs are part of Addresses.
	LoadBalancerIPs int
	// PortEndpoints is the sum of the endpoints of all ports.
	PortEndpoints int
}

// SizeOf returns the size of a rendered Service.
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

// Combinations counts the pairs of a port with an endpoint, an address or a source range, and
// the triples with both of the latter.
func (s ServiceSize) Combinations() int {
	return s.PortEndpoints + s.Ports*(s.Addresses+s.SourceRanges) + s.restrictions()
}

// restrictions is what MaxServiceRestrictions limits.
func (s ServiceSize) restrictions() int { return s.Ports * s.LoadBalancerIPs * s.SourceRanges }

// Plus adds the sizes of two parts of a Service.
func (s ServiceSize) Plus(o ServiceSize) ServiceSize {
	return ServiceSize{
		s.Ports + o.Ports, s.Addresses + o.Addresses, s.SourceRanges + o.SourceRanges, s.Endpoints + o.Endpoints,
		s.LoadBalancerIPs + o.LoadBalancerIPs, s.PortEndpoints + o.PortEndpoints,
	}
}

// Excess returns the limit that a Service exceeds, and a text with its size, the limit and a
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
