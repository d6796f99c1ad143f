package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

func TestHealthy(t *testing.T) {
	for _, service := range []string{"", "shop/web", "kube-system/kube-dns"} {
		r := newWorld().examine(t, service)
		if len(r.Findings) > 0 || len(r.NotMade) > 0 {
			t.Errorf("%q: want nothing:\n%s", service, text(t, r))
		}
		if !strings.Contains(text(t, r), "nothing is wrong\n") {
			t.Errorf("%q: the report does not say that nothing is wrong:\n%s", service, text(t, r))
		}
	}
}

func everything() v1alpha1.LabelSelector { return v1alpha1.LabelSelector{} }

// TestFaults plants faults in a cluster where all is well.
func TestFaults(t *testing.T) {
	for name, c := range map[string]struct {
		service string // to ask for; empty: all
		plant   func(w *world)
		want    string // the names of findings
		says    string // what the report has to say
	}{
		"no NodeProxy": {
			plant: func(w *world) { w.NodeProxy = nil },
			want:  "NoNodeProxy", says: "docs/install.md",
		},
		"being removed": {
			plant: func(w *world) {
				deleted := ago(time.Minute)
				w.NodeProxy.DeletionTimestamp = &deleted
				w.NodeProxy.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRemoving, "node-2 has not removed its rules")}
				w.ServiceRules = w.ServiceRules[:1]
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonRemoved, "removed"))
			},
			want: "Removing(InventoryDiffers Removed NotRendered)",
		},
		"settings refused": {
			plant: func(w *world) {
				w.NodeProxy.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonInvalidSettings, "settings.masquerade.bit")}
			},
			want: "InvalidSettings", says: "settings.masquerade.bit",
		},
		"inventory of another cluster": {
			plant: func(w *world) { w.NodeProxy.Status.Inventory.Services = 7 },
			want:  "ControllerBehind(InventoryDiffers)",
		},
		"a generation that nobody has seen": {
			plant: func(w *world) { w.NodeProxy.Generation = 2 },
			want:  "ControllerBehind(NodeProxyNotSeen)", says: "docs/troubleshooting.md#nodeproxycontrollerwithoutleader",
		},
		"a Service that the controller refuses": {
			plant: func(w *world) {
				w.NodeProxy.Status.Refused = []v1alpha1.RefusedService{{Namespace: "shop", Name: "web", Message: "larger than 1 MiB"}}
				w.NodeProxy.Status.RefusedServices = 1
				w.ServiceRules = w.ServiceRules[:1]
				w.NodeProxy.Status.Inventory = new(render.Inventory([]string{"kube-system.kube-dns"}))
				w.report(0)
				w.report(1)
			},
			want: "ServiceRefused", says: "larger than 1 MiB",
		},
		"DNS without pods": {
			plant: func(w *world) { w.removePods("kube-dns"); w.render() },
			want:  "NoPodMatches", says: "names do not resolve",
		},
		"DNS asked for by its name": {
			service: "kube-system/kube-dns",
			plant:   func(w *world) { w.removePods("kube-dns"); w.render() },
			want:    "NoPodMatches",
		},
		"no DNS": {
			plant: func(w *world) {
				w.Services, w.EndpointSlices = w.Services[1:], w.EndpointSlices[1:]
				w.render()
			},
			want: "NoDNSService", says: "looked for kube-system/kube-dns and for the label k8s-app=kube-dns",
		},
		"DNS without TCP": {
			plant: func(w *world) { w.service("kube-dns").Spec.Ports = w.service("kube-dns").Spec.Ports[:1]; w.render() },
			want:  "DNSPortMissing", says: "53/TCP",
		},
		"DNS of another proxy": {
			plant: func(w *world) { w.service("kube-dns").Labels[render.LabelServiceProxyName] = "other"; w.render() },
			want:  "DNSNotProxied",
		},
		"selector of nothing": {
			plant: func(w *world) {
				w.service("web").Spec.Selector = map[string]string{"app": "wbe"}
				w.slice("web").Endpoints = nil
				w.render()
			},
			want: "NoPodMatches", says: "app=wbe",
		},
		"no selector and no slices": {
			plant: func(w *world) {
				w.service("web").Spec.Selector = nil
				w.EndpointSlices = w.EndpointSlices[:1]
				w.render()
			},
			want: "NoEndpointSlices", says: "kubernetes.io/service-name=web",
		},
		"pods and no slices": {
			plant: func(w *world) { w.EndpointSlices = w.EndpointSlices[:1]; w.render() },
			want:  "EndpointSlicesMissing", says: "2 pods",
		},
		"no pod is ready": {
			plant: func(w *world) {
				for i := range w.slice("web").Endpoints {
					w.slice("web").Endpoints[i].Conditions.Ready = new(false)
					w.Pods[2+i].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "containers with unready status: [web]"}}
				}
				w.render()
			},
			want: "NoReadyEndpoint", says: "pod web-node-1: containers with unready status: [web] (and 1 more)",
		},
		"no pod starts": {
			plant: func(w *world) {
				w.slice("web").Endpoints = nil
				for i := range 2 {
					w.Pods[2+i].Status = corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{
						{Name: "web", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
					}}
				}
				w.render()
			},
			want: "NoReadyEndpoint", says: "container web: ImagePullBackOff",
		},
		"pods that end": {
			plant: func(w *world) {
				for i := range w.slice("web").Endpoints {
					w.slice("web").Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
				}
				w.render()
			},
			want: "OnlyTerminating",
		},
		"targetPort of no pod": {
			plant: func(w *world) {
				w.service("web").Spec.Ports[0].TargetPort = intstr.FromString("htpp")
				w.slice("web").Ports = nil
				w.render()
			},
			want: "PortWithoutEndpoint", says: `its targetPort "htpp" is the name of no port`,
		},
		"port name of no slice": {
			plant: func(w *world) {
				w.service("web").Spec.Selector = nil
				w.slice("web").Ports[0].Name = new("web")
				w.render()
			},
			want: "PortWithoutEndpoint", says: "port names of hand-written slices",
		},
		"no endpoint of a family": {
			plant: func(w *world) {
				s := &w.service("web").Spec
				s.ClusterIPs, s.IPFamilies = append(s.ClusterIPs, "fd00::20"), append(s.IPFamilies, corev1.IPv6Protocol)
				w.render()
			},
			want: "FamilyWithoutEndpoint", says: "fd00::20",
		},
		"address that cannot be one": {
			plant: func(w *world) {
				w.slice("web").Endpoints = append(w.slice("web").Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.1"}})
				w.render()
			},
			want: "EndpointsSkipped", says: `"10.244.1"`,
		},
		"Service of another proxy": {
			service: "shop/web",
			plant:   func(w *world) { w.service("web").Labels[render.LabelServiceProxyName] = "other"; w.render() },
			want:    "NotEligible", says: "kubectl label service -n shop web service.kubernetes.io/service-proxy-name-",
		},
		"not rendered": {
			plant: func(w *world) {
				w.ServiceRules = w.ServiceRules[:1]
				w.report(0)
				w.report(1)
			},
			want: "ControllerBehind(InventoryDiffers NotRendered)",
		},
		"rendered as it was": {
			plant: func(w *world) { w.service("web").Spec.Ports[0].Port = 81 },
			want:  "ControllerBehind(RenderedOtherwise)", says: "(ports)",
		},
		"rules of a Service that is gone": {
			plant: func(w *world) { w.Services = w.Services[:1] },
			want:  "ControllerBehind(StillRendered)",
		},
		"members of before": {
			plant: func(w *world) {
				w.node(1).Spec.Services = nil
				w.report(1)
			},
			want: "ControllerBehind(MembersOutOfDate)",
		},
		"agent that never reported": {
			plant: func(w *world) { w.node(1).Status = v1alpha1.NodeProxyRulesStatus{} },
			want:  "NeverReported",
		},
		"agent that is silent, and what follows": {
			plant: func(w *world) {
				w.set(1, is(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "no sign of life of the agent since 2026-03-01T11:55:00Z (its Lease)"))
				w.node(1).Status.SettingsRevision = "old"
				w.node(1).Status.Conntrack.UsagePercent = 90
				w.NodeProxy.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed, "node-2")}
				w.NodeProxy.Status.Nodes.Lagging = 1
			},
			want: "AgentNotResponding(NodesNotProgrammed AgentsLagging SettingsNotInForce ConntrackPressure)", says: "node node-2 since 2026-03-01T11:55:00Z (5m",
		},
		"agent that is too old": {
			plant: func(w *world) { w.node(0).Spec.FormatVersion = 2 },
			want:  "AgentTooOld", says: "docs/upgrade.md",
		},
		"settings that the node cannot do": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonUnsupported, "no ip_vs"))
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonFailed, "not accepted: no ip_vs"))
			},
			want: "NotAcceptedUnsupported",
		},
		"another proxy": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, "kube-proxy"))
				w.set(0, is(v1alpha1.ConditionConflictingProxy, metav1.ConditionTrue, v1alpha1.ReasonConflictingProxy, "kube-proxy"))
			},
			want: "ConflictingProxy", says: "kube-proxy",
		},
		"something that could not be done besides": {
			plant: func(w *world) {
				for i := range 2 {
					w.set(i, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "the kernel holds what is wanted; but: a sysctl"))
				}
			},
			says: "on node-1, node-2 all is as wanted, but: a sysctl",
		},
		"changes that wait": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonPending, "since"))
			},
			want: "Pending",
		},
		"Services held since their rules are gone": {
			plant: func(w *world) {
				w.ServiceRules = w.ServiceRules[:1]
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonHeld, "1 Service"))
				w.report(1)
			},
			want: "ControllerBehind(InventoryDiffers(Held) NotRendered)",
		},
		"Services held": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonHeld, "2 Services"))
			},
			want: "Held",
		},
		"a Service that the kernel refuses": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRefused, ""))
				w.node(0).Status.Refused = &v1alpha1.RefusedServices{Count: 1, Examples: []string{"shop/web: no SCTP"}}
			},
			want: "SomeServicesRefused", says: "Service shop/web, node node-1",
		},
		"another Service that the kernel refuses": {
			service: "kube-system/kube-dns",
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRefused, ""))
				w.node(0).Status.Refused = &v1alpha1.RefusedServices{Count: 1, Examples: []string{"shop/web: no SCTP"}}
			},
		},
		"Audit on both nodes": {
			plant: func(w *world) {
				for i := range 2 {
					w.node(i).Spec.Settings.Enforcement = new(v1alpha1.Audit)
					w.set(i, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonAuditInSync, ""))
				}
			},
			want: "Audit", says: "nodes node-1, node-2",
		},
		"another mode": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionModeFallback, metav1.ConditionTrue, v1alpha1.ReasonKernelLacksMode, ""))
			},
			want: "ModeFallback",
		},
		"rules undone": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionDrifted, metav1.ConditionTrue, v1alpha1.ReasonRulesUndone, "by a firewall"))
			},
			want: "Drifted", says: "by a firewall",
		},
		"rules repaired just now": {
			plant: func(w *world) { w.node(0).Status.Drift = &v1alpha1.DriftReport{Repairs: 1, LastTime: ago(time.Minute)} },
			want:  "RulesRepaired",
		},
		"rules repaired long ago": {
			plant: func(w *world) { w.node(0).Status.Drift = &v1alpha1.DriftReport{Repairs: 1, LastTime: ago(time.Hour)} },
		},
		"a kernel that differs": {
			plant: func(w *world) {
				w.node(0).Status.Difference = &v1alpha1.DifferenceReport{Count: 1, Examples: []string{"a rule"}}
			},
			want: "KernelDiffers",
		},
		"a node without rules": {
			plant: func(w *world) { w.Pods[0].Spec.NodeName = "node-3" },
			want:  "ControllerBehind(NodeRulesMissing)",
		},
		"Local where no pod is": {
			plant: func(w *world) {
				w.service("web").Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
				w.slice("web").Endpoints = w.slice("web").Endpoints[:1]
				w.render()
			},
			want: "LocalWithoutEndpoint", says: "node node-2",
		},
		"a Service without ports": {
			service: "shop/web",
			plant: func(w *world) {
				w.service("web").Spec.Ports = nil
				w.render()
			},
			want: "NotEligible", says: "it has no ports",
		},
		"external Local, and the load balancer can tell": {
			plant: func(w *world) {
				w.service("web").Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				w.service("web").Spec.HealthCheckNodePort = 32000
				w.slice("web").Endpoints = w.slice("web").Endpoints[:1]
				w.render()
			},
			says: "keeps away from them by asking the health check port 32000",
		},
		"external Local, and it cannot": {
			plant: func(w *world) {
				w.service("web").Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				w.slice("web").Endpoints = w.slice("web").Endpoints[:1]
				w.render()
			},
			want: "LocalWithoutHealthCheck",
		},
		"external Local, by node port and external IP alone": {
			plant: func(w *world) {
				w.service("web").Spec.Type = corev1.ServiceTypeNodePort
				w.service("web").Status = corev1.ServiceStatus{}
				w.service("web").Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				w.slice("web").Endpoints = w.slice("web").Endpoints[:1]
				w.render()
			},
			want: "ExternalLocalWithoutEndpoint", says: "node node-2",
		},
		"rules of a node that are not in force": {
			plant: func(w *world) { w.node(0).Generation = 2 },
			want:  "RulesNotInForce", says: "(generation 2), and its agent reports about older ones (generation 1)",
		},
		"rules of a node that have just changed": {
			plant: func(w *world) {
				w.node(0).Generation = 2
				w.node(0).ManagedFields = []metav1.ManagedFieldsEntry{{Time: new(ago(30 * time.Second))}, {Time: new(ago(time.Hour)), Subresource: "status"}}
			},
		},
		"rules of a node that changed a while ago": {
			plant: func(w *world) {
				w.node(0).Generation = 2
				w.node(0).ManagedFields = []metav1.ManagedFieldsEntry{{Time: new(ago(2 * time.Minute))}, {Time: new(ago(time.Second)), Subresource: "status"}}
				w.set(0, metav1.Condition{Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionFalse, LastTransitionTime: ago(time.Second)})
			},
			want: "RulesNotInForce",
		},
		"Services that are held, and refused ones": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRefused, ""))
				w.node(0).Status.Held = 3
			},
			want: "Held", says: "holds the rules of 3 Services",
		},
		"a family that is not programmed": {
			plant: func(w *world) { w.node(1).Status.Families = []string{"IPv6"} },
			want:  "FamilyNotProgrammed", says: "IPv4 is not programmed",
		},
		"a kernel that lags": {
			plant: func(w *world) {
				w.node(1).Status.AppliedResourceVersion = "6"
				w.ServiceRules[1].ResourceVersion = "10"
				w.ServiceRules[1].ManagedFields = []metav1.ManagedFieldsEntry{{Time: new(ago(11 * time.Minute))}}
				w.node(0).Status.AppliedResourceVersion = "10"
			},
			want: "AgentLags", says: "ServiceProxyRules shop.web have resourceVersion 10, and its kernel holds nothing newer than 6",
		},
		"a kernel of which that is not told yet": {
			plant: func(w *world) {
				w.ServiceRules[1].ResourceVersion = "10"
				w.ServiceRules[1].ManagedFields = []metav1.ManagedFieldsEntry{{Time: new(ago(4 * time.Minute))}}
			},
		},
		"other endpoints than are wanted": {
			plant: func(w *world) { w.node(0).Status.LocalEndpoints = 9 },
			want:  "ReportsOtherwise", says: "local endpoints: 2 wanted, 9 reported",
		},
		"another mode than is wanted": {
			plant: func(w *world) { w.node(0).Status.Mode = v1alpha1.ModeIPVS },
			want:  "ReportsOtherwise", says: "mode: IPTables wanted, IPVS reported",
		},
		"conntrack nearly full": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionConntrackPressure, metav1.ConditionTrue, v1alpha1.ReasonTableNearlyFull, ""))
				w.node(0).Status.Conntrack.UsagePercent = 75
			},
			want: "ConntrackPressure", says: "settings.conntrack.min (131072 now, such as to 262144)",
		},
		"a policy that makes no sense": {
			plant: func(w *world) {
				w.NodePolicies = []v1alpha1.NodeProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: v1alpha1.NodeProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidPolicy, "spec.settings")},
				}}}
			},
			want: "PolicyNotAccepted", says: "kubectl edit npp edge",
		},
		"two policies that make no sense together": {
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
					Conditions: []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonRolloutStopped, "node-2 has missed its deadline")},
				}}}
				w.set(1, is(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, ""))
			},
			want: "AgentNotResponding(RolloutStopped)",
		},
		"a change that is paused": {
			plant: func(w *world) {
				w.NodePolicies = []v1alpha1.NodeProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: v1alpha1.NodeProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused, "1 of 2")},
				}}}
			},
			want: "Paused",
		},
		"a policy that does nothing": {
			plant: func(w *world) {
				w.ServicePolicies = []v1alpha1.ServiceProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "ranges"}, Status: v1alpha1.ServiceProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionIneffective, metav1.ConditionTrue, v1alpha1.ReasonIneffective, "for Service shop/web")},
				}}}
				w.render()
			},
			want: "PolicyIneffective",
		},
		"node ports that a policy closes, and is not heard": {
			plant: func(w *world) {
				w.ServicePolicies = []v1alpha1.ServiceProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: v1alpha1.ServiceProxyPolicySpec{
					NamespaceSelector: everything(), ServiceSelector: everything(), Overrides: v1alpha1.ServiceOverrides{
						NodePorts: new(v1alpha1.Disabled), LoadBalancerSourceRanges: []string{"none"},
					},
				}, Status: v1alpha1.ServiceProxyPolicyStatus{
					Conditions: []metav1.Condition{is(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidPolicy, "loadBalancerSourceRanges[0]")},
				}}}
			},
			want: "PolicyNotAccepted(NotClosed)", says: "closes nodePorts",
		},
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
			want: "SourceRanges", says: "IPv6",
		},
		"node ports that a policy closes": {
			plant: func(w *world) {
				w.ServicePolicies = []v1alpha1.ServiceProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: v1alpha1.ServiceProxyPolicySpec{
					NamespaceSelector: everything(), ServiceSelector: everything(), Overrides: v1alpha1.ServiceOverrides{NodePorts: new(v1alpha1.Disabled)},
				}}}
				w.render()
			},
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
			want:  "NodeAddressTaken", says: "node node-2",
		},
		"external IP of another Service": {
			plant: func(w *world) {
				w.addService(&corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "late", CreationTimestamp: ago(time.Hour)},
					Spec: corev1.ServiceSpec{
						ClusterIP: "10.96.0.30", ClusterIPs: []string{"10.96.0.30"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
						ExternalIPs: []string{"198.51.100.20"}, Selector: map[string]string{"app": "late"},
						Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolTCP}},
					},
				}, "10.244.1.7", "10.244.2.7")
				w.render()
			},
			want: "AddressTaken", says: "that of the older Service shop/web",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			c.plant(w)
			r := w.examine(t, c.service)
			if got := names(r.Findings); got != c.want {
				t.Errorf("found %s, want %s:\n%s", got, c.want, text(t, r))
			}
			if said := text(t, r); !strings.Contains(said, c.says) {
				t.Errorf("the report does not say %q:\n%s", c.says, said)
			}
			for _, f := range flat(r.Findings) {
				if f.What == "" || f.Do == "" || f.Severity == "" || f.Check == "" {
					t.Errorf("a finding is not complete: %+v", f)
				}
			}
		})
	}
}

