package render

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// overrides reads overrides as users write them.
func overrides(t testing.TB, text string) *v1alpha1.ServiceOverrides {
	t.Helper()
	o := &v1alpha1.ServiceOverrides{}
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatal(err)
	}
	return o
}

// What Services of each type have, as the API server completes them.
func ofType(what corev1.ServiceType) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = what
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		s.Spec.Ports[0].NodePort = 30080
		if what == corev1.ServiceTypeLoadBalancer {
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
		}
	}
}

func localOutside(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func healthChecked(s *corev1.Service) { localOutside(s); s.Spec.HealthCheckNodePort = 31234 }

func externalIP(s *corev1.Service) {
	s.Spec.ExternalIPs = []string{"198.51.100.20"}
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
}

func dualStack(s *corev1.Service) {
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, "fd00:10:96::c7")
	s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "2001:db8::9"})
}

func ownRanges(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} }

func proxied(s *corev1.Service) {
	mode := corev1.LoadBalancerIPModeProxy
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9", IPMode: &mode}, {Hostname: "lb.example.com"}}
}

func withoutAddress(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil }

const (
	clusterIP    = corev1.ServiceTypeClusterIP
	nodePort     = corev1.ServiceTypeNodePort
	loadBalancer = corev1.ServiceTypeLoadBalancer
)

type spec = v1alpha1.ServiceProxyRulesSpec

// overrideCase is a Service, what overrides it, and how its rules then differ from what
// they are without.
type overrideCase struct {
	name      string
	service   []func(*corev1.Service)
	overrides string
	differ    func(*spec)
	// ineffective are the beginnings of the messages.
	ineffective []string
}

