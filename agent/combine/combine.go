package combine

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// maxAffinitySeconds is the longest session affinity that Kubernetes allows.
const maxAffinitySeconds = 86400

// Node has the facts of the node that affect Services.
type Node struct {
	Name string
	// Zone is empty for none.
	Zone string
}

// Claim is an address, port and protocol that only one Service can have. A node port has the
// unspecified address of its family.
type Claim struct {
	Address  netip.Addr
	Port     uint16
	Protocol v1alpha1.Protocol
}

// Input has what a Service of one family is combined from.
type Input struct {
	Name  dataplane.ServiceName
	Rules *v1alpha1.ServiceProxyRulesSpec
	// LocalEndpoints are this node's endpoints of the Service, in any state.
	LocalEndpoints []v1alpha1.PortLocalEndpoints
	Node           Node
	Family         dataplane.Family
	// Lost reports whether another Service has a claim. Nil: none is lost.
	Lost func(Claim) bool
	// Precedence is that of the Service.
	Precedence dataplane.Precedence
}

// Service combines what one family of the node should serve; nil for a Service without a cluster IP
// of the family. The second result describes what in the input cannot be used.
func Service(in Input) (*dataplane.Service, []string) {
	r := &reader{family: in.Family}
	svc := r.frame(in.Name, in.Rules)
	if svc == nil {
		return nil, r.problems
	}
	r.attributes(svc, in.Rules)
	if Contestable(in.Rules) {
		svc.Precedence = in.Precedence
	}
	if p := svc.HealthCheckNodePort; p != 0 && in.Lost != nil && in.Lost(nodePortClaim(p, v1alpha1.ProtocolTCP, in.Family)) {
		svc.HealthCheckNodePort = 0
	}
	local, endpoints := byPort(in.LocalEndpoints), in.Rules.EndpointsByPort()
	for _, p := range r.ports(in.Rules) {
		port := p.Port
		if in.Lost != nil {
			loseClaims(svc, &port, in.Family, in.Lost)
		}
		port.LocalEndpoints = r.localEndpoints(local[portName{port.Name, port.Protocol}])
		r.selectEndpoints(svc, &port, endpoints[p.position], in.Node)
		svc.Ports = append(svc.Ports, port)
	}
	svc.LocalReady = len(r.localReady)
	return svc, r.problems
}

// Contestable reports whether another Service may conflict with this one without having the same
// claim: a NodePort is also an address and port, on each address of the node. Only data planes
// know these.
func Contestable(rules *v1alpha1.ServiceProxyRulesSpec) bool {
	return len(rules.ExternalIPs)+len(rules.LoadBalancerIPs) > 0 ||
		slices.ContainsFunc(rules.Ports, func(p v1alpha1.ServicePort) bool { return p.NodePort != 0 })
}

// Claims lists what the Service claims, in the families of its cluster IPs, each once.
func Claims(rules *v1alpha1.ServiceProxyRulesSpec) []Asked {
	var claims []Asked
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		r := &reader{family: family}
		svc := r.frame(dataplane.ServiceName{}, rules)
		if svc == nil {
			continue
		}
		for _, p := range r.ports(rules) {
			claims = append(claims, portClaims(svc, &p.Port, family)...)
		}
		if p, ok := toPort(rules.HealthCheckNodePort); ok {
			claims = append(claims, Asked{Claim: nodePortClaim(p, v1alpha1.ProtocolTCP, family)})
		}
	}
	return claims
}

func portClaims(svc *dataplane.Service, p *dataplane.Port, family dataplane.Family) []Asked {
	var claims []Asked
	for _, a := range svc.Addresses() {
		rank := Ordinary
		if a == svc.ClusterIP {
			rank = Own
		}
		claims = append(claims, Asked{Claim{Address: a, Port: p.Port, Protocol: p.Protocol}, rank})
	}
	if len(svc.NodeAddresses) > 0 {
		claims = append(claims, Asked{nodePortClaim(p.Port, p.Protocol, family), Yielding})
	}
	if p.NodePort != 0 {
		claims = append(claims, Asked{Claim: nodePortClaim(p.NodePort, p.Protocol, family)})
	}
	return claims
}

func nodePortClaim(port uint16, protocol v1alpha1.Protocol, family dataplane.Family) Claim {
	return Claim{Address: family.Unspecified(), Port: port, Protocol: protocol}
}

func loseClaims(svc *dataplane.Service, p *dataplane.Port, family dataplane.Family, lost func(Claim) bool) {
	// At an address of a Node, the Service with the node port has the port.
	var anothers sets.Set[netip.Addr]
	if len(svc.NodeAddresses) > 0 && lost(nodePortClaim(p.Port, p.Protocol, family)) {
		anothers = svc.OfOthers([]netip.Addr{svc.ClusterIP})
	}
	for _, a := range svc.Addresses() {
		if anothers.Has(a) || lost(Claim{Address: a, Port: p.Port, Protocol: p.Protocol}) {
			p.Lost = append(p.Lost, a)
		}
	}
	slices.SortFunc(p.Lost, netip.Addr.Compare)
	if p.NodePort != 0 && lost(nodePortClaim(p.NodePort, p.Protocol, family)) {
		p.NodePort = 0
	}
}

