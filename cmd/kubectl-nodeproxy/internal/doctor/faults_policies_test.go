package doctor

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func everything() v1alpha1.LabelSelector { return v1alpha1.LabelSelector{} }

// policyFaults are faults of connection tracking and policies.
func policyFaults() map[string]planted {
	return map[string]planted{
		"conntrack nearly full": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionConntrackPressure, metav1.ConditionTrue, v1alpha1.ReasonTableNearlyFull, ""))
				w.node(0).Status.Conntrack.UsagePercent = 75
			},
			want: "ConntrackPressure", contains: "settings.conntrack.min (now 131072, for example to 262144)",
		},
		"conntrack nearly full, without a report": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionConntrackPressure, metav1.ConditionTrue, v1alpha1.ReasonTableNearlyFull, "90% in use"))
				w.node(0).Status.Conntrack = nil
			},
			want: "ConntrackPressure", contains: "drops new connections: 90% in use",
		},
		"an invalid policy": {
			plant: func(w *world) {
				w.NodePolicies = []v1alpha1.NodeProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: v1alpha1.NodeProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidPolicy, "spec.settings")},
				}}}
			},
			want: "PolicyNotAccepted", contains: "kubectl edit npp edge",
		},
		"two contradictory policies": {
			plant: func(w *world) {
				policy := func(name string, c metav1.Condition) v1alpha1.NodeProxyPolicy {
					return v1alpha1.NodeProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.NodeProxyPolicyStatus{Conditions: []metav1.Condition{c}}}
				}
				w.NodePolicies = []v1alpha1.NodeProxyPolicy{
					policy("often", is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed, "1 held back")),
					policy("seldom", is(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidResult, "with often")),
				}
			},
			want: "PolicyNotAccepted(NodesNotProgrammed)",
		},
		"a rollout that has stopped at a silent node": {
			plant: func(w *world) {
				w.NodePolicies = []v1alpha1.NodeProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: v1alpha1.NodeProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRolloutHalted, "node-2 has missed its deadline")},
				}}}
				w.set(1, is(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, ""))
			},
			want: "AgentNotResponding(RolloutHalted)",
		},
		"a change that is paused": {
			plant: func(w *world) {
				w.NodePolicies = []v1alpha1.NodeProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: v1alpha1.NodeProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused, "1 of 2")},
				}}}
			},
			want: "Paused",
		},
		"a policy without effect": {
			plant: func(w *world) {
				w.ServicePolicies = []v1alpha1.ServiceProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "ranges"}, Status: v1alpha1.ServiceProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionIneffective, metav1.ConditionTrue, v1alpha1.ReasonIneffective, "for Service shop/web")},
				}}}
				w.render()
			},
			want: "PolicyIneffective",
		},
		"node ports that a policy closes without effect": {
			plant: func(w *world) {
				w.ServicePolicies = []v1alpha1.ServiceProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: v1alpha1.ServiceProxyPolicySpec{
					NamespaceSelector: everything(), ServiceSelector: everything(), Overrides: v1alpha1.ServiceOverrides{
						NodePorts: new(v1alpha1.Disabled), LoadBalancerSourceRanges: []string{"none"},
					},
				}, Status: v1alpha1.ServiceProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidPolicy, "loadBalancerSourceRanges[0]")},
				}}}
			},
			want: "PolicyNotAccepted(PolicyNotApplied)", contains: "disables nodePorts",
		},
	}
}