func overrideCases() []overrideCase {
	type edits = []func(*corev1.Service)
	noPorts := func(s *spec) { s.Ports[0].NodePort, s.PortSummary = 0, "80/TCP" }
	local := func(s *spec) { s.ExternalTrafficPolicy = "Local" }
	return []overrideCase{
		{name: "node ports of a NodePort", service: edits{ofType(nodePort)}, overrides: `{nodePorts: Disabled}`, differ: noPorts},
		{name: "node ports of a LoadBalancer: health checks stay", service: edits{ofType(loadBalancer), healthChecked}, overrides: `{nodePorts: Disabled}`, differ: noPorts},
		{name: "node ports of a ClusterIP", overrides: `{nodePorts: Disabled}`},
		{name: "node ports left to the Service", service: edits{ofType(nodePort)}, overrides: `{nodePorts: Enabled}`},
		{name: "external IPs", service: edits{externalIP}, overrides: `{externalIPs: Disabled}`, differ: func(s *spec) { s.ExternalIPs = nil }},
		{name: "external IPs where there are none", service: edits{ofType(nodePort)}, overrides: `{externalIPs: Disabled}`},
		{name: "external IPs left to the Service", service: edits{externalIP}, overrides: `{externalIPs: Enabled}`},

		{name: "ranges, canonical", service: edits{ofType(loadBalancer)}, overrides: `{loadBalancerSourceRanges: [198.51.100.7/24]}`,
			differ: func(s *spec) { s.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} }},
		{name: "ranges instead of the Service's", service: edits{ofType(loadBalancer), ownRanges}, overrides: `{loadBalancerSourceRanges: [198.51.100.0/24, 203.0.113.0/24]}`,
			differ: func(s *spec) { s.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "203.0.113.0/24"} }},
		{name: "a restriction is lifted", service: edits{ofType(loadBalancer), ownRanges}, overrides: `{loadBalancerSourceRanges: [0.0.0.0/0, "::/0"]}`,
			differ: func(s *spec) { s.LoadBalancerSourceRanges = nil }},
		{name: "ranges of both families", service: edits{ofType(loadBalancer), dualStack}, overrides: `{loadBalancerSourceRanges: [198.51.100.0/24, "2001:db8::/64"]}`,
			differ: func(s *spec) { s.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "2001:db8::/64"} }},
		{name: "ranges of one family only", service: edits{ofType(loadBalancer), dualStack}, overrides: `{loadBalancerSourceRanges: [198.51.100.0/24]}`,
			differ:      func(s *spec) { s.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} },
			ineffective: []string{"loadBalancerSourceRanges has no IPv6 range, so the IPv6 load-balancer addresses of this Service are open to every source"}},
		{name: "ranges before there is an address", service: edits{ofType(loadBalancer), withoutAddress}, overrides: `{loadBalancerSourceRanges: [198.51.100.0/24]}`,
			differ: func(s *spec) { s.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} }},
		{name: "ranges where nodes do not serve the address", service: edits{ofType(loadBalancer), proxied}, overrides: `{loadBalancerSourceRanges: [198.51.100.0/24]}`,
			differ:      func(s *spec) { s.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} },
			ineffective: []string{"loadBalancerSourceRanges restricts load-balancer addresses that nodes serve"}},
		{name: "ranges of a NodePort", service: edits{ofType(nodePort)}, overrides: `{loadBalancerSourceRanges: [198.51.100.0/24]}`,
			ineffective: []string{"loadBalancerSourceRanges only applies to Services of type LoadBalancer, not NodePort"}},
		{name: "ranges of a ClusterIP", overrides: `{loadBalancerSourceRanges: [198.51.100.0/24]}`,
			ineffective: []string{"loadBalancerSourceRanges only applies to Services of type LoadBalancer, not ClusterIP"}},
		{name: "ranges of an address left from another type", service: edits{ofType(loadBalancer), func(s *corev1.Service) { s.Spec.Type = nodePort }},
			overrides: `{loadBalancerSourceRanges: [198.51.100.0/24]}`,
			differ:    func(s *spec) { s.LoadBalancerSourceRanges = []string{"198.51.100.0/24"} }},

		{name: "Local inside", overrides: `{internalTrafficPolicy: Local}`, differ: func(s *spec) { s.InternalTrafficPolicy = "Local" }},
		{name: "Cluster inside", service: edits{func(s *corev1.Service) {
			local := corev1.ServiceInternalTrafficPolicyLocal
			s.Spec.InternalTrafficPolicy = &local
		}}, overrides: `{internalTrafficPolicy: Cluster}`, differ: func(s *spec) { s.InternalTrafficPolicy = "Cluster" }},

		{name: "Local outside, NodePort", service: edits{ofType(nodePort)}, overrides: `{externalTrafficPolicy: Local}`, differ: local},
		{name: "Local outside, ClusterIP with external IPs", service: edits{externalIP}, overrides: `{externalTrafficPolicy: Local}`, differ: local},
		{name: "Local outside, ClusterIP", overrides: `{externalTrafficPolicy: Local}`,
			ineffective: []string{"externalTrafficPolicy Local has no effect on this Service of type ClusterIP, because no traffic from outside can arrive: it has no node port, external IP or load-balancer IP"}},
		{name: "Local outside, where policies let nothing in", service: edits{ofType(nodePort)}, overrides: `{externalTrafficPolicy: Local, nodePorts: Disabled}`,
			differ: noPorts, ineffective: []string{"externalTrafficPolicy Local has no effect on this Service of type NodePort, because no traffic from outside can arrive: it has no node port, external IP or load-balancer IP except for what policies disable"}},
		{name: "Local outside, an address left from another type", overrides: `{externalTrafficPolicy: Local}`, differ: local,
			service: edits{ofType(loadBalancer), func(s *corev1.Service) { s.Spec.Type, s.Spec.Ports[0].NodePort = clusterIP, 0 }}},
		{name: "Local outside, where policies take the external IPs", service: edits{externalIP}, overrides: `{externalTrafficPolicy: Local, externalIPs: Disabled}`,
			differ:      func(s *spec) { s.ExternalIPs = nil },
			ineffective: []string{"externalTrafficPolicy Local has no effect on this Service of type ClusterIP, because no traffic from outside can arrive: it has no node port, external IP or load-balancer IP except for what policies disable"}},
		{name: "Local outside, without health checks", service: edits{ofType(loadBalancer)}, overrides: `{externalTrafficPolicy: Local}`,
			ineffective: []string{"externalTrafficPolicy Local cannot apply to a Service of type LoadBalancer without healthCheckNodePort"}},
		{name: "Local outside, without health checks or an address", service: edits{ofType(loadBalancer), withoutAddress}, overrides: `{externalTrafficPolicy: Local}`,
			ineffective: []string{"externalTrafficPolicy Local cannot apply to a Service of type LoadBalancer without healthCheckNodePort"}},
		{name: "Local outside, as in the Service", service: edits{ofType(loadBalancer), healthChecked}, overrides: `{externalTrafficPolicy: Local}`},
		{name: "Local outside, as in the Service, without health checks", service: edits{ofType(loadBalancer), localOutside}, overrides: `{externalTrafficPolicy: Local}`},
		{name: "Cluster outside: health checks stay", service: edits{ofType(loadBalancer), healthChecked}, overrides: `{externalTrafficPolicy: Cluster}`,
			differ: func(s *spec) { s.ExternalTrafficPolicy = "Cluster" }},
		{name: "Cluster outside, NodePort", service: edits{ofType(nodePort), localOutside}, overrides: `{externalTrafficPolicy: Cluster}`,
			differ: func(s *spec) { s.ExternalTrafficPolicy = "Cluster" }},
		{name: "Cluster outside, ClusterIP", overrides: `{externalTrafficPolicy: Cluster}`},

		{name: "session affinity", overrides: `{sessionAffinity: {clientIPTimeoutSeconds: 600}}`,
			differ: func(s *spec) { s.SessionAffinity = &v1alpha1.SessionAffinity{ClientIPTimeoutSeconds: 600} }},
		{name: "another session affinity", service: edits{func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }},
			overrides: `{sessionAffinity: {clientIPTimeoutSeconds: 600}}`,
			differ:    func(s *spec) { s.SessionAffinity.ClientIPTimeoutSeconds = 600 }},
		{name: "scheduler", overrides: `{ipvsScheduler: sh}`, differ: func(s *spec) { s.IPVSScheduler = "sh" }},
		{name: "nothing", service: edits{ofType(loadBalancer), healthChecked, ownRanges, externalIP}, overrides: `{}`},
	}
}

func TestOverrides(t *testing.T) {
	for _, c := range overrideCases() {
		t.Run(c.name, func(t *testing.T) {
			svc, o := service(c.service...), overrides(t, c.overrides)
			before := svc.DeepCopy()
			want, _ := Service(svc, crowd(3), Shape{}, Cluster{}, 1)
			want.Spec.Policies, want.Spec.PolicySummary = []string{"strong", "weak"}, "strong,weak"
			if c.differ != nil {
				c.differ(&want.Spec)
			}
			got, _ := Service(svc, crowd(3), Shape{Overrides: o, Policies: []string{"strong", "weak"}}, Cluster{}, 1)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, svc); diff != "" {
				t.Errorf("the Service has changed:\n%s", diff)
			}
			without := IneffectiveOverrides(svc, o)
			if len(without) != len(c.ineffective) {
				t.Fatalf("got %v, want %q", without, c.ineffective)
			}
			for i, text := range c.ineffective {
				if field, _, _ := strings.Cut(text, " "); without[i].Field != field || !strings.HasPrefix(without[i].Why, text) {
					t.Errorf("got %q, want %q", without[i], text)
				}
			}
		})
	}
}
