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

// TestThousandNodes: whatever is wrong with however many nodes, it is a screen or two, the
// worst and the oldest come first, and none is forgotten.
func TestThousandNodes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	o := &cluster.Objects{Time: now, NodeProxy: &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNodesNotProgrammed},
	}}}}
	for i := range 1000 {
		reason, status := v1alpha1.ReasonHeld, metav1.ConditionTrue
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
	r := Of(o, "v0.1.0")
	var out strings.Builder
	if err := r.Table(&out); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines > 25 {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
	if len(r.Problems) != 2 || len(r.Problems[0].Nodes) != 500 || len(r.Problems[1].Nodes) != 500 {
		t.Fatalf("problems: %+v", r.Problems)
	}
	if p := r.Problems[0]; p.What != "Programmed False: Failed" || p.Nodes[0].Name != "node-998" || p.Since != p.Nodes[0].Since {
		t.Errorf("first: %s, %+v", p.What, p.Nodes[0])
	}
	for _, want := range []string{
		"1000: 500 Failed, 500 Held", "Programmed False: Failed, 500 nodes for 16m",
		"and 497 more: node-992, node-990, node-988, node-986, node-984 and 492 more", "fullest: node-079 79%, node-159 79%, node-239 79%",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// TestRunning: without a controller it is not well, whatever the nodes have said.
func TestRunning(t *testing.T) {
	t.Parallel()
	controller, agent := "nodeproxy-controller", "nodeproxy-agent"
	for name, c := range map[string]struct {
		pods   []corev1.Pod
		unread []cluster.Unread
		well   bool
		says   string
	}{
		"all run":                {pods: []corev1.Pod{pod(controller, "node-9", "True"), pod(agent, "node-1", "True")}, well: true, says: "All is well."},
		"the controller is dead": {pods: []corev1.Pod{pod(controller, "node-9", "False"), pod(agent, "node-1", "True")}, says: "no controller runs\n  no pod of the controller is ready"},
		"all are dead":           {pods: []corev1.Pod{pod(controller, "node-9", "False"), pod(agent, "node-1", "False")}, says: "agent's pod not ready, 1 node"},
		"the agent is gone too":  {pods: []corev1.Pod{pod(controller, "node-9", "False")}, says: "no pod of the agent, 1 node"},
		"only agents":            {pods: []corev1.Pod{pod(agent, "node-1", "True")}, says: "there is no pod of the controller"},
		"no pods":                {well: true, says: "GOOD TO KNOW\nno pod of nodeproxy is in the cluster"},
		"not to be seen":         {unread: []cluster.Unread{{Kind: cluster.Pods, Why: "you may not"}}, says: "NOT LOOKED AT\nwhether a controller runs, and how the agents' pods are: you may not\n\nWell as far as could be seen.\n"},
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
			}, "v0.1.0")
			var out strings.Builder
			if err := r.Table(&out); err != nil {
				t.Fatal(err)
			}
			if r.Well != c.well || !strings.Contains(out.String(), c.says) {
				t.Errorf("well: %t, want %t and %q:\n%s", r.Well, c.well, c.says, out.String())
			}
		})
	}
}

// pod is one of nodeproxy.
func pod(program, node string, ready corev1.ConditionStatus) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "nodeproxy-system", Name: program + "-" + node, Labels: map[string]string{"app.kubernetes.io/name": program}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// of is a condition that came to be a minute ago.
func of(name string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: name, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(noon().Add(-time.Minute))}
}

func noon() time.Time { return time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC) }

// healthy is a cluster of two nodes in which all is well.
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

// writtenMinutesAgo notes when an object was written.
func writtenMinutesAgo(n time.Duration) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: noon().Add(-n * time.Minute)}}}
}

