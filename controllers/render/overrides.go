package render

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Shape is what policies change in a Service. The zero value changes nothing.
type Shape struct {
	Overrides *v1alpha1.ServiceOverrides
	Policies  []string // whose overrides these are, the strongest first
}

// IneffectiveOverride is an override without effect on a Service, or on part of it.
type IneffectiveOverride struct {
	Field string // its name in JSON
	Why   string // begins with the field
}

// IneffectiveOverrides returns the overrides without effect on a Service, except for what the Service
// itself already sets or does not have.
func IneffectiveOverrides(svc *corev1.Service, o *v1alpha1.ServiceOverrides) []IneffectiveOverride {
	_, fams := clusterIPs(svc)
	return shaped(svc, fams, o).ineffective
}

// LimitExceededWith returns which limit a Service exceeds with overrides, whatever its endpoints are;
// empty: none.
func LimitExceededWith(svc *corev1.Service, o *v1alpha1.ServiceOverrides) string {
	_, fams := clusterIPs(svc)
	s, balancers := shaped(svc, fams, o), len(loadBalancerIPs(svc))
	limit, _ := v1alpha1.ServiceSize{
		Ports: len(s.ports), Addresses: len(s.externalIPs) + balancers, LoadBalancerIPs: balancers, SourceRanges: len(s.sourceRanges),
	}.Excess()
	return limit
}

// shapedService is a Service after overrides.
type shapedService struct {
	ports        []corev1.ServicePort
	externalIPs  []string
	sourceRanges []string
	external     v1alpha1.TrafficPolicy
	internal     v1alpha1.TrafficPolicy
	affinity     *v1alpha1.SessionAffinity
	scheduler    string
	serving      v1alpha1.Serving // empty for the kernel
	ineffective  []IneffectiveOverride
}

// shaped applies overrides, nil for none, to a Service.
func shaped(svc *corev1.Service, fams families, o *v1alpha1.ServiceOverrides) shapedService {
	s := shapedService{
		ports: svc.Spec.Ports, externalIPs: svc.Spec.ExternalIPs, sourceRanges: svc.Spec.LoadBalancerSourceRanges,
		external: externalTrafficPolicy(svc), internal: internalTrafficPolicy(svc), affinity: sessionAffinity(svc),
	}
	if o == nil {
		return s
	}
	if ptr.Deref(o.NodePorts, "") == v1alpha1.Disabled {
		s.ports = slices.Clone(s.ports)
		for i := range s.ports {
			s.ports[i].NodePort = 0
		}
	}
	if ptr.Deref(o.ExternalIPs, "") == v1alpha1.Disabled {
		s.externalIPs = nil
	}
	if o.LoadBalancerSourceRanges != nil {
		s.overrideRanges(svc, fams, o.LoadBalancerSourceRanges)
	}
	if o.ExternalTrafficPolicy != nil {
		s.overrideExternal(svc, *o.ExternalTrafficPolicy)
	}
	s.internal = ptr.Deref(o.InternalTrafficPolicy, s.internal)
	if o.SessionAffinity != nil {
		s.affinity = &v1alpha1.SessionAffinity{ClientIPTimeoutSeconds: o.SessionAffinity.ClientIPTimeoutSeconds}
	}
	s.scheduler = ptr.Deref(o.IPVSScheduler, "")
	if ptr.Deref(o.Serving, "") == v1alpha1.ServingUserspace {
		s.serveInUserspace()
	}
	return s
}

// serveInUserspace has agents serve the Service themselves, except for SCTP.
func (s *shapedService) serveInUserspace() {
	const name = "serving"
	sctp := 0
	for _, p := range s.ports {
		if p.Protocol == corev1.ProtocolSCTP {
			sctp++
		}
	}
	if sctp > 0 {
		s.without(name, "Userspace has no effect on ports with protocol SCTP, which the kernel serves")
	}
	if sctp < len(s.ports) {
		s.serving = v1alpha1.ServingUserspace
	}
}

func (s *shapedService) without(field, format string, args ...any) {
	s.ineffective = append(s.ineffective, IneffectiveOverride{Field: field, Why: field + " " + fmt.Sprintf(format, args...)})
}

// overrideRanges replaces the Service's ranges. They apply to load-balancer addresses that the
// nodes serve, whatever the type of the Service.
func (s *shapedService) overrideRanges(svc *corev1.Service, fams families, ranges []string) {
	const name = "loadBalancerSourceRanges"
	served := fams.addresses(loadBalancerIPs(svc))
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer && len(served) == 0 {
		s.without(name, "only applies to Services of type LoadBalancer, not %s", typeOf(svc))
		return
	}
	s.sourceRanges = ranges
	if len(served) == 0 && len(svc.Status.LoadBalancer.Ingress) > 0 { // none at all: it has none yet
		s.without(name, "restricts load-balancer addresses that nodes serve, and this Service has none: status.loadBalancer.ingress contains host names, or addresses with ipMode Proxy, so only the load balancer can restrict clients")
		return
	}
	for _, f := range openFamilies(served, ranges) {
		s.without(name, "has no %s range, so the %s load-balancer addresses of this Service are open to every source: add one", f, f)
	}
}

// overrideExternal replaces the Service's external policy, unless that would lose connections or have
// no effect.
func (s *shapedService) overrideExternal(svc *corev1.Service, policy v1alpha1.TrafficPolicy) {
	const name = "externalTrafficPolicy"
	switch {
	case policy == s.external:
	case policy == v1alpha1.TrafficPolicyCluster:
		s.external = policy
	case svc.Spec.Type == corev1.ServiceTypeLoadBalancer && svc.Spec.HealthCheckNodePort == 0:
		s.without(name, "Local cannot apply to a Service of type LoadBalancer without healthCheckNodePort: its load balancer would still send traffic to nodes without an endpoint, which drop it. Set externalTrafficPolicy in the Service itself, which assigns a healthCheckNodePort")
	case !s.reachable(svc):
		s.without(name, "Local has no effect on this Service of type %s, because no traffic from outside can arrive: it has no node port, external IP or load-balancer IP%s", typeOf(svc), s.closed(svc))
	default:
		s.external = policy
	}
}

// reachable reports whether traffic from outside can arrive after the overrides. A load balancer
// without an address will get one.
func (s *shapedService) reachable(svc *corev1.Service) bool {
	return svc.Spec.Type == corev1.ServiceTypeLoadBalancer || len(s.externalIPs) > 0 || len(loadBalancerIPs(svc)) > 0 || hasNodePorts(s.ports)
}

// closed is a suffix for messages if policies have disabled something by which connections arrive.
func (s *shapedService) closed(svc *corev1.Service) string {
	if len(svc.Spec.ExternalIPs) > len(s.externalIPs) || hasNodePorts(svc.Spec.Ports) && !hasNodePorts(s.ports) {
		return " except for what policies disable"
	}
	return ""
}

func hasNodePorts(ports []corev1.ServicePort) bool {
	return slices.ContainsFunc(ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 })
}

// typeOf returns the type of a Service, with the API server's default.
func typeOf(svc *corev1.Service) corev1.ServiceType {
	return cmp.Or(svc.Spec.Type, corev1.ServiceTypeClusterIP)
}