// TestServed: of the Service that is asked for it is told where it is served.
func TestServed(t *testing.T) {
	w := newWorld()
	w.slice("web").Endpoints[1].Conditions.Ready = new(false)
	w.service("web").Status.LoadBalancer.Ingress = nil
	w.render()
	said := text(t, w.examine(t, "shop/web"))
	for _, want := range []string{"1 of 2 endpoints take connections: 1 on node-1", "shop/web is of type LoadBalancer and has no address yet"} {
		if !strings.Contains(said, want) {
			t.Errorf("the report does not say %q:\n%s", want, said)
		}
	}
}

// TestPassing: what is gone, or has moved on, at the second look is no finding.
func TestPassing(t *testing.T) {
	for name, second := range map[string]func(w *world){
		"the rules are written meanwhile": func(w *world) { w.render() },
		"they are behind again, by another change": func(w *world) {
			w.render()
			w.ServiceRules[1].ResourceVersion = "8"
			w.service("web").Spec.Ports[0].Port = 82
		},
		"the Service is deleted, and so are its rules": func(w *world) {
			w.Services = w.Services[:1]
			w.Pods = w.Pods[:2]
			w.EndpointSlices = w.EndpointSlices[:1]
			w.render()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, later := newWorld(), newWorld()
			w.service("web").Spec.Ports[0].Port = 81
			later.service("web").Spec.Ports[0].Port = 81
			second(later)
			r, err := Examine(w.Objects, later.question(t))
			if err != nil || len(r.Findings) > 0 {
				t.Errorf("%v, want no finding:\n%s", err, text(t, r))
			}
		})
	}
	t.Run("they cannot be read again", func(t *testing.T) {
		w := newWorld()
		w.service("web").Spec.Ports[0].Port = 81
		gone := errors.New("the server is gone")
		q := w.question(t)
		q.Again = func() (*cluster.Objects, error) { return nil, gone }
		if _, err := Examine(w.Objects, q); !errors.Is(err, gone) {
			t.Errorf("error %v, want %v", err, gone)
		}
	})
}

