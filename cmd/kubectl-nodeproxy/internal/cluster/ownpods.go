package cluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

// Grace is how long a new agent's pod or node may take to start, which includes pulling the
// image.
const Grace = 2 * time.Minute

// ReadOwnPods reads only nodeproxy's own pods, if permitted.
func (r *Reader) ReadOwnPods(ctx context.Context, into *Objects) error {
	own, err := labels.NewRequirement(agentdeploy.LabelName, selection.In, []string{agentdeploy.Name, hints.Controller})
	if err != nil {
		return fmt.Errorf("select nodeproxy's pods: %w", err)
	}
	switch err := r.list(ctx, kinds()[Pods], into, client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*own)}); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted: %w", ctx.Err())
	case !optionalError(err):
		return r.explain(Pods, err)
	default:
		into.Unread = append(into.Unread, Unread{Kind: Pods, Why: r.explain(Pods, err).Error()})
		return nil
	}
}

// ownPods are the pods of a program of nodeproxy that have not finished.
func (o *Objects) ownPods(program string) []*corev1.Pod {
	var pods []*corev1.Pod
	for i := range o.Pods {
		pod := &o.Pods[i]
		if pod.Labels[agentdeploy.LabelName] == program && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			pods = append(pods, pod)
		}
	}
	return pods
}

// NoController explains why no controller runs, by its pods; empty: one runs. Only a controller
// detects silent agents, so without one the state of the nodes is unreliable.
//
// elsewhere: nodeproxy has not run in pods since the NodeProxy was created. If there is a
// controller, it runs outside the cluster.
func (o *Objects) NoController() (why string, elsewhere bool) {
	pods := o.ownPods(hints.Controller)
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
	case o.deployed():
		return fmt.Sprintf("no namespace has a pod of the controller (label %s=%s)", agentdeploy.LabelName, hints.Controller), false
	}
	return "", true
}

// deployed reports whether nodeproxy runs in pods, or has: a controller that deploys agents
// sets a condition.
func (o *Objects) deployed() bool {
	return len(o.ownPods(agentdeploy.Name)) > 0 ||
		o.NodeProxy != nil && meta.FindStatusCondition(o.NodeProxy.Status.Conditions, v1alpha1.ConditionAgentsDeployed) != nil
}

// AgentPodProblem is an agent's pod that is not ready, or missing.
type AgentPodProblem struct {
	Node string
	// Namespace and Pod identify it; empty: there is none.
	Namespace, Pod string
	// Why is human-readable.
	Why string
	// Since is when it was last ready; zero: unknown.
	Since metav1.Time
}

// AgentPodProblems lists the nodes whose agent's pod is not ready. A missing pod is only
// listed if there is no controller, which knows whether there must be one.
func (o *Objects) AgentPodProblems(nodes []*v1alpha1.NodeProxyRules) []AgentPodProblem {
	on := map[string]*corev1.Pod{}
	for _, pod := range o.ownPods(agentdeploy.Name) {
		if node := pod.Spec.NodeName; node != "" && (on[node] == nil || better(pod, on[node])) {
			on[node] = pod
		}
	}
	down, _ := o.NoController()
	var problems []AgentPodProblem
	for _, node := range nodes {
		switch pod := on[node.Name]; {
		case pod == nil && down != "":
			problems = append(problems, AgentPodProblem{Node: node.Name, Why: "the node has no pod of the agent"})
		case pod == nil || Unready(pod) == "" || !failing(pod) && o.Time.Sub(pod.CreationTimestamp.Time) < Grace:
		default:
			t := AgentPodProblem{Node: node.Name, Namespace: pod.Namespace, Pod: pod.Name, Why: Unready(pod)}
			if ready := podReady(pod); ready != nil {
				t.Since = ready.LastTransitionTime
			}
			problems = append(problems, t)
		}
	}
	return problems
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

func podReady(pod *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	if i < 0 {
		return nil
	}
	return &pod.Status.Conditions[i]
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
