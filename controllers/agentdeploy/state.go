package agentdeploy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// startGrace is how long a pod may take to become ready before that is reported.
const startGrace = time.Minute

// steadyRun is how long a container must run before its end is no failure to work. The kubelet uses
// the same time.
const steadyRun = 10 * time.Minute

// exactNodes is up to how many nodes the progress of an update is exact. Above it, steps of a
// percent are enough: each message is a write that all agents receive.
const exactNodes = 100

// State is the state of the agents' DaemonSet for users.
type State struct {
	// Condition is AgentsDeployed, without time and generation.
	Condition metav1.Condition
	// Next is when it may change with time alone; 0: it cannot.
	Next time.Duration
}

// Assess returns the state of the agents' DaemonSet, nil if there is none yet. The pods are all
// those with the agents' label.
func Assess(daemonSet *appsv1.DaemonSet, pods []corev1.Pod, now time.Time) State {
	state := State{Condition: metav1.Condition{
		Type: v1alpha1.ConditionAgentsDeployed, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAgentsUpdating,
	}}
	c := &state.Condition
	if daemonSet == nil || daemonSet.DeletionTimestamp != nil {
		c.Message = "the DaemonSet " + Name + " does not exist yet"
		return state
	}
	worst, others, next := worstOf(pods, now)
	desired, updated := daemonSet.Status.DesiredNumberScheduled, daemonSet.Status.UpdatedNumberScheduled
	seen := daemonSet.Status.ObservedGeneration >= daemonSet.Generation
	switch {
	case worst != nil:
		c.Reason = worst.reason()
		c.Message = worst.text()
		if others > 0 {
			c.Message += fmt.Sprintf(" (and %d more)", others)
		}
		if seen && updated < desired {
			c.Message += "; meanwhile the update stands at " + progress(updated, desired)
		}
	case !seen:
		c.Message = "the DaemonSet " + Name + " has changed, and the cluster has not begun to update its pods"
	case desired == 0:
		c.Message = "the DaemonSet " + Name + " fits no Node: check spec.agent.nodeSelector and spec.agent.tolerations"
	case updated < desired:
		c.Message = "the update of the agents is at " + progress(updated, desired)
	case daemonSet.Status.NumberAvailable < desired:
		c.Message = "agents are ready on " + progress(daemonSet.Status.NumberAvailable, desired)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAgentsUpToDate
	}
	state.Next = next
	return state
}

// progress says how many of all nodes have finished.
func progress(done, all int32) string {
	if all <= exactNodes {
		return fmt.Sprintf("%d of %d nodes", done, all)
	}
	return fmt.Sprintf("%d%% of %d nodes", int64(done)*100/int64(all), all)
}

// worstOf returns the gravest problem, on the first node by name. others is how many more pods have
// one. next is when a pod will have taken too long to become ready; 0: none can.
func worstOf(pods []corev1.Pod, now time.Time) (worst *problem, others int, next time.Duration) {
	var all []problem
	for i := range pods {
		found, wait := problemOf(&pods[i], now)
		if found != nil {
			all = append(all, *found)
		}
		if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	if len(all) == 0 {
		return nil, 0, next
	}
	first := slices.MinFunc(all, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.node, b.node), cmp.Compare(a.pod, b.pod))
	})
	return &first, len(all) - 1, next
}

// kind is the kind of a problem, the gravest first.
type kind int

const (
	// failing: the kubelet cannot run it, or it keeps ending.
	failing kind = iota
	// waiting: it has no node, or is not ready though it runs.
	waiting
)

// problem is what is wrong with a pod.
type problem struct {
	kind      kind
	pod, node string
	what      string
}

func (p *problem) reason() string {
	if p.kind == failing {
		return v1alpha1.ReasonAgentPodsFailing
	}
	return v1alpha1.ReasonAgentPodsNotReady
}

func (p *problem) text() string {
	node := "without a node"
	if p.node != "" {
		node = "on node " + p.node
	}
	return fmt.Sprintf("pod %s %s: %s", p.pod, node, p.what)
}