func TestUnknownService(t *testing.T) {
	_, err := Examine(newWorld().Objects, Question{Service: &types.NamespacedName{Namespace: "shop", Name: "wbe"}})
	if !errors.Is(err, ErrNoService) || !strings.Contains(err.Error(), "shop/wbe") {
		t.Errorf("error %v", err)
	}
}

// TestUnread: what cannot be looked at is said, and the rest is found all the same.
func TestUnread(t *testing.T) {
	w := newWorld()
	w.removePods("web")
	w.render()
	w.Pods = nil
	w.Unread = []cluster.Unread{{Kind: cluster.Pods, Why: "you may not list pods"}, {Kind: cluster.NodeProxyPolicies, Why: "you may not list policies"}}
	r := w.examine(t, "")
	if got := names(r.Findings); got != "NoEndpoint" {
		t.Errorf("found %s", got)
	}
	var made []string
	for _, n := range r.NotMade {
		made = append(made, string(n.Check))
	}
	if got := strings.Join(made, " "); got != "endpoints policies" {
		t.Errorf("not made: %s", got)
	}
	if said := text(t, r); !strings.Contains(said, "you may not list pods") || !strings.Contains(said, "NOT LOOKED AT") {
		t.Errorf("the report does not say so:\n%s", said)
	}
}

