package controllers

import (
	"cmp"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// actionRollOut is the action of events about rollouts.
const actionRollOut = "RollOut"

// tell writes an event where a policy's rollout has come to another state: by
// the reason of its condition Ready.
func (r *RolloutReconciler) tell(before, after *v1alpha1.NodeProxyPolicy) {
	was, is := conditionOf(before.Status.Conditions), conditionOf(after.Status.Conditions)
	if what, worth := transitionOf(was.Reason, is.Reason); worth {
		r.events.transitionOfPolicy(before, "NodeProxyPolicy", what, fmt.Sprintf("generation %d: %s", after.Generation, is.Message))
	}
}

// tell writes an event where a rollout of NodeProxy's own settings has come to another
// state.
func (r *NodeProxyReconciler) tell(before, after *v1alpha1.NodeProxy) {
	was, is := conditionOf(before.Status.Conditions), conditionOf(after.Status.Conditions)
	if what, worth := transitionOfNodeProxy(was.Reason, is.Reason); worth {
		r.events.transition(before, what, fmt.Sprintf("generation %d: %s", after.Generation, cmp.Or(is.Message, "every node's kernel holds what is wanted")))
	}
}

// conditionOf is the condition Ready, without a reason if there is none.
func conditionOf(all []metav1.Condition) metav1.Condition {
	if c := meta.FindStatusCondition(all, v1alpha1.ConditionReady); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// transitionOf is the event of a transition of a policy's Ready from one reason to
// another. What nodes do outside a rollout is none: it is in the status.
func transitionOf(was, is string) (what eventKind, worth bool) {
	if was == is {
		return eventKind{}, false
	}
	switch is {
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused:
		return eventKind{normal, is, actionRollOut}, true
	case v1alpha1.ReasonApplied:
		// Not when nodes that failed have recovered, or the first one comes.
		if was != v1alpha1.ReasonNodesNotProgrammed && was != v1alpha1.ReasonNothingSelected {
			return eventKind{normal, is, actionRollOut}, true
		}
	case v1alpha1.ReasonRolloutStopped, v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonInvalidResult:
		return eventKind{warning, is, actionRollOut}, true
	}
	return eventKind{}, false
}

// transitionOfNodeProxy is transitionOf for NodeProxy, whose Ready tells of much else.
func transitionOfNodeProxy(was, is string) (what eventKind, worth bool) {
	switch is {
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused, v1alpha1.ReasonRolloutStopped:
		return transitionOf(was, is)
	case v1alpha1.ReasonAllProgrammed:
		ends := was == v1alpha1.ReasonProgressing || was == v1alpha1.ReasonPaused || was == v1alpha1.ReasonRolloutStopped
		return eventKind{normal, is, actionRollOut}, ends
	}
	return eventKind{}, false
}
