package agentdeploy_test

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/test/messages"
)

var now = time.Date(2026, 11, 20, 6, 0, 0, 0, time.UTC)

// counting is a DaemonSet that its controller has observed, with that many pods
// desired, updated and available.
func counting(desired, updated, available int32) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Generation: 3},
		Status: appsv1.DaemonSetStatus{
			ObservedGeneration: 3, DesiredNumberScheduled: desired, UpdatedNumberScheduled: updated, NumberAvailable: available,
		},
	}
}

// pod is one that has not been ready since it was made, some seconds ago.
func pod(name, node string, seconds int, edit ...func(*corev1.Pod)) corev1.Pod {
	made := metav1.NewTime(now.Add(-time.Duration(seconds) * time.Second))
	p := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: made},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: made},
		}},
	}
	for _, e := range edit {
		e(&p)
	}
	return p
}

// container gives a pod the state of its container.
func container(s corev1.ContainerStatus) func(*corev1.Pod) {
	s.Image = "example.com/agent:v2"
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{s} }
}

func waiting(reason, message string) func(*corev1.Pod) {
	return container(corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}})
}

func ready(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }

var (
	killed  = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}
	failed  = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "I1120 starting\nnodeproxy-agent: no such flag\n"}}
	started = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	backOff = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off 5m0s"}}
)

