package controllers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// actionRollOut is the action of events about rollouts.
const actionRollOut = "RollOut"

// tell writes an event where a policy's rollout has come to another state: by
// the reason of its condition Ready.
func (r *RolloutReconciler) tell(ctx context.Context, before, after *v1alpha1.NodeProxyPolicy) {
	was, is := readyReason(before), meta.FindStatusCondition(after.Status.Conditions, v1alpha1.ConditionReady)
	if what, worth := transitionOf(was, is.Reason); worth {
		r.events.transition(ctx, before, "NodeProxyPolicy", what, fmt.Sprintf("generation %d: %s", after.Generation, is.Message))
	}
}

func readyReason(policy *v1alpha1.NodeProxyPolicy) string {
	if c := meta.FindStatusCondition(policy.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return c.Reason
	}
	return ""
}

// transitionOf is the event of a transition of Ready from one reason to another. What
// nodes do outside a rollout is none: it is in the status.
func transitionOf(was, is string) (what eventKind, worth bool) {
	if was == is {
		return eventKind{}, false
	}
	switch is {
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused:
		return eventKind{normal, is, actionRollOut}, true
	case v1alpha1.ReasonApplied:
		// Not when nodes that failed have recovered, or the first one comes.
		quiet := was == v1alpha1.ReasonNodesNotProgrammed || was == v1alpha1.ReasonNothingSelected
		return eventKind{normal, is, actionRollOut}, !quiet
	case v1alpha1.ReasonRolloutStopped, v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonInvalidResult:
		return eventKind{warning, is, actionRollOut}, true
	}
	return eventKind{}, false
}
