package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// TestThousandNodes: problems of many nodes fit on a screen, the worst and the oldest first,
// and none is missing.
func TestThousandNodes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	o := &cluster.Objects{Time: now, NodeProxy: &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNodesNotProgrammed},
	}}}}
	for i := range 1000 {
		reason, status := v1alpha1.ReasonRetained, metav1.ConditionTrue
		if i%2 == 0 {
			reason, status = v1alpha1.ReasonFailed, metav1.ConditionFalse
		}
		name := fmt.Sprintf("node-%03d", i)
		o.NodeRules = append(o.NodeRules, v1alpha1.NodeProxyRules{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1alpha1.NodeProxyRulesStatus{
				Conntrack: &v1alpha1.ConntrackReport{UsagePercent: int32(i % 80)},
				Conditions: []metav1.Condition{{
					Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: "of its own on " + name,
					LastTransitionTime: metav1.NewTime(now.Add(-time.Duration(i+1) * time.Second)),
				}},
			},
		})
	}
	r := Of(o)
	var out strings.Builder
	if err := r.Table(&out); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines > 25 {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
	if len(r.Findings) != 1000 || r.Findings[0].Reason != v1alpha1.ReasonFailed || r.Findings[999].Reason != v1alpha1.ReasonRetained {
		t.Fatalf("%d findings, the first is %+v", len(r.Findings), r.Findings[0])
	}
	for _, want := range []string{
		"1000: 500 Failed, 500 Retained", "\nFailed, 500 nodes for 16m\n  node-998: of its own on node-998\n", "\n  remedy: fix on the node", "\nWARNINGS\nRetained, 500 nodes\n",
		"and 497 more: node-992, node-990, node-988, node-986, node-984 and 492 more", "fullest: node-079 79%, node-159 79%, node-239 79%",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// TestRunning: without a controller the cluster is unhealthy, whatever the nodes report.
func TestRunning(t *testing.T) {
	t.Parallel()
	controller, agent := "nodeproxy-controller", "nodeproxy-agent"
	for name, c := range map[string]struct {
		pods     []corev1.Pod
		unread   []cluster.Unread
		ok       bool
		contains string
	}{
		"all run":                     {pods: []corev1.Pod{pod(controller, "node-9", "True"), pod(agent, "node-1", "True")}, ok: true, contains: "Everything is healthy."},
		"the controller is not ready": {pods: []corev1.Pod{pod(controller, "node-9", "False"), pod(agent, "node-1", "True")}, contains: "NoController\n  no pod of the controller is ready"},
		"no pod is ready":             {pods: []corev1.Pod{pod(controller, "node-9", "False"), pod(agent, "node-1", "False")}, contains: "AgentPodNotReady, 1 node"},
		"the agent is gone too":       {pods: []corev1.Pod{pod(controller, "node-9", "False")}, contains: "- AgentPodMissing of node node-1: the node has no pod of the agent"},
		"only agents":                 {pods: []corev1.Pod{pod(agent, "node-1", "True")}, contains: "no namespace has a pod of the controller"},
		"no pods":                     {ok: true, contains: "NOTES\n  no pod of nodeproxy found"},
		"unreadable pods":             {unread: []cluster.Unread{{Kind: cluster.Pods, Why: "you may not"}}, contains: "SKIPPED CHECKS\n  controller, nodes: you may not\n\nNo problems found, but some checks were skipped.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			is := func(what string) []metav1.Condition {
				return []metav1.Condition{{Type: what, Status: metav1.ConditionTrue, Reason: what}}
			}
			r := Of(&cluster.Objects{
				NodeProxy: &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Conditions: is(v1alpha1.ConditionReady)}},
				NodeRules: []v1alpha1.NodeProxyRules{{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: v1alpha1.NodeProxyRulesStatus{Conditions: is(v1alpha1.ConditionProgrammed)}}},
				Time:      time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), Pods: c.pods, Unread: c.unread,
			})
			var out strings.Builder
			if err := r.Table(&out); err != nil {
				t.Fatal(err)
			}
			if r.OK != c.ok || !strings.Contains(out.String(), c.contains) {
				t.Errorf("ok: %t, want %t and %q:\n%s", r.OK, c.ok, c.contains, out.String())
			}
		})
	}
}

// pod is a pod of nodeproxy.
func pod(program, node string, ready corev1.ConditionStatus) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "nodeproxy-system", Name: program + "-" + node, Labels: map[string]string{"app.kubernetes.io/name": program}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// of is a condition since a minute ago.
func of(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(noon().Add(-time.Minute))}
}