// TestReports: what is told of what no recorded cluster has.
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
		well bool
		want string
	}{
		"all is well": {func(*cluster.Objects) {}, true, "\nAll is well.\n"},
		"Audit beside another proxy": {
			func(o *cluster.Objects) { audit(o, "another proxy runs on this node (x)") }, true,
			"\nAll is well; 2 nodes only compare (Audit).\n",
		},
		"Audit on one node": {
			func(o *cluster.Objects) {
				audit(o, "another proxy runs on this node (x)")
				o.NodeRules = o.NodeRules[:1]
			}, true,
			"\nAll is well; 1 node only compares (Audit).\n",
		},
		"Audit beside nobody": {
			func(o *cluster.Objects) {
				audit(o, "enforcement is Audit: nobody maintains the rules, start kube-proxy")
			}, false,
			"\nAudit, and nothing else proxies, 2 nodes\n  node-1, node-2: enforcement is Audit: nobody maintains the rules, start kube-proxy\n",
		},
		"agents that are not deployed": {
			func(o *cluster.Objects) {
				o.NodeProxy.Status.Conditions = []metav1.Condition{
					of(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed, "node-2"),
					of(v1alpha1.ConditionAgentsDeployed, metav1.ConditionFalse, v1alpha1.ReasonAgentPodsFailing, "node-2: ImagePullBackOff"),
				}
			}, false,
			"\nNOT WELL\nNodeProxy AgentsDeployed False: AgentPodsFailing for 60s\n  node-2: ImagePullBackOff\n",
		},
		"somebody who undoes rules": {
			func(o *cluster.Objects) {
				o.NodeRules[1].Status.Conditions = append(o.NodeRules[1].Status.Conditions, of(v1alpha1.ConditionDrifted, metav1.ConditionTrue, v1alpha1.ReasonRulesUndone, "a firewall"))
			}, false,
			"\nNOT WELL\nDrifted True: RulesUndone, 1 node for 60s\n  node-2, for 60s: a firewall\n",
		},
		"a rollout that is paused": {
			func(o *cluster.Objects) {
				o.NodePolicies = []v1alpha1.NodeProxyPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "edge"}, Status: v1alpha1.NodeProxyPolicyStatus{
					Nodes: 2, Programmed: 1, Conditions: []metav1.Condition{of(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonPaused, "spec.rollout.paused is true")},
				}}}
			}, false,
			"\nCHANGES AND POLICIES THAT ARE NOT DONE\nnodeproxypolicy/edge: Paused, 1 of 2, for 60s\n  spec.rollout.paused is true\n",
		},
		"a sysctl that cannot be written": {
			func(o *cluster.Objects) {
				for i := range o.NodeRules {
					o.NodeRules[i].Status.Conditions[0].Message = "the kernel holds what is wanted; but: a sysctl"
				}
			}, true,
			"GOOD TO KNOW\non node-1, node-2: programmed, but: a sysctl\n",
		},
		"rules that are not in force": {
			func(o *cluster.Objects) {
				n := &o.NodeRules[0]
				n.Generation, n.Status.ObservedGeneration, n.ManagedFields = 9, 5, writtenMinutesAgo(7)
			}, false,
			"\nNOT WELL\nrules not in force, 1 node for 7m\n  node-1, for 7m: the node's rules changed more than a minute ago (generation 9), and its agent reports about older ones (generation 5); see its pod and log: kubectl get pods -A -l app.kubernetes.io/name=nodeproxy-agent -o wide, then",
		},
		"rules that have just changed": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Generation, o.NodeRules[0].ManagedFields = 9, writtenMinutesAgo(1)
			}, true,
			"\nAll is well.\n",
		},
		"settings that are not in force": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Spec.SettingsRevision, o.NodeRules[0].ManagedFields = "new", writtenMinutesAgo(7)
			}, false,
			"\nNOT WELL\nrules not in force, 1 node for 7m\n  node-1, for 7m: the node's settings are not in force",
		},
		"Audit beside nobody, of which one node alone says since when": {
			func(o *cluster.Objects) {
				audit(o, "enforcement is Audit: nobody maintains the rules, start kube-proxy")
				o.NodeRules[1].Status.Conditions[0].Status = metav1.ConditionFalse
			}, false,
			"\nAudit, and nothing else proxies, 2 nodes\n  node-1, node-2: enforcement",
		},
		"Services that a node holds": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions[0] = of(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonHeld, "it holds one")
			}, false,
			"\nNOT WELL\nProgrammed True: Held, 1 node\n  node-1: it holds one\n",
		},
		"a node that is new": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions, o.NodeRules[0].CreationTimestamp = nil, metav1.NewTime(noon().Add(-time.Minute))
			}, true,
			"\nAll is well; no agent has reported yet from 1 new node.\n\nGOOD TO KNOW\nnew, and no agent has reported from there yet, as its image may still be pulled: node-1\n",
		},
		"a node that is new, for which others wait": {
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
			"\nAll is well; no agent has reported yet from 1 new node.\n",
		},
		"a node that is new no more": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions, o.NodeRules[0].CreationTimestamp = nil, metav1.NewTime(noon().Add(-3*time.Minute))
			}, false,
			"\nNOT WELL\nno report of an agent, 1 node for 3m\n",
		},
		"NodeProxy is deleted": {
			func(o *cluster.Objects) { o.NodeProxy = nil }, false,
			"Services are still followed, but settings and policies stay as they are, and new nodes get no rules",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := healthy()
			tt.edit(o)
			r := Of(o, "v0.1.0")
			var out strings.Builder
			if err := r.Table(&out); err != nil {
				t.Fatal(err)
			}
			if r.Well != tt.well || !strings.Contains(out.String(), tt.want) {
				t.Errorf("well %t, want %t, and in it\n%s\nbut it is\n%s", r.Well, tt.well, tt.want, out.String())
			}
		})
	}
}

// TestConntrack: a full table is told of, whether its agent has said so or not, as the
// doctor does.
func TestConntrack(t *testing.T) {
	t.Parallel()
	for percent, well := range map[int32]bool{79: true, 80: false, 100: false} {
		r := Of(&cluster.Objects{
			NodeProxy: &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAllProgrammed},
			}}},
			NodeRules: []v1alpha1.NodeProxyRules{{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: v1alpha1.NodeProxyRulesStatus{
				Conntrack:  &v1alpha1.ConntrackReport{UsagePercent: percent, Entries: 9, Max: 10, Drop: 55},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed}},
			}}},
		}, "v0.1.0")
		if r.Well != well || !well && (len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Nodes[0].Message, "55 packets dropped")) {
			t.Errorf("%d %%: well: %v, %+v", percent, r.Well, r.Problems)
		}
	}
}
