package render

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// LabelServiceProxyName on a Service, with any value, leaves the Service to another proxy.
const LabelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// defaultAffinitySeconds is what the API server sets if a Service has session affinity without a
// timeout.
const defaultAffinitySeconds int32 = 10800

// Eligible reports whether a Service is proxied: it has a cluster IP of one of its IP families, has
// ports, and no label that leaves it to another proxy.
func Eligible(svc *corev1.Service) bool {
	switch {
	case svc.Spec.ClusterIP == "" || svc.Spec.ClusterIP == corev1.ClusterIPNone,
		svc.Spec.Type == corev1.ServiceTypeExternalName, // a cluster IP may be left over
		len(svc.Spec.Ports) == 0:
		return false
	}
	if _, other := svc.Labels[LabelServiceProxyName]; other {
		return false
	}
	ips, _ := clusterIPs(svc)
	return len(ips) > 0
}

// Service renders an Eligible Service with all its EndpointSlices, as policies shape it and the
// cluster permits, in a version of the format. It returns the endpoints that were left out as
// problems, sorted, without duplicates, at most MaxProblems.
func Service(svc *corev1.Service, endpointSlices []*discoveryv1.EndpointSlice, shape Shape, in Cluster, formatVersion int32) (*v1alpha1.ServiceProxyRules, []Problem) {
	ips, fams := clusterIPs(svc)
	as := shaped(svc, fams, shape.Overrides)
	rules := &v1alpha1.ServiceProxyRules{
		ObjectMeta: metav1.ObjectMeta{
			Name: v1alpha1.ServiceProxyRulesName(svc.Namespace, svc.Name),
		},
		Spec: v1alpha1.ServiceProxyRulesSpec{
			FormatVersion:            formatVersion,
			ClusterIPs:               ips,
			ExternalIPs:              fams.addresses(as.externalIPs),
			LoadBalancerIPs:          fams.addresses(loadBalancerIPs(svc)),
			LoadBalancerSourceRanges: sourceRanges(as.sourceRanges),
			ExternalTrafficPolicy:    as.external,
			InternalTrafficPolicy:    as.internal,
			SessionAffinity:          as.affinity,
			HealthCheckNodePort:      healthCheckNodePort(svc),
			IPVSScheduler:            as.scheduler,
			Serving:                  as.serving,
			Policies:                 shape.Policies,
			PolicySummary:            PolicySummary(shape.Policies),
			PortSummary:              portSummary(as.ports),
		},
	}
	in.settleAddresses(&rules.Spec, as.ports)
	if newest := lastChange(endpointSlices); newest != "" {
		metav1.SetMetaDataAnnotation(&rules.ObjectMeta, v1alpha1.AnnotationLastChangeTriggerTime, newest)
	}
	winners, problems := mergeEndpoints(as.ports, endpointSlices, fams)
	rules.Spec.Ports = servicePorts(as.ports)
	rules.Spec.EndpointCount = winners.count()
	created := metav1.NewTime(svc.CreationTimestamp.Truncate(time.Second))
	if formatVersion == 1 {
		rules.Spec.ServiceCreated = created
		for i, p := range rules.Spec.Ports {
			rules.Spec.Ports[i].Endpoints = groups(winners[portKey{name: p.Name, protocol: p.Protocol}])
		}
		return rules, problems
	}
	if contestable(&rules.Spec) {
		rules.Spec.ServiceCreated = created
	}
	for _, policy := range []*v1alpha1.TrafficPolicy{&rules.Spec.ExternalTrafficPolicy, &rules.Spec.InternalTrafficPolicy} {
		if *policy == v1alpha1.TrafficPolicyCluster {
			*policy = "" // the default
		}
	}
	rules.Spec.Endpoints = groupsByTarget(winners)
	return rules, problems
}