// exposureFaults are faults of what clients outside can reach.
func exposureFaults() map[string]planted {
	return map[string]planted{
		"ranges of one family": {
			plant: func(w *world) {
				s := w.service("web")
				s.Spec.ClusterIPs, s.Spec.IPFamilies = append(s.Spec.ClusterIPs, "fd00::20"), append(s.Spec.IPFamilies, corev1.IPv6Protocol)
				s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: "2001:db8::10"})
				slice := *w.slice("web").DeepCopy()
				slice.AddressType, slice.Name = discoveryv1.AddressTypeIPv6, "web-6"
				slice.Endpoints[0].Addresses, slice.Endpoints[1].Addresses = []string{"fd01::5"}, []string{"fd02::5"}
				w.EndpointSlices = append(w.EndpointSlices, slice)
				w.render()
			},
			want: "SourceRanges", contains: "IPv6",
		},
		"node ports that a policy closes": {
			plant: func(w *world) {
				w.ServicePolicies = []v1alpha1.ServiceProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: v1alpha1.ServiceProxyPolicySpec{
					NamespaceSelector: everything(), ServiceSelector: everything(), Overrides: v1alpha1.ServiceOverrides{NodePorts: new(v1alpha1.Disabled)},
				}}}
				w.render()
			},
		},
		"node ports that a policy is about to close": {
			plant: func(w *world) {
				w.ServicePolicies = []v1alpha1.ServiceProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: v1alpha1.ServiceProxyPolicySpec{
					NamespaceSelector: everything(), ServiceSelector: everything(), Overrides: v1alpha1.ServiceOverrides{NodePorts: new(v1alpha1.Disabled)},
				}, Status: v1alpha1.ServiceProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonProgressing, "1 of 2 Services")},
				}}}
			},
			contains: "a change by ServiceProxyPolicy/closed is being rolled out: 1 of 2 Services",
		},
		"a policy for other Services": {
			service: "kube-system/kube-dns",
			plant: func(w *world) {
				w.ServicePolicies = []v1alpha1.ServiceProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.ServiceProxyPolicySpec{
					NamespaceSelector: everything(), ServiceSelector: v1alpha1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
				}, Status: v1alpha1.ServiceProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionIneffective, metav1.ConditionTrue, v1alpha1.ReasonIneffective, "for Service shop/web")},
				}}}
				w.render()
			},
		},
		"a headless Service for the pods of DNS": {
			plant: func(w *world) {
				w.addService(&corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns-pods", Labels: map[string]string{"k8s-app": "kube-dns"}},
					Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"k8s-app": "kube-dns"}, Ports: []corev1.ServicePort{{Port: 9153}}},
				})
				w.slice("kube-dns-pods").Labels[corev1.IsHeadlessService] = ""
				w.render()
			},
		},
		"a load balancer's address that is an external IP, too": {
			plant: func(w *world) { w.service("web").Spec.ExternalIPs = []string{"203.0.113.10"}; w.render() },
		},
		"external IP of a node": {
			plant: func(w *world) { w.service("web").Spec.ExternalIPs = []string{"172.20.0.12"}; w.render() },
			want:  "NodeAddressTaken", contains: "node node-2",
		},
		"external IP inside the service range": {
			plant: func(w *world) {
				w.service("web").Spec.ExternalIPs = []string{"198.51.100.20", "10.96.77.77"}
				w.render()
			},
			want: "AddressesSkipped", contains: "10.96.77.77 is inside the service range 10.96.0.0/16",
		},
		"external IP of another Service": {
			plant: func(w *world) {
				w.addService(withExternalIPOfWeb("late", time.Hour), "10.244.1.7", "10.244.2.7")
				w.render()
			},
			want: "AddressTaken", contains: "belongs to the older Service shop/web, which",
		},
		"external IP of a Service that is as old": {
			plant: func(w *world) {
				w.addService(withExternalIPOfWeb("xlate", 24*time.Hour), "10.244.1.7", "10.244.2.7")
				w.render()
			},
			want: "AddressTaken", contains: "belongs to the Service shop/web (equally old, and first by name), which gets",
		},
	}
}

// withExternalIPOfWeb adds a Service of an age that claims the external IP of shop/web.
func withExternalIPOfWeb(name string, age time.Duration) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: ago(age)},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.30", ClusterIPs: []string{"10.96.0.30"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			ExternalIPs: []string{"198.51.100.20"}, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
		},
	}
}
