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

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// startGrace is how long a pod may take to become ready before that is reported.
	startGrace = time.Minute
	// steadyRun is how long a container must run for an exit not to count as a failure. The kubelet
	// uses the same time.
	steadyRun = 10 * time.Minute
	// exactNodes is up to how many nodes the progress of an update is exact. Above it, steps of a
	// percent are enough: each message is a write that all agents receive.
	exactNodes = 100
)

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
		c.Message = "The DaemonSet " + Name + " does not exist yet."
		return state
	}
	problems, next := problemsOf(pods, now)
	state.Next = next
	desired, updated := daemonSet.Status.DesiredNumberScheduled, daemonSet.Status.UpdatedNumberScheduled
	observed := daemonSet.Status.ObservedGeneration >= daemonSet.Generation
	updating := "The update of the agents has reached " + progress(updated, desired) + "."
	switch {
	case len(problems) > 0:
		worst := problems[0]
		c.Reason, c.Message = worst.reason, worst.String()
		if others := len(problems) - 1; others > 0 {
			c.Message += fmt.Sprintf(" (and %d more)", others)
		}
		c.Message = text.Clause(c.Message) + "."
		if observed && updated < desired {
			c.Message += " " + updating
		}
	case !observed:
		c.Message = "The DaemonSet " + Name + " has changed. The cluster has not started the update yet."
	case desired == 0:
		c.Message = "The DaemonSet " + Name + " matches no Node. Check spec.agent.nodeSelector and spec.agent.tolerations."
	case updated < desired:
		c.Message = updating
	case daemonSet.Status.NumberAvailable < desired:
		c.Message = "Agents are ready on " + progress(daemonSet.Status.NumberAvailable, desired) + "."
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAgentsUpToDate
	}
	return state
}

func progress(done, all int32) string {
	if all <= exactNodes {
		return text.CountOf(int(done), int(all), "node")
	}
	return fmt.Sprintf("%d%% of %d nodes", int64(done)*100/int64(all), all)
}

// problem is what is wrong with a pod. Its reason is AgentPodsFailing if the kubelet cannot run it
// or it keeps crashing, and AgentPodsNotReady if it has no node or runs without becoming ready.
type problem struct {
	reason, pod, node, what string
}

// String is the beginning of a message, which quotes another program.
func (p problem) String() string {
	node := "without a node"
	if p.node != "" {
		node = "on node " + p.node
	}
	return fmt.Sprintf("Pod %s %s: %s", p.pod, node, p.what)
}

// problemsOf returns the problems of pods, failing ones first, then by node. next is when a pod will
// have taken too long to become ready; 0: none can.
func problemsOf(pods []corev1.Pod, now time.Time) (all []problem, next time.Duration) {
	for i := range pods {
		found, wait := problemOf(&pods[i], now)
		if found.what != "" {
			all = append(all, found)
		}
		if wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
	}
	slices.SortFunc(all, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.node, b.node), cmp.Compare(a.pod, b.pod))
	})
	return all, next
}

// problemOf returns the problem of a pod, without text if there is none. wait is when there may be
// one with time alone; 0: never.
func problemOf(pod *corev1.Pod, now time.Time) (found problem, wait time.Duration) {
	ready := condition(pod, corev1.PodReady)
	if pod.DeletionTimestamp != nil || ready.Status == corev1.ConditionTrue {
		return problem{}, 0
	}
	found = problem{
		reason: v1alpha1.ReasonAgentPodsFailing,
		pod:    pod.Namespace + "/" + pod.Name, node: cmp.Or(pod.Spec.NodeName, intendedNode(pod)),
	}
	for i := range pod.Status.ContainerStatuses {
		if found.what = containerProblem(&pod.Status.ContainerStatuses[i]); found.what != "" {
			return found, 0
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		found.what = "it has failed: " + reasonAndMessage(pod.Status.Reason, pod.Status.Message)
		return found, 0
	}
	since := pod.CreationTimestamp.Time
	if ready.LastTransitionTime.After(since) {
		since = ready.LastTransitionTime.Time
	}
	if left := startGrace - now.Sub(since); left > 0 {
		return problem{}, left
	}
	found.reason, found.what = v1alpha1.ReasonAgentPodsNotReady, whyNotReady(pod)
	return found, 0
}

// whyNotReady describes a pod that is not ready although none of its containers fails.
func whyNotReady(pod *corev1.Pod) string {
	if c := condition(pod, corev1.PodScheduled); c.Status == corev1.ConditionFalse {
		return "it cannot be scheduled: " + reasonAndMessage(c.Reason, c.Message)
	}
	if slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running != nil }) {
		return fmt.Sprintf("it is running but has not been ready for more than a minute; see `kubectl get nodeproxyrules %s -o wide` or its log", cmp.Or(pod.Spec.NodeName, "NODE"))
	}
	return fmt.Sprintf("it has not started for more than a minute; see its events: `kubectl -n %s describe pod %s`", pod.Namespace, pod.Name)
}

// containerProblem describes why a container does not run; empty: the kubelet reports no problem.
func containerProblem(c *corev1.ContainerStatus) string {
	if w := c.State.Waiting; w != nil {
		switch w.Reason {
		case "", "ContainerCreating", "PodInitializing":
		case "CrashLoopBackOff":
			return crashed(c)
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed":
			return fmt.Sprintf("image %s cannot be pulled: %s", c.Image, reasonAndMessage(w.Reason, w.Message))
		default:
			return "the container cannot be started: " + reasonAndMessage(w.Reason, w.Message)
		}
	}
	// Between two pauses it runs, or has just ended: that does not fix it. A single restart is no
	// problem, nor are those of a node that restarts now and then.
	if last := lastEnd(c); c.RestartCount > 1 && last != nil && last.FinishedAt.Sub(last.StartedAt.Time) < steadyRun {
		return crashed(c)
	}
	return ""
}

// lastEnd is how the container last ended; nil: not known.
func lastEnd(c *corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	return cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated)
}

// crashed describes how an agent last ended, with the last line of its log.
func crashed(c *corev1.ContainerStatus) string {
	last := lastEnd(c)
	if last == nil {
		return "the container keeps crashing"
	}
	what := fmt.Sprintf("the container keeps crashing, last with exit code %d", last.ExitCode)
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

// condition returns a condition of a pod, a zero one if there is none.
func condition(pod *corev1.Pod, of corev1.PodConditionType) corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == of })
	if i < 0 {
		return corev1.PodCondition{}
	}
	return pod.Status.Conditions[i]
}
