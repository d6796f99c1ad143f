package v1alpha1

import "fmt"

// Limits of one Service. Legitimate Services stay below them; they keep one Service from using up
// the memory and time of all others. The controller checks them on the Service and its
// EndpointSlices before it expands anything; agents check them again on ServiceProxyRules. Only
// the Service over a limit is not rendered, and nodes retain its previous rules.
const (
	// MaxServicePorts limits spec.ports.
	MaxServicePorts = 1_000
	// MaxServiceAddresses limits the sum of external and load-balancer IPs.
	MaxServiceAddresses = 1_000
	// MaxServiceSourceRanges limits loadBalancerSourceRanges.
	MaxServiceSourceRanges = 5_000
	// MaxServiceEndpoints limits the endpoints of both IP families together: twice the 5,000 pods per
	// Service with which Kubernetes is tested.
	MaxServiceEndpoints = 10_000
	// MaxServicePortAddresses limits ports times the sum of external IPs, load-balancer IPs and
	// source ranges: each pair needs several rules on every node.
	MaxServicePortAddresses = 10_000
	// MaxServiceRestrictions limits ports times load-balancer IPs times source ranges: each is
	// an ipset entry on every node in mode IPVS, and an element in mode NFTables.
	MaxServiceRestrictions = 10_000
	// MaxServicePortEndpoints limits the sum of the endpoints of all ports, and thereby the memory of
	// agents. A Service with 5,000 endpoints may have five ports.
	MaxServicePortEndpoints = 25_000
	// MaxServiceAddressEndpoints limits the endpoints of all ports times one plus the sum of external
	// and load-balancer IPs: in mode IPVS each is a real server of a virtual server on every node, in
	// mode NFTables an element of a map. A Service with 5,000 endpoints and five ports may have three
	// such IPs, one with 100 endpoints and a port 999. Node ports do not count: which addresses of a
	// node serve them is up to administrators.
	MaxServiceAddressEndpoints = 100_000
	// MaxServiceHintBytes limits the hints of the endpoints of all ports: rules repeat them for each
	// port and each combination of hints. A zone and a node with the longest names for each of
	// MaxServicePortEndpoints are within.
	MaxServiceHintBytes = 8 << 20
	// MaxServiceSlices limits the EndpointSlices, of which each change reads all. Even slices of ten
	// endpoints suffice for MaxServiceEndpoints.
	MaxServiceSlices = 1_000
	// MaxServiceSlicePorts limits the sum of the ports of all slices. Slices without endpoints may
	// have ports too, each up to 20,000.
	MaxServiceSlicePorts = 100_000
	// MaxServiceRulesBytes limits ServiceProxyRules as JSON: etcd accepts 1.5 MiB; the rest is for
	// metadata and growth of the format.
	MaxServiceRulesBytes = 1 << 20
)

// Limits of the local endpoints in one node's NodeProxyRules, in bytes of JSON. The controller leaves
// out whole Services until the rest is within the limits; of a namespace that exceeds them all the
// same, agents retain the previous ones.
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

// MaxBytes is an upper bound of the size of the local endpoints of a Service as JSON.
func (s *ServiceLocalEndpoints) MaxBytes() int {
	total := len(`{"namespace":"","name":"","ports":[]},`) + len(s.Namespace) + len(s.Name)
	for i := range s.Ports {
		total += len(`{"name":"","protocol":"SCTP","endpoints":[]},`) + len(s.Ports[i].Name)
		for _, endpoint := range s.Ports[i].Endpoints {
			total += len(`"",`) + len(endpoint)
		}
	}
	return total
}

// ServiceSize is the size of a Service in everything that is limited.
// +kubebuilder:object:generate=false
type ServiceSize struct {
	Ports, Addresses, SourceRanges, Endpoints int
	// LoadBalancerIPs are part of Addresses.
	LoadBalancerIPs int
	// PortEndpoints is the sum of the endpoints of all ports.
	PortEndpoints int
	// Slices are the EndpointSlices, SlicePorts the sum of their ports, and HintBytes what their hints
	// take as JSON if all ports repeat them. Rendered Services have none.
	Slices, SlicePorts, HintBytes int
}