// problemOf returns the problem of a pod, nil if there is none. wait is when there may be one with
// time alone; 0: never.
func problemOf(pod *corev1.Pod, now time.Time) (found *problem, wait time.Duration) {
	if pod.DeletionTimestamp != nil || isTrue(pod, corev1.PodReady) {
		return nil, 0
	}
	found = &problem{kind: failing, pod: pod.Namespace + "/" + pod.Name, node: cmp.Or(pod.Spec.NodeName, intendedNode(pod))}
	for i := range pod.Status.ContainerStatuses {
		if what := containerProblem(&pod.Status.ContainerStatuses[i]); what != "" {
			found.what = what
			return found, 0
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		found.what = "it has failed: " + reasonAndMessage(pod.Status.Reason, pod.Status.Message)
		return found, 0
	}
	since := pod.CreationTimestamp.Time
	if c := condition(pod, corev1.PodReady); c != nil && c.LastTransitionTime.After(since) {
		since = c.LastTransitionTime.Time
	}
	if left := startGrace - now.Sub(since); left > 0 {
		return nil, left
	}
	found.kind = waiting
	found.what = slowness(pod)
	return found, 0
}

// slowness says why a pod is not ready although its containers run.
func slowness(pod *corev1.Pod) string {
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Status == corev1.ConditionFalse {
		return "it gets no node: " + reasonAndMessage(c.Reason, c.Message)
	}
	for i := range pod.Status.ContainerStatuses {
		if pod.Status.ContainerStatuses[i].State.Running != nil {
			return fmt.Sprintf("it runs but has not become ready for more than a minute; see `kubectl get nodeproxyrules %s -o wide` or its log", cmp.Or(pod.Spec.NodeName, "NODE"))
		}
	}
	return fmt.Sprintf("it has not been started for more than a minute; see its events: `kubectl -n %s describe pod %s`", pod.Namespace, pod.Name)
}

// containerProblem says what keeps a container from running; empty: nothing that the kubelet
// reports.
func containerProblem(c *corev1.ContainerStatus) string {
	if w := c.State.Waiting; w != nil {
		switch w.Reason {
		case "", "ContainerCreating", "PodInitializing":
		case "CrashLoopBackOff":
			return ended(c)
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
			return fmt.Sprintf("its image %s cannot be had: %s", c.Image, reasonAndMessage(w.Reason, w.Message))
		default:
			return "its container cannot be started: " + reasonAndMessage(w.Reason, w.Message)
		}
	}
	// Between two pauses it runs, or has just ended: that does not fix it. A single restart is no
	// problem, nor are those of a node that restarts now and then.
	if last := lastEnd(c); c.RestartCount > 1 && last != nil && last.FinishedAt.Sub(last.StartedAt.Time) < steadyRun {
		return ended(c)
	}
	return ""
}

// lastEnd is how the container last ended; nil: it has not, as far as known.
func lastEnd(c *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	return cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
}

// ended describes how an agent last ended, with the last line of its log.
func ended(c *corev1.ContainerStatus) string {
	last := lastEnd(c)
	if last == nil {
		return "it keeps ending"
	}
	what := fmt.Sprintf("it keeps ending, last with exit code %d", last.ExitCode)
	if last.Reason != "" && last.Reason != "Error" {
		what += " (" + last.Reason + ")"
	}
	lines := strings.Split(strings.TrimSpace(last.Message), "\n")
	if line := strings.TrimSpace(lines[len(lines)-1]); line != "" {
		what += ": " + line
	}
	return what
}

func reasonAndMessage(reason, message string) string {
	switch {
	case message == "":
		return cmp.Or(reason, "no reason is given")
	case reason == "":
		return message
	default:
		return reason + ": " + message
	}
}

// intendedNode is the node that a pod of a DaemonSet was created for; empty if unknown.
func intendedNode(pod *corev1.Pod) string {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key == metav1.ObjectNameField && len(field.Values) == 1 {
				return field.Values[0]
			}
		}
	}
	return ""
}

func condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == of {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

func isTrue(pod *corev1.Pod, of corev1.PodConditionType) bool {
	c := condition(pod, of)
	return c != nil && c.Status == corev1.ConditionTrue
}
