package findings

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

// OwnPods checks the pods of the controller and of the agents. Only a controller detects that
// an agent is silent, and knows whether a node must have an agent's pod; without one,
// conditions are stale.
func (e *Examination) OwnPods() {
	down, elsewhere := e.noController()
	switch {
	case down != "":
		e.Add(Finding{
			Severity: Problem, Reason: "NoController", Check: CheckController, Key: KeyNoController, Transient: true,
			Message: down + ": changes of Services do not reach the nodes, and the state of the nodes may be stale because agent liveness is not monitored",
			Remedy:  e.CheckController(),
		})
	case elsewhere && e.NodeProxy != nil:
		e.Notef("no pod of nodeproxy found: unless a controller runs outside the cluster, changes are not applied and agent liveness is not monitored")
	}
	on := map[string]*corev1.Pod{}
	for _, pod := range e.ownPods(agentdeploy.Name) {
		if node := pod.Spec.NodeName; node != "" && (on[node] == nil || better(pod, on[node])) {
			on[node] = pod
		}
	}
	for _, node := range e.Nodes {
		f := Finding{Severity: Problem, Check: CheckNodes, Nodes: []string{node.Name}, Key: NodeKey(node.Name, "pods"), Transient: true}
		switch pod := on[node.Name]; {
		case pod == nil && down != "":
			f.Reason, f.Causes = "AgentPodMissing", []string{KeyNoController}
			f.Message = "the node has no pod of the agent: the node's rules are neither updated nor repaired"
			f.Remedy = e.Docs.See("see why there is none: kubectl get daemonset -A -l app.kubernetes.io/name=nodeproxy-agent", "troubleshooting.md#nodeproxyagentnotresponding")
		case pod == nil || Unready(pod) == "" || !failing(pod) && e.Time.Sub(pod.CreationTimestamp.Time) < cluster.Grace:
			continue
		default:
			f.Reason, f.Message = "AgentPodNotReady", fmt.Sprintf("the agent's pod %s/%s is not ready: %s", pod.Namespace, pod.Name, Unready(pod))
			f.Remedy = e.Docs.See(fmt.Sprintf("kubectl describe pod -n %s %s; kubectl logs -n %s %s --tail=20", pod.Namespace, pod.Name, pod.Namespace, pod.Name), "troubleshooting.md#nodeproxyagentnotresponding")
			for _, what := range []string{"conflict", "accepted", "programmed"} { // each makes the pod unready
				f.Causes = append(f.Causes, NodeKey(node.Name, what))
			}
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady {
					f.Since = c.LastTransitionTime
				}
			}
		}
		e.Add(f)
	}
}

// noController explains why no controller runs, by its pods; empty: one runs.
//
// elsewhere: nodeproxy has not run in pods since the NodeProxy was created. If there is a
// controller, it runs outside the cluster.
func (e *Examination) noController() (why string, elsewhere bool) {
	pods := e.ownPods(cluster.Controller)
	var texts []string
	for _, pod := range pods {
		reason := Unready(pod)
		if reason == "" && pod.DeletionTimestamp == nil {
			return "", false
		}
		texts = append(texts, fmt.Sprintf("pod %s/%s %s", pod.Namespace, pod.Name, cmp.Or(reason, "is terminating")))
	}
	switch {
	case len(pods) > 0:
		return "no pod of the controller is ready: " + strings.Join(texts, "; "), false
	case len(e.ownPods(agentdeploy.Name)) > 0,
		// A controller that deploys agents sets this condition.
		e.NodeProxy != nil && meta.FindStatusCondition(e.NodeProxy.Status.Conditions, v1alpha1.ConditionAgentsDeployed) != nil:
		return fmt.Sprintf("no namespace has a pod of the controller (label %s=%s)", agentdeploy.LabelName, cluster.Controller), false
	}
	return "", true
}

// ownPods are the pods of a program of nodeproxy that have not finished.
func (e *Examination) ownPods(program string) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range e.Pods {
		if pod := &e.Pods[i]; pod.Labels[agentdeploy.LabelName] == program && !cluster.Finished(pod) {
			pods = append(pods, pod)
		}
	}
	return pods
}

// better reports whether a pod represents a node's agent better than another one: it is
// ready, or not terminating, or newer.
func better(a, b *corev1.Pod) bool {
	rank := func(pod *corev1.Pod) int {
		switch {
		case Unready(pod) == "":
			return 0
		case pod.DeletionTimestamp == nil:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), b.CreationTimestamp.Compare(a.CreationTimestamp.Time)) < 0
}

// failing reports whether a container of the pod has failed, or cannot start.
func failing(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), func(s corev1.ContainerStatus) bool {
		if w := s.State.Waiting; w != nil {
			return !slices.Contains([]string{"", "ContainerCreating", "PodInitializing"}, w.Reason)
		}
		return s.State.Terminated != nil && s.State.Terminated.ExitCode != 0
	})
}

// Unready explains why a pod is not ready; empty: it is.
func Unready(pod *corev1.Pod) string {
	why := ""
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return ""
		}
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			why = c.Message
		}
	}
	for _, s := range pod.Status.ContainerStatuses {
		if w := s.State.Waiting; w != nil {
			return strings.TrimSuffix(fmt.Sprintf("container %s: %s: %s", s.Name, w.Reason, w.Message), ": ")
		}
	}
	if pod.DeletionTimestamp != nil {
		return "is terminating"
	}
	return cmp.Or(why, "is "+strings.ToLower(cmp.Or(string(pod.Status.Phase), "unknown"))+" and not ready")
}