func TestAssess(t *testing.T) {
	deleted := counting(2, 2, 2)
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	unseen := counting(2, 2, 2)
	unseen.Generation = 4
	const updating, failing, notReady = "False AgentsUpdating: ", "False AgentPodsFailing: ", "False AgentPodsNotReady: "
	for name, tt := range map[string]struct {
		daemonSet *appsv1.DaemonSet
		pods      []corev1.Pod
		want      string
		next      time.Duration
	}{
		"none yet":      {nil, nil, updating + "The DaemonSet nodeproxy-agent does not exist yet.", 0},
		"being deleted": {deleted, nil, updating + "The DaemonSet nodeproxy-agent does not exist yet.", 0},
		"unseen":        {unseen, nil, updating + "The DaemonSet nodeproxy-agent has changed. The cluster has not started the update yet.", 0},
		"no node":       {counting(0, 0, 0), nil, updating + "The DaemonSet nodeproxy-agent matches no Node. Check spec.agent.nodeSelector and spec.agent.tolerations.", 0},
		"updating":      {counting(3, 1, 2), nil, updating + "The update of the agents has reached 1 of 3 nodes.", 0},
		"many":          {counting(5000, 1499, 4999), nil, updating + "The update of the agents has reached 29% of 5000 nodes.", 0},
		"not available": {counting(3, 3, 2), nil, updating + "Agents are ready on 2 of 3 nodes.", 0},
		"up to date":    {counting(3, 3, 3), []corev1.Pod{pod("a", "n1", 90, ready)}, "True AgentsUpToDate: ", 0},
		"just made": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 20), pod("b", "n2", 50)},
			updating + "Agents are ready on 0 of 1 node.", 10 * time.Second,
		},
		"no image": {
			counting(3, 1, 2), []corev1.Pod{pod("b", "n2", 5, waiting("ErrImagePull", "not found")), pod("c", "n1", 5, ready), pod("a", "n3", 5, waiting("ErrImagePull", "not found"))},
			failing + "Pod ns/b on node n2: image example.com/agent:v2 cannot be pulled: ErrImagePull: not found (and 1 more). The update of the agents has reached 1 of 3 nodes.", 0,
		},
		"cannot be started": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 5, waiting("CreateContainerError", "no such file"))},
			failing + "Pod ns/a on node n1: the container cannot be started: CreateContainerError: no such file.", 0,
		},
		"sentences of the kubelet": {
			counting(3, 1, 2), []corev1.Pod{pod("a", "n1", 5, waiting("CreateContainerError", "No space left. Remove images. Try again."))},
			failing + "Pod ns/a on node n1: the container cannot be started: CreateContainerError: No space left; Remove images; Try again. The update of the agents has reached 1 of 3 nodes.", 0,
		},
		"crash loop": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 5, container(corev1.ContainerStatus{State: backOff, LastTerminationState: failed, RestartCount: 5}))},
			failing + "Pod ns/a on node n1: the container keeps crashing, last with exit code 1: nodeproxy-agent: no such flag.", 0,
		},
		"crash loop, between two starts": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 5, container(corev1.ContainerStatus{State: started, LastTerminationState: killed, RestartCount: 2}))},
			failing + "Pod ns/a on node n1: the container keeps crashing, last with exit code 137 (OOMKilled).", 0,
		},
		"ready again after crashes": {
			counting(1, 1, 1), []corev1.Pod{pod("a", "n1", 5, ready, container(corev1.ContainerStatus{State: started, LastTerminationState: killed, RestartCount: 2}))},
			"True AgentsUpToDate: ", 0,
		},
		"its node has been restarted again": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 5, container(corev1.ContainerStatus{State: started, RestartCount: 7, LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: 255, Reason: "Unknown", StartedAt: metav1.NewTime(now.Add(-20 * time.Minute)), FinishedAt: metav1.NewTime(now.Add(-10 * time.Minute))},
			}}))},
			updating + "Agents are ready on 0 of 1 node.", 55 * time.Second,
		},
		"one restart": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 5, container(corev1.ContainerStatus{State: started, LastTerminationState: killed, RestartCount: 1}))},
			updating + "Agents are ready on 0 of 1 node.", 55 * time.Second,
		},
		"evicted": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 5, func(p *corev1.Pod) {
				p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "the node was low on memory"
			})},
			failing + "Pod ns/a on node n1: it has failed: Evicted: the node was low on memory.", 0,
		},
		"not scheduled": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "", 61, func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"}}
				p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: "In", Values: []string{"n7"}}}}},
				}}}
			})},
			notReady + "Pod ns/a on node n7: it cannot be scheduled: Unschedulable: 0/3 nodes are available.", 0,
		},
		"runs, not ready": {
			counting(2, 1, 1), []corev1.Pod{pod("a", "n1", 60, container(corev1.ContainerStatus{State: started}))},
			notReady + "Pod ns/a on node n1: it is running but has not been ready for more than a minute; see `kubectl get nodeproxyrules n1 -o wide` or its log. The update of the agents has reached 1 of 2 nodes.", 0,
		},
		"not started": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 60, waiting("ContainerCreating", ""))},
			notReady + "Pod ns/a on node n1: it has not started for more than a minute; see its events: `kubectl -n ns describe pod a`.", 0,
		},
		"a failing one comes before one that waits": {
			counting(2, 2, 0), []corev1.Pod{pod("a", "n1", 99), pod("b", "n2", 5, waiting("ImagePullBackOff", ""))},
			failing + "Pod ns/b on node n2: image example.com/agent:v2 cannot be pulled: ImagePullBackOff (and 1 more).", 0,
		},
		"one that goes does not count": {
			counting(1, 1, 1), []corev1.Pod{pod("a", "n1", 99, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now} })},
			"True AgentsUpToDate: ", 0,
		},
		"lately not ready": {
			counting(1, 1, 0), []corev1.Pod{pod("a", "n1", 900, func(p *corev1.Pod) {
				p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-10 * time.Second))
			})},
			updating + "Agents are ready on 0 of 1 node.", 50 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := agentdeploy.Assess(tt.daemonSet, tt.pods, now)
			c := got.Condition
			if text := string(c.Status) + " " + c.Reason + ": " + c.Message; text != tt.want || got.Next != tt.next || c.Type != "AgentsDeployed" {
				t.Errorf("got  %s, next %s\nwant %s, next %s", text, got.Next, tt.want, tt.next)
			}
			messages.Check(t, c.Message)
		})
	}
}