func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

// healthy is a healthy cluster of two nodes.
func healthy() *cluster.Objects {
	o := &cluster.Objects{Time: noon(), NodeProxy: &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{
		of(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonAllProgrammed, ""),
	}}}}
	for _, name := range []string{"node-1", "node-2"} {
		o.NodeRules = append(o.NodeRules, v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.NodeProxyRulesStatus{
			Conditions: []metav1.Condition{of(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, "")},
		}})
		o.Pods = append(o.Pods, pod("nodeproxy-agent", name, corev1.ConditionTrue))
	}
	o.Pods = append(o.Pods, pod("nodeproxy-controller", "node-1", corev1.ConditionTrue))
	return o
}

// writtenMinutesAgo is the annotation of an object written some minutes ago.
func writtenMinutesAgo(n time.Duration) map[string]string {
	return map[string]string{v1alpha1.AnnotationWritten: noon().Add(-n * time.Minute).Format(time.RFC3339)}
}

// TestReports: reports about states that no recorded cluster has.
func TestReports(t *testing.T) {
	t.Parallel()
	audit := func(o *cluster.Objects, message string) {
		for i := range o.NodeRules {
			o.NodeRules[i].Spec.Settings.Enforcement = new(v1alpha1.Audit)
			o.NodeRules[i].Status.Conditions = []metav1.Condition{of(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonAuditInSync, message)}
		}
	}
	for name, tt := range map[string]struct {
		edit func(o *cluster.Objects)
		ok   bool
		want string
	}{
		"healthy": {func(*cluster.Objects) {}, true, "\nEverything is healthy.\n"},
		"Audit beside another proxy": {
			func(o *cluster.Objects) { audit(o, "another proxy runs on this node (x)") }, true,
			"\nEverything is healthy; 2 nodes with enforcement Audit.\n",
		},
		"Audit on one node": {
			func(o *cluster.Objects) {
				audit(o, "another proxy runs on this node (x)")
				o.NodeRules = o.NodeRules[:1]
			}, true,
			"\nEverything is healthy; 1 node with enforcement Audit.\n",
		},
		"Audit without another proxy": {
			func(o *cluster.Objects) {
				audit(o, "enforcement is Audit: no program maintains the rules, start kube-proxy")
			}, false,
			"\nAuditWithoutProxy, 2 nodes\n  node-1, node-2: enforcement is Audit: no program maintains the rules, start kube-proxy\n",
		},
		"agents that are not deployed": {
			func(o *cluster.Objects) {
				o.NodeProxy.Status.Conditions = []metav1.Condition{
					of(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed, "node-2"),
					of(v1alpha1.ConditionAgentsDeployed, metav1.ConditionFalse, v1alpha1.ReasonAgentPodsFailing, "node-2: ImagePullBackOff"),
				}
			}, false,
			"\nPROBLEMS\nAgentPodsFailing for 60s\n  the agents are not deployed: node-2: ImagePullBackOff\n",
		},
		"another program that modifies rules": {
			func(o *cluster.Objects) {
				o.NodeRules[1].Status.Conditions = append(o.NodeRules[1].Status.Conditions, of(v1alpha1.ConditionDrifted, metav1.ConditionTrue, v1alpha1.ReasonRulesModified, "a firewall"))
			}, false,
			"\nPROBLEMS\nDrifted, 1 node for 60s\n  node-2: a firewall\n",
		},
		"a rollout that is paused": {
			func(o *cluster.Objects) {
				o.NodePolicies = []v1alpha1.NodeProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: v1alpha1.NodeProxyPolicyStatus{
					Nodes: 2, Programmed: 1, Conditions: []metav1.Condition{of(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused, "spec.rollout.paused is true")},
				}}}
			}, false,
			"\nINCOMPLETE CHANGES AND POLICIES\nnodeproxypolicy/edge: Paused, 1 of 2, for 60s\n  spec.rollout.paused is true\n",
		},
		"a sysctl that cannot be written": {
			func(o *cluster.Objects) {
				for i := range o.NodeRules {
					o.NodeRules[i].Status.Conditions[0].Message = "The desired state is programmed. Restrictions: a sysctl"
				}
			}, true,
			"NOTES\n  on node-1, node-2: programmed, with restrictions: a sysctl\n",
		},
		"rules that are not applied": {
			func(o *cluster.Objects) {
				n := &o.NodeRules[0]
				n.Generation, n.Status.ObservedGeneration, n.Annotations = 9, 5, writtenMinutesAgo(7)
			}, false,
			"\nPROBLEMS\nRulesNotApplied, 1 node for 7m\n  node-1: the node's rules changed more than a minute ago (generation 9), but its agent still reports older ones (generation 5)\n  remedy: check its pod and log: kubectl -n nodeproxy-system get pods -l app.kubernetes.io/name=nodeproxy-agent --field-selector spec.nodeName=node-1 -o wide, then",
		},
		"rules that have just changed": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Generation, o.NodeRules[0].Annotations = 9, writtenMinutesAgo(1)
			}, true,
			"\nEverything is healthy.\n",
		},
		"settings that are not applied": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Spec.SettingsRevision, o.NodeRules[0].Annotations = "new", writtenMinutesAgo(7)
			}, false,
			"\nPROBLEMS\nSettingsNotApplied, 1 node for 7m\n  node-1: the node's settings are not applied",
		},
		"Audit without another proxy, since a known time on one node only": {
			func(o *cluster.Objects) {
				audit(o, "enforcement is Audit: no program maintains the rules, start kube-proxy")
				o.NodeRules[1].Status.Conditions[0].Status = metav1.ConditionFalse
			}, false,
			"\nAuditWithoutProxy, 2 nodes\n  node-1, node-2: enforcement",
		},
		"Services that a node retains": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions[0] = of(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonRetained, "it holds one")
			}, false,
			"\nWARNINGS\nRetained, 1 node\n  node-1: it holds one\n",
		},
		"a node that is new": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions, o.NodeRules[0].CreationTimestamp = nil, metav1.NewTime(noon().Add(-time.Minute))
			}, true,
			"\nEverything is healthy; no report yet from 1 new node.\n\nNOTES\n  no report yet from 1 new node, where the agent's image may still be pulled: node-1\n",
		},
		"a new node that others wait for": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions, o.NodeRules[0].CreationTimestamp = nil, metav1.NewTime(noon().Add(-90*time.Second))
				o.NodeProxy.Status.Conditions = []metav1.Condition{
					of(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAgentPodsNotReady, "a pod waits"),
					of(v1alpha1.ConditionAgentsDeployed, metav1.ConditionFalse, v1alpha1.ReasonAgentPodsNotReady, "a pod waits"),
				}
				o.NodePolicies = []v1alpha1.NodeProxyPolicy{{Status: v1alpha1.NodeProxyPolicyStatus{
					Conditions: []metav1.Condition{of(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed, "one waits")},
				}}}
			}, true,
			"\nEverything is healthy; no report yet from 1 new node.\n",
		},
		"a node that is no longer new": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions, o.NodeRules[0].CreationTimestamp = nil, metav1.NewTime(noon().Add(-3*time.Minute))
			}, false,
			"\nPROBLEMS\nAgentNeverReported, 1 node for 3m\n",
		},
		"NodeProxy is deleted": {
			func(o *cluster.Objects) { o.NodeProxy = nil }, false,
			"changes of Services are still applied, but settings and policies stay as they are, and new nodes get no rules",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := healthy()
			tt.edit(o)
			r := Of(o)
			var out strings.Builder
			if err := r.Table(&out); err != nil {
				t.Fatal(err)
			}
			if r.OK != tt.ok || !strings.Contains(out.String(), tt.want) {
				t.Errorf("OK is %t, want %t and\n%s\nin\n%s", r.OK, tt.ok, tt.want, out.String())
			}
		})
	}
}

// TestConntrack: a nearly full table is a finding, with or without a condition.
func TestConntrack(t *testing.T) {
	t.Parallel()
	for percent, ok := range map[int32]bool{79: true, 80: false, 100: false} {
		r := Of(&cluster.Objects{
			NodeProxy: &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAllProgrammed},
			}}},
			NodeRules: []v1alpha1.NodeProxyRules{{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: v1alpha1.NodeProxyRulesStatus{
				Conntrack:  &v1alpha1.ConntrackReport{UsagePercent: percent, Entries: 9, Max: 10, Drop: 55},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed}},
			}}},
		})
		if r.OK != ok || !ok && (len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Message, "55 packets dropped")) {
			t.Errorf("%d%%: ok: %v, %+v", percent, r.OK, r.Findings)
		}
	}
}