// SizeOf returns the size of a rendered Service.
func SizeOf(rules *ServiceProxyRulesSpec) ServiceSize {
	size := ServiceSize{
		Ports: len(rules.Ports), Addresses: len(rules.ExternalIPs) + len(rules.LoadBalancerIPs), SourceRanges: len(rules.LoadBalancerSourceRanges),
		LoadBalancerIPs: len(rules.LoadBalancerIPs),
	}
	for _, port := range rules.EndpointsByPort() {
		n := 0
		for _, e := range port {
			n += len(e.Addresses)
		}
		size.PortEndpoints += n
		size.Endpoints = max(size.Endpoints, n)
	}
	return size
}

// Combinations counts the pairs of a port with an endpoint, an address or a source range, and
// the triples with an address and one of the others.
func (s ServiceSize) Combinations() int {
	return s.addressEndpoints() + s.Ports*(s.Addresses+s.SourceRanges) + s.restrictions()
}

// addressEndpoints is what MaxServiceAddressEndpoints limits.
func (s ServiceSize) addressEndpoints() int { return s.PortEndpoints * (1 + s.Addresses) }

// restrictions is what MaxServiceRestrictions limits.
func (s ServiceSize) restrictions() int { return s.Ports * s.LoadBalancerIPs * s.SourceRanges }

// Plus adds the sizes of two parts of a Service.
func (s ServiceSize) Plus(o ServiceSize) ServiceSize {
	return ServiceSize{
		s.Ports + o.Ports, s.Addresses + o.Addresses, s.SourceRanges + o.SourceRanges, s.Endpoints + o.Endpoints,
		s.LoadBalancerIPs + o.LoadBalancerIPs, s.PortEndpoints + o.PortEndpoints, s.Slices + o.Slices, s.SlicePorts + o.SlicePorts,
		s.HintBytes + o.HintBytes,
	}
}

// Excess returns the limit that a Service exceeds, and a text with its size, the limit and a
// remedy. Both are empty if it exceeds none.
func (s ServiceSize) Excess() (limit, text string) {
	// First and without the number: of more slices, only some may have been counted.
	if s.Slices > MaxServiceSlices {
		return "EndpointSlices", fmt.Sprintf("it has more EndpointSlices than the limit of %d; merge them", MaxServiceSlices)
	}
	for _, limit := range []struct {
		size, most   int
		what, remedy string
	}{
		{s.Ports, MaxServicePorts, "ports", "split the Service"},
		{s.Addresses, MaxServiceAddresses, "external and load-balancer IPs", "split the Service"},
		{s.SourceRanges, MaxServiceSourceRanges, "loadBalancerSourceRanges", "merge them"},
		{s.Endpoints, MaxServiceEndpoints, "endpoints", "let it select fewer pods"},
		{s.SlicePorts, MaxServiceSlicePorts, "ports in all EndpointSlices together", "remove slices or their ports"},
		{
			s.Ports * (s.Addresses + s.SourceRanges), MaxServicePortAddresses,
			"combinations of a port with an external IP, load-balancer IP or source range", "split the Service",
		},
		{
			s.restrictions(), MaxServiceRestrictions,
			"combinations of a port with a load-balancer IP and a source range", "split the Service or merge its source ranges",
		},
		{s.PortEndpoints, MaxServicePortEndpoints, "combinations of a port with an endpoint", "split the Service"},
		{
			s.addressEndpoints(), MaxServiceAddressEndpoints,
			"combinations of a port with an endpoint and a cluster, external or load-balancer IP", "split the Service or remove addresses",
		},
		{s.HintBytes, MaxServiceHintBytes, "bytes of hints, counted for each port", "remove hints or split the Service"},
	} {
		if limit.size > limit.most {
			return limit.what, fmt.Sprintf("it has %d %s, more than the limit of %d; %s", limit.size, limit.what, limit.most, limit.remedy)
		}
	}
	return "", ""
}
