package doctor

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// nodeFaults are faults of nodes.
func nodeFaults() map[string]planted {
	return map[string]planted{
		"agent that never reported": {
			plant: func(w *world) { w.node(1).Status = v1alpha1.NodeProxyRulesStatus{} },
			want:  "AgentNeverReported",
		},
		"silent agent with consequences": {
			plant: func(w *world) {
				w.set(1, is(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, v1alpha1.MessageSilentSince+"2026-03-01T11:55:00Z (its Lease)"))
				w.node(1).Status.SettingsRevision = "old"
				w.node(1).Status.Conntrack.UsagePercent = 90
				w.NodeProxy.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed, "node-2")}
				w.NodeProxy.Status.Nodes.Lagging = 1
			},
			want: "AgentNotResponding(NodesNotProgrammed AgentsLagging SettingsNotApplied ConntrackPressure)", contains: "node node-2 since 2026-03-01T11:55:00Z (5m",
		},
		"agent that is too old": {
			plant: func(w *world) { w.node(0).Spec.FormatVersion = 2 },
			want:  "AgentTooOld", contains: "your agents' DaemonSet",
		},
		"settings that the node cannot apply": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonUnsupported, "no ip_vs"))
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonFailed, "not accepted: no ip_vs"))
			},
			want: "Unsupported",
		},
		"another proxy": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, "kube-proxy"))
				w.set(0, is(v1alpha1.ConditionConflictingProxy, metav1.ConditionTrue, v1alpha1.ReasonConflictingProxy, "kube-proxy"))
			},
			want: "ConflictingProxy", contains: "kube-proxy",
		},
		"programmed with restrictions": {
			plant: func(w *world) {
				for i := range 2 {
					w.set(i, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "The desired state is programmed. Restrictions: a sysctl"))
				}
			},
			contains: "on node-1, node-2: programmed, with restrictions: a sysctl",
		},
		"changes that wait": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonPending, "since"))
			},
			want: "Pending",
		},
		"Services retained because their rules are gone": {
			plant: func(w *world) {
				w.ServiceRules = w.ServiceRules[:1]
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonRetained, "1 Service"))
				w.report(1)
			},
			want: "ControllerBehind(InventoryDiffers(Retained) NotRendered)",
		},
		"Services retained": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonRetained, "2 Services"))
			},
			want: "Retained", contains: "WARNING Retained of node node-1\n",
		},
		"a Service that the kernel rejects": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRejected, ""))
				w.node(0).Status.Rejected = &v1alpha1.RejectedServices{Count: 1, Examples: []string{"shop/web: no SCTP"}}
			},
			want: "SomeServicesRejected", contains: "Service shop/web, node node-1\n",
		},
		"another Service that the kernel rejects": {
			service: "kube-system/kube-dns",
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRejected, ""))
				w.node(0).Status.Rejected = &v1alpha1.RejectedServices{Count: 1, Examples: []string{"shop/web: no SCTP"}}
			},
		},
		"Audit on both nodes": {
			plant: func(w *world) {
				for i := range 2 {
					w.node(i).Spec.Settings.Enforcement = new(v1alpha1.Audit)
					w.set(i, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonAuditInSync, ""))
				}
			},
			want: "Audit", contains: "WARNING Audit of nodes node-1, node-2\n",
		},
		"another mode": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionModeFallback, metav1.ConditionTrue, v1alpha1.ReasonKernelLacksMode, ""))
			},
			want: "ModeFallback",
		},
		"rules modified": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionDrifted, metav1.ConditionTrue, v1alpha1.ReasonRulesModified, "by a firewall"))
			},
			want: "Drifted", contains: "by a firewall",
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
		"a Windows node, known by one of its pods": {
			plant: func(w *world) {
				for i := range 2 {
					pod := *w.Pods[2].DeepCopy()
					pod.Name, pod.Spec.NodeName, pod.Labels = fmt.Sprint("windows-", i), "node-9", nil
					w.Pods = append(w.Pods, pod)
				}
				w.Pods[len(w.Pods)-1].Spec.NodeSelector = map[string]string{corev1.LabelOSStable: string(corev1.Windows)}
			},
		},
		"a node without rules": {
			plant: func(w *world) { w.Pods[0].Spec.NodeName = "node-3" },
			want:  "ControllerBehind(NodeRulesMissing)",
		},
		"agent that is too old, and the controller runs it": {
			plant: func(w *world) {
				w.NodeProxy.Spec.Agent = &v1alpha1.AgentSettings{Management: new(v1alpha1.AgentManaged)}
				w.node(0).Spec.FormatVersion = 2
			},
			want: "AgentTooOld", contains: "clear spec.agent.image of the NodeProxy",
		},
		"Audit, and no proxy maintains the rules": {
			plant: func(w *world) {
				w.node(0).Spec.Settings.Enforcement = new(v1alpha1.Audit)
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonAuditInSync, "enforcement is Audit: no program maintains the rules, start kube-proxy"))
			},
			want: "AuditWithoutProxy", contains: "no program maintains the rules, start kube-proxy",
		},
		"silent agents of many nodes are one finding": {
			plant: func(w *world) {
				for i := range 2 {
					w.set(i, is(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, ""))
				}
			},
			want: "AgentNotResponding", contains: "check its pod and log: kubectl -n nodeproxy-system get pods -l app.kubernetes.io/name=nodeproxy-agent -o wide, then",
		},
		"an agent of nodeproxy in a namespace of its own that is silent": {
			plant: func(w *world) {
				w.Pods = append(w.Pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "operators", Name: "x", Labels: map[string]string{"app.kubernetes.io/name": "nodeproxy-controller"}},
					Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}})
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, ""))
			},
			want: "AgentNotResponding", contains: "kubectl -n operators get pods -l app.kubernetes.io/name=nodeproxy-agent --field-selector spec.nodeName=node-1 -o wide, then kubectl -n operators logs POD --tail=20",
		},
		"rules of a node that are not applied": {
			plant: func(w *world) { w.node(0).Generation = 2 },
			want:  "RulesNotApplied", contains: "(generation 2), but its agent still reports older ones (generation 1)",
		},
		"settings of a node that are not applied": {
			plant: func(w *world) { w.node(0).Spec.SettingsRevision = "new" },
			want:  "SettingsNotApplied",
		},
		"settings of a node that have just changed": {
			plant: func(w *world) {
				w.node(0).Spec.SettingsRevision, w.node(0).Generation = "new", 2
				w.node(0).Annotations = written(5 * time.Second)
			},
		},
		"rules of a node that have just changed": {
			plant: func(w *world) {
				w.node(0).Generation = 2
				w.node(0).Annotations = written(30 * time.Second)
			},
		},
		"rules of a node that changed a while ago": {
			plant: func(w *world) {
				w.node(0).Generation = 2
				w.node(0).Annotations = written(2 * time.Minute)
				w.set(0, metav1.Condition{Type: v1alpha1.ConditionDrifted, Status: metav1.ConditionFalse, LastTransitionTime: ago(time.Second)})
			},
			want: "RulesNotApplied",
		},
		"Services that are retained, and rejected ones": {
			plant: func(w *world) {
				w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRejected, ""))
				w.node(0).Status.Retained = 3
			},
			want: "Retained", contains: "retains the rules of 3 Services",
		},
		"a family that is not programmed": {
			plant: func(w *world) { w.node(1).Status.Families = []string{"IPv6"} },
			want:  "FamilyNotProgrammed", contains: "IPv4 is not programmed",
		},
		"a kernel that lags": {
			plant: func(w *world) {
				w.node(1).Status.AppliedResourceVersion = "6"
				w.ServiceRules[1].ResourceVersion = "10"
				w.ServiceRules[1].Annotations = written(11 * time.Minute)
				w.node(0).Status.AppliedResourceVersion = "10"
			},
			want: "ChangesNotApplied", contains: "ServiceProxyRules shop.web have resourceVersion 10, but its kernel has nothing newer than 6",
		},
		"a kernel whose agent has not reported yet": {
			plant: func(w *world) {
				w.ServiceRules[1].ResourceVersion = "10"
				w.ServiceRules[1].Annotations = written(4 * time.Minute)
			},
		},
		"other endpoints than desired": {
			plant: func(w *world) { w.node(0).Status.LocalEndpoints = 9 },
			want:  "StatusDiffers", contains: "local endpoints: 2 desired, 9 reported",
		},
		"another mode than desired": {
			plant: func(w *world) { w.node(0).Status.Mode = v1alpha1.ModeIPVS },
			want:  "StatusDiffers", contains: "mode: IPTables desired, IPVS reported",
		},
	}
}