// frame returns a Service with its addresses, or nil without a cluster IP of the family.
func (r *reader) frame(name dataplane.ServiceName, rules *v1alpha1.ServiceProxyRulesSpec) *dataplane.Service {
	clusterIPs := r.addrs("spec.clusterIPs", rules.ClusterIPs)
	if len(clusterIPs) == 0 {
		return nil
	}
	if len(clusterIPs) > 1 {
		r.report("spec.clusterIPs: several of family %s; only %s is used", r.family, clusterIPs[0])
	}
	return &dataplane.Service{
		Name:            name,
		ClusterIP:       clusterIPs[0],
		ExternalIPs:     r.addrs("spec.externalIPs", rules.ExternalIPs),
		LoadBalancerIPs: r.addrs("spec.loadBalancerIPs", rules.LoadBalancerIPs),
		NodeAddresses:   slices.SortedFunc(slices.Values(r.addrs("spec.nodeAddresses", rules.NodeAddresses)), netip.Addr.Compare),
	}
}

// attributes sets what all ports of the Service share.
func (r *reader) attributes(svc *dataplane.Service, rules *v1alpha1.ServiceProxyRulesSpec) {
	svc.SourceRanges = r.sourceRanges(rules.LoadBalancerSourceRanges)
	svc.ExternalLocal = r.isLocal("spec.externalTrafficPolicy", rules.ExternalTrafficPolicy)
	svc.InternalLocal = r.isLocal("spec.internalTrafficPolicy", rules.InternalTrafficPolicy)
	if a := rules.SessionAffinity; a != nil {
		if a.ClientIPTimeoutSeconds < 1 || a.ClientIPTimeoutSeconds > maxAffinitySeconds {
			r.report("spec.sessionAffinity.clientIPTimeoutSeconds: %d is not 1 to %d; no session affinity", a.ClientIPTimeoutSeconds, maxAffinitySeconds)
		} else {
			svc.AffinitySeconds = a.ClientIPTimeoutSeconds
		}
	}
	if p := rules.HealthCheckNodePort; p != 0 {
		if port, ok := toPort(p); ok {
			svc.HealthCheckNodePort = port
		} else {
			r.report("spec.healthCheckNodePort: %d is not a port; none is opened", p)
		}
	}
	switch s := rules.Serving; s {
	case v1alpha1.ServingUserspace:
		svc.Userspace = true
	case v1alpha1.ServingKernel, "":
	default:
		r.report("spec.serving: %q is neither Kernel nor Userspace; Kernel is used", s)
	}
	if s := rules.IPVSScheduler; s != "" {
		if slices.Contains(v1alpha1.IPVSSchedulers(), s) {
			svc.IPVSScheduler = s
		} else {
			r.report("spec.ipvsScheduler: %q is no scheduler that Linux has; the node's is used", s)
		}
	}
}

// sourceRanges returns this family's ranges, in order. None, or one of all addresses: no
// restriction.
func (r *reader) sourceRanges(texts []string) []netip.Prefix {
	var ranges []netip.Prefix
	for i, text := range texts {
		prefix, err := netip.ParsePrefix(text)
		if err != nil || prefix.Addr().Is4In6() {
			r.report("spec.loadBalancerSourceRanges[%d]: %q is not a CIDR; skipped", i, text)
			continue
		}
		if !r.family.Of(prefix.Addr()) {
			continue
		}
		if prefix.Bits() == 0 {
			return nil
		}
		ranges = append(ranges, prefix.Masked())
	}
	return eachOnce(ranges)
}

func (r *reader) isLocal(field string, policy v1alpha1.TrafficPolicy) bool {
	switch policy {
	case v1alpha1.TrafficPolicyLocal:
		return true
	case v1alpha1.TrafficPolicyCluster, "":
		return false
	default:
		r.report("%s: %q is neither Cluster nor Local; Cluster is used", field, policy)
		return false
	}
}

// eachOnce removes duplicates. It preserves the order, in which kube-proxy writes rules for clients.
func eachOnce[T comparable](list []T) []T {
	if len(list) < 2 {
		return list
	}
	var before dataplane.Once[T]
	out := make([]T, 0, len(list))
	for _, one := range list {
		if before.First(one) {
			out = append(out, one)
		}
	}
	return out
}

// Equal reports whether two Services, either of which may be nil, are served in the same way.
func Equal(a, b *dataplane.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Name == b.Name && a.Precedence.Compare(b.Precedence) == 0 && a.ClusterIP == b.ClusterIP &&
		a.ExternalLocal == b.ExternalLocal && a.InternalLocal == b.InternalLocal &&
		a.AffinitySeconds == b.AffinitySeconds && a.HealthCheckNodePort == b.HealthCheckNodePort &&
		a.LocalReady == b.LocalReady &&
		a.IPVSScheduler == b.IPVSScheduler && a.Userspace == b.Userspace &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.NodeAddresses, b.NodeAddresses) &&
		slices.Equal(a.SourceRanges, b.SourceRanges) &&
		slices.EqualFunc(a.Ports, b.Ports, equalPort)
}

func equalPort(a, b dataplane.Port) bool {
	return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort &&
		a.Available == b.Available &&
		slices.Equal(a.Cluster, b.Cluster) && slices.Equal(a.Local, b.Local) &&
		slices.Equal(a.LocalEndpoints, b.LocalEndpoints) && slices.Equal(a.Serving, b.Serving) && slices.Equal(a.Lost, b.Lost)
}