// TestNewerFormat: rules of a newer release are not taken for wrong ones.
func TestNewerFormat(t *testing.T) {
	w := newWorld()
	w.ServiceRules[1].Spec.FormatVersion = 2
	r := w.examine(t, "")
	if len(r.Findings) > 0 || len(r.NotMade) != 1 || r.NotMade[0].Check != CheckRendering {
		t.Errorf("want only that rendering was not looked at:\n%s", text(t, r))
	}
}

// TestExposed lists the ways in.
func TestExposed(t *testing.T) {
	w := newWorld()
	w.service("web").Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"}
	w.node(1).Spec.Settings.NodePorts = &v1alpha1.NodePortSettings{AddressMode: new(v1alpha1.NodePortsPrimary)}
	w.render()
	var got []string
	for _, x := range w.examine(t, "").Exposed {
		got = append(got, strings.Join([]string{x.Service, x.Kind, x.Addresses, strings.Join(x.Ports, ","), x.Clients}, " | "))
	}
	want := []string{
		"shop/web | NodePort | every address of 1 node, the primary addresses of 1 node | 30080/TCP | everybody",
		"shop/web | ExternalIP | 198.51.100.20 | 80/TCP | everybody",
		"shop/web | LoadBalancerIP | 203.0.113.10 | 80/TCP | 192.0.2.0/24",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("exposed:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