// contestable reports whether another Service may claim an address and port of a Service: of a cluster
// IP, the Service that has it is the only one.
func contestable(rules *v1alpha1.ServiceProxyRulesSpec) bool {
	return len(rules.ExternalIPs)+len(rules.LoadBalancerIPs) > 0 || rules.HealthCheckNodePort != 0 ||
		slices.ContainsFunc(rules.Ports, func(p v1alpha1.ServicePort) bool { return p.NodePort != 0 })
}

// clusterIPs returns the Service's cluster IPs in canonical form, primary family first, and their
// families. An entry counts only for the family at its position in spec.ipFamilies.
func clusterIPs(svc *corev1.Service) ([]string, families) {
	fams := families{}
	if len(svc.Spec.IPFamilies) == 0 {
		addr, ok := parseAddr(svc.Spec.ClusterIP)
		if !ok {
			return nil, fams
		}
		fams[familyOf(addr)] = true
		return []string{addr.String()}, fams
	}
	var out []string
	for i, want := range svc.Spec.IPFamilies {
		if i >= len(svc.Spec.ClusterIPs) {
			break
		}
		addr, ok := parseAddr(svc.Spec.ClusterIPs[i])
		if !ok || familyOf(addr) != want || fams[want] {
			continue
		}
		fams[want] = true
		out = append(out, addr.String())
	}
	return out, fams
}

// OutsideIPs returns the external and load-balancer IPs that a Service names, rendered or not;
// empty if there are more than a Service may have.
func OutsideIPs(svc *corev1.Service) []netip.Addr {
	if len(svc.Spec.ExternalIPs)+len(svc.Status.LoadBalancer.Ingress) > v1alpha1.MaxServiceAddresses {
		return nil
	}
	return parsed(slices.Concat(svc.Spec.ExternalIPs, loadBalancerIPs(svc)), parseAddr)
}

// NodeIPs are all addresses of a Node.
func NodeIPs(node *corev1.Node) []netip.Addr {
	return parsed(slices.Concat(nodeAddresses(node, corev1.NodeInternalIP), nodeAddresses(node, corev1.NodeExternalIP)), parseAddr)
}

// loadBalancerIPs returns the ingress addresses that the nodes themselves serve.
func loadBalancerIPs(svc *corev1.Service) []string {
	var out []string
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP {
			out = append(out, ingress.IP)
		}
	}
	return out
}

// externalTrafficPolicy returns the effective policy: Local counts only if traffic from outside the
// cluster can arrive.
func externalTrafficPolicy(svc *corev1.Service) v1alpha1.TrafficPolicy {
	if svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return v1alpha1.TrafficPolicyCluster
	}
	switch svc.Spec.Type {
	case corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort:
		return v1alpha1.TrafficPolicyLocal
	case corev1.ServiceTypeClusterIP:
		if len(svc.Spec.ExternalIPs) > 0 {
			return v1alpha1.TrafficPolicyLocal
		}
	}
	return v1alpha1.TrafficPolicyCluster
}

// healthCheckNodePort depends on the Service alone: its load balancer checks that port even if
// policies make every node accept connections.
func healthCheckNodePort(svc *corev1.Service) int32 {
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer && externalTrafficPolicy(svc) == v1alpha1.TrafficPolicyLocal {
		return svc.Spec.HealthCheckNodePort
	}
	return 0
}

func internalTrafficPolicy(svc *corev1.Service) v1alpha1.TrafficPolicy {
	if ptr.Deref(svc.Spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal {
		return v1alpha1.TrafficPolicyLocal
	}
	return v1alpha1.TrafficPolicyCluster
}

func sessionAffinity(svc *corev1.Service) *v1alpha1.SessionAffinity {
	if svc.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return nil
	}
	seconds := defaultAffinitySeconds
	if c := svc.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		seconds = *c.ClientIP.TimeoutSeconds
	}
	return &v1alpha1.SessionAffinity{ClientIPTimeoutSeconds: seconds}
}