// trafficPolicyFaults are faults of traffic policies.
func trafficPolicyFaults() map[string]planted {
	return map[string]planted{
		"Local without pods": {
			plant: func(w *world) {
				w.service("web").Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
				w.slice("web").Endpoints = w.slice("web").Endpoints[:1]
				w.render()
			},
			want: "LocalWithoutEndpoint", contains: "node node-2",
		},
		"Local with only a terminating pod": {
			plant: func(w *world) {
				w.service("web").Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
				w.slice("web").Endpoints[1].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
				w.render()
			},
		},
		"Local on a node that is new": {
			plant: func(w *world) {
				w.service("web").Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
				w.addNode("node-3", "172.20.0.13")
				w.render()
				w.node(2).CreationTimestamp, w.node(2).Status = ago(10*time.Second), v1alpha1.NodeProxyRulesStatus{}
			},
			contains: "no report yet from 1 new node, where the agent's image may still be pulled: node-3",
		},
		"external Local, and the load balancer has a health check": {
			plant: func(w *world) {
				w.service("web").Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				w.service("web").Spec.HealthCheckNodePort = 32000
				w.slice("web").Endpoints = w.slice("web").Endpoints[:1]
				w.render()
			},
			contains: "avoids the node by health check port 32000",
		},
		"external Local, and the load balancer has no health check": {
			plant: func(w *world) {
				w.service("web").Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				w.slice("web").Endpoints = w.slice("web").Endpoints[:1]
				w.render()
			},
			want: "LocalWithoutHealthCheck",
		},
		"a Service without ports": {
			service: "shop/web",
			plant: func(w *world) {
				w.service("web").Spec.Ports = nil
				w.render()
			},
			want: "NotEligible", contains: "it has no ports",
		},
		"external Local, by node port and external IP alone": {
			plant: func(w *world) {
				w.service("web").Spec.Type = corev1.ServiceTypeNodePort
				w.service("web").Status = corev1.ServiceStatus{}
				w.service("web").Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
				w.slice("web").Endpoints = w.slice("web").Endpoints[:1]
				w.render()
			},
			want: "ExternalLocalWithoutEndpoint", contains: "node node-2",
		},
	}
}
