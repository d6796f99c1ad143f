package summary

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

// agentsDeployed returns the condition AgentsDeployed, nil if the controller does not run the
// agents. next is when it may change with time alone; 0: it cannot.
func (r *Reconciler) agentsDeployed(ctx context.Context, np *v1alpha1.NodeProxy) (condition *metav1.Condition, next time.Duration, err error) {
	if !agentdeploy.Managed(np) {
		return nil, 0, nil
	}
	found := r.Findings.Of(findings.AboutDaemonSet, &np.Status, v1alpha1.ConditionAgentsDeployed,
		v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetDenied)
	if found.Reason != "" {
		return &metav1.Condition{
			Type: v1alpha1.ConditionAgentsDeployed, Status: metav1.ConditionFalse,
			Reason: found.Reason, Message: found.Message,
		}, 0, nil
	}
	daemonSet, err := objects.Find[appsv1.DaemonSet](ctx, r.Client, client.ObjectKey{Namespace: r.Namespace, Name: agentdeploy.Name})
	if err != nil {
		return nil, 0, err
	}
	var pods corev1.PodList // of the cache, which has those of the agents alone
	if err := r.Client.List(ctx, &pods, client.InNamespace(r.Namespace)); err != nil {
		return nil, 0, fmt.Errorf("list the agents' pods: %w", err)
	}
	state := agentdeploy.Assess(daemonSet, pods.Items, r.Clock.Now())
	return &state.Condition, state.Next, nil
}

// withProblems adds problems of the agents' deployment to the condition Ready. They come first if
// they keep agents from working at all: then they are why nodes are not programmed, or soon will
// not be.
func withProblems(ready metav1.Condition, apiServers findings.Finding, agents *metav1.Condition) metav1.Condition {
	problem := apiServers
	if problem.Reason == "" && agents != nil {
		switch agents.Reason {
		case v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetDenied, v1alpha1.ReasonAgentPodsFailing:
			problem = findings.Finding{Reason: agents.Reason, Message: agents.Message}
		case v1alpha1.ReasonAgentPodsNotReady:
			if ready.Status == metav1.ConditionTrue {
				problem = findings.Finding{Reason: agents.Reason, Message: agents.Message}
			}
		}
	}
	if problem.Reason == "" || ready.Reason == v1alpha1.ReasonInvalidSettings {
		return ready
	}
	ready.Status, ready.Reason = metav1.ConditionFalse, problem.Reason
	ready.Message = problem.Message
	return ready
}