// portSummary lists ports in a human-readable form, such as 80:30080/TCP,53/UDP.
func portSummary(ports []corev1.ServicePort) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = strconv.Itoa(int(p.Port))
		if p.NodePort != 0 {
			texts[i] += ":" + strconv.Itoa(int(p.NodePort))
		}
		texts[i] += "/" + string(protocolOf(p))
	}
	return strings.Join(texts, ",")
}

func protocolOf(p corev1.ServicePort) v1alpha1.Protocol {
	return v1alpha1.Protocol(cmp.Or(p.Protocol, corev1.ProtocolTCP))
}

// lastChange returns the newest change time of the slices, as written there.
func lastChange(endpointSlices []*discoveryv1.EndpointSlice) string {
	var newest time.Time
	var text string
	for _, slice := range endpointSlices {
		s := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			continue
		}
		// Equal times may be written differently; the lower text decides.
		if c := t.Compare(newest); text == "" || c > 0 || c == 0 && s < text {
			newest, text = t, s
		}
	}
	return text
}

// portWinners are the endpoints of each port of a Service.
type portWinners map[portKey]map[netip.AddrPort]claim

// mergeEndpoints finds the winner of every endpoint in all slices of the Service's families. It
// ignores ports that the Service does not have, and slices without endpoints, whatever ports they have.
func mergeEndpoints(ports []corev1.ServicePort, endpointSlices []*discoveryv1.EndpointSlice, fams families) (portWinners, []Problem) {
	var problems problemList
	sizes := map[portKey]int{} // a slice need not have all ports
	usable := map[*discoveryv1.EndpointSlice][]slicePort{}
	for _, slice := range endpointSlices {
		if len(slice.Endpoints) == 0 {
			continue
		}
		switch fam := corev1.IPFamily(slice.AddressType); fam {
		case corev1.IPv4Protocol, corev1.IPv6Protocol:
			if !fams[fam] {
				continue
			}
		default:
			problems.report(Problem{Slice: slice.Name, Detail: fmt.Sprintf("addresses of type %q cannot be proxied", slice.AddressType)})
			continue
		}
		usable[slice] = usablePorts(slice, problems.report)
		for _, p := range usable[slice] {
			sizes[p.key] += len(slice.Endpoints)
		}
	}
	winners := make(portWinners, len(ports))
	for _, p := range ports {
		key := portKey{name: p.Name, protocol: protocolOf(p)}
		winners[key] = make(map[netip.AddrPort]claim, sizes[key])
	}
	for _, slice := range endpointSlices {
		sliced, found := usable[slice]
		if !found {
			continue
		}
		eachAddress(slice, problems.report, func(addr netip.Addr, c claim) {
			for _, p := range sliced {
				if of := winners[p.key]; of != nil {
					storeWinner(of, netip.AddrPortFrom(addr, p.number), c)
				}
			}
		})
	}
	return winners, problems.first()
}

// servicePorts renders the ports in the Service's order.
func servicePorts(ports []corev1.ServicePort) []v1alpha1.ServicePort {
	out := make([]v1alpha1.ServicePort, 0, len(ports))
	for _, p := range ports {
		out = append(out, v1alpha1.ServicePort{Name: p.Name, Protocol: protocolOf(p), Port: p.Port, NodePort: p.NodePort})
	}
	return out
}

// count returns the number of distinct endpoints that receive traffic.
func (w portWinners) count() int32 {
	distinct := map[netip.AddrPort]struct{}{}
	for _, winners := range w {
		for at, c := range winners {
			if _, takes := c.state(); takes {
				distinct[at] = struct{}{}
			}
		}
	}
	return int32(len(distinct))
}

// HasPolicyLocal reports whether a Service uses a traffic policy Local, which needs the local
// endpoints of nodes.
func HasPolicyLocal(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal ||
		internalTrafficPolicy(svc) == v1alpha1.TrafficPolicyLocal
}
