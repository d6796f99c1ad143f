package doctor

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// runPods adds the pods of nodeproxy itself, all of them ready.
func (w *world) runPods() {
	for name, of := range map[string][]string{"nodeproxy-controller": {"node-1"}, "nodeproxy-agent": {"node-1", "node-2"}} {
		for _, node := range of {
			w.Pods = append(w.Pods, corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "nodeproxy-system", Name: name + "-" + node, Labels: map[string]string{"app.kubernetes.io/name": name}, CreationTimestamp: ago(time.Hour)},
				Spec:       corev1.PodSpec{NodeName: node},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
			})
		}
	}
}

// pod finds one of nodeproxy's pods.
func (w *world) pod(name string) *corev1.Pod {
	for i := range w.Pods {
		if w.Pods[i].Name == name {
			return &w.Pods[i]
		}
	}
	return &corev1.Pod{}
}

func (w *world) delete(name string) {
	var remaining []corev1.Pod
	for _, pod := range w.Pods {
		if pod.Name != name {
			remaining = append(remaining, pod)
		}
	}
	w.Pods = remaining
}

// waits makes a container of a pod wait for a reason, for five minutes.
func waits(pod *corev1.Pod, reason string) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: ago(5 * time.Minute)}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
}

// TestPods: pods show what runs, because only a controller would detect that others are gone.
func TestPods(t *testing.T) {
	silent := is(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "")
	for name, c := range map[string]struct {
		plant          func(w *world)
		want, contains string
	}{
		"all run": {plant: func(*world) {}},
		"the only pod of the controller crashes": {
			plant: func(w *world) { waits(w.pod("nodeproxy-controller-node-1"), "CrashLoopBackOff") },
			want:  "NoController", contains: "pod nodeproxy-system/nodeproxy-controller-node-1 container main: CrashLoopBackOff",
		},
		"another pod of the controller is ready": {
			plant: func(w *world) {
				other := *w.pod("nodeproxy-controller-node-1").DeepCopy()
				other.Name = "other"
				waits(&other, "CrashLoopBackOff")
				w.Pods = append(w.Pods, other)
			},
		},
		"the controller is scaled to zero, and a change waits": {
			plant: func(w *world) {
				w.delete("nodeproxy-controller-node-1")
				w.service("web").Spec.Ports[0].Port = 81
			},
			want: "NoController(ControllerBehind(RenderedOutdated))", contains: "no namespace has a pod of the controller",
		},
		"the controller is terminating": {
			plant: func(w *world) { w.pod("nodeproxy-controller-node-1").DeletionTimestamp = new(ago(0)) },
			want:  "NoController",
		},
		"no pods left, but a condition shows that there were some": {
			plant: func(w *world) {
				for _, name := range []string{"nodeproxy-controller-node-1", "nodeproxy-agent-node-1", "nodeproxy-agent-node-2"} {
					w.delete(name)
				}
				w.NodeProxy.Status.Conditions = append(w.NodeProxy.Status.Conditions, is(v1alpha1.ConditionAgentsDeployed, metav1.ConditionTrue, v1alpha1.ReasonAgentsUpToDate, ""))
			},
			want: "NoController(AgentPodMissing)", contains: "AgentPodMissing of nodes node-1, node-2",
		},
		"a controller and agents outside the cluster": {
			plant: func(w *world) {
				for _, name := range []string{"nodeproxy-controller-node-1", "nodeproxy-agent-node-1", "nodeproxy-agent-node-2"} {
					w.delete(name)
				}
			},
			contains: "no pod of nodeproxy found",
		},
		"an agent crashes, and is silent": {
			plant: func(w *world) {
				waits(w.pod("nodeproxy-agent-node-2"), "CrashLoopBackOff")
				w.set(1, silent)
			},
			want: "AgentPodNotReady(AgentNotResponding)", contains: "nodeproxy-system/nodeproxy-agent-node-2 is not ready: container main: CrashLoopBackOff",
		},
		"an agent is not ready because of its node": {
			plant: func(w *world) {
				waits(w.pod("nodeproxy-agent-node-2"), "")
				w.set(1, is(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonFailed, "no xt_comment"))
			},
			want: "Failed(AgentPodNotReady)",
		},
		"a new agent starts": {
			plant: func(w *world) {
				waits(w.pod("nodeproxy-agent-node-2"), "ContainerCreating")
				w.pod("nodeproxy-agent-node-2").CreationTimestamp = ago(time.Minute)
			},
		},
		"a new agent cannot start": {
			plant: func(w *world) {
				waits(w.pod("nodeproxy-agent-node-2"), "ImagePullBackOff")
				w.pod("nodeproxy-agent-node-2").CreationTimestamp = ago(time.Minute)
			},
			want: "AgentPodNotReady",
		},
		"a new node": {
			plant: func(w *world) {
				w.delete("nodeproxy-agent-node-2")
				w.node(1).Status = v1alpha1.NodeProxyRulesStatus{}
				w.node(1).CreationTimestamp = ago(time.Minute)
				w.NodeProxy.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed, "node-2")}
			},
			contains: "no report yet from 1 new node, where the agent's image may still be pulled: node-2",
		},
		"a node that is no longer new": {
			plant: func(w *world) {
				w.node(1).Status = v1alpha1.NodeProxyRulesStatus{}
				w.node(1).CreationTimestamp = ago(3 * time.Minute)
				w.NodeProxy.Status.Conditions = []metav1.Condition{is(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed, "node-2")}
			},
			want: "AgentNeverReported(NodesNotProgrammed)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.runPods()
			c.plant(w)
			r := w.examine(t, "")
			if got := names(r.Findings); got != c.want {
				t.Errorf("found %s, want %s:\n%s", got, c.want, printed(t, r))
			}
			if table := printed(t, r); !strings.Contains(table, c.contains) {
				t.Errorf("the report lacks %q:\n%s", c.contains, table)
			}
		})
	}
}

// TestWithoutController: findings that are stale without a controller follow from that.
func TestWithoutController(t *testing.T) {
	lags := func(w *world) { w.NodeProxy.Status.Nodes.Lagging = 1 }
	retains := func(w *world) {
		w.ServiceRules = w.ServiceRules[1:]
		w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonRetained, "1 Service"))
	}
	reports := func(w *world) {
		retains(w)
		w.set(0, is(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed, ""))
		w.node(0).Status.LocalEndpoints = 9
	}
	for name, c := range map[string]struct {
		asked string
		runs  bool
		plant func(w *world)
		want  string
	}{
		"agents lag":                          {"", false, lags, "NoController(AgentsLagging)"},
		"agents lag, and the controller runs": {"", true, lags, "AgentsLagging"},
		"agents lag, and the controller is behind": {"", true, func(w *world) {
			lags(w)
			w.service("web").Spec.Ports[0].Port = 81
		}, "ControllerBehind(AgentsLagging RenderedOutdated)"},
		"a node retains Services":                          {"shop/web", false, retains, "NoController(Retained)"},
		"a node retains Services, and the controller runs": {"shop/web", true, retains, "Retained"},
		"a node reports otherwise":                         {"shop/web", false, reports, "NoController(StatusDiffers)"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.runPods()
			if !c.runs {
				w.delete("nodeproxy-controller-node-1")
			}
			c.plant(w)
			w.report(1)
			if r := w.examine(t, c.asked); names(r.Findings) != c.want {
				t.Errorf("found %s, want %s:\n%s", names(r.Findings), c.want, printed(t, r))
			}
		})
	}
}
