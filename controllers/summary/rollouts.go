package summary

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollouts"
)

// recordTransition writes an event if the state of a rollout of NodeProxy's own settings changes.
func (r *Reconciler) recordTransition(before, after *v1alpha1.NodeProxy) {
	was, is := reports.Ready(before.Status.Conditions), reports.Ready(after.Status.Conditions)
	if what, worth := transitionOfNodeProxy(was.Reason, is.Reason); worth {
		r.Events.Transition(before, what, fmt.Sprintf("generation %d: %s", after.Generation, cmp.Or(is.Message, "all nodes are programmed")))
	}
}

// transitionOfNodeProxy is rollouts.Transition for NodeProxy, whose condition Ready reports much
// else.
func transitionOfNodeProxy(was, is string) (what events.Kind, worth bool) {
	switch is {
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused, v1alpha1.ReasonRolloutHalted:
		return rollouts.Transition(was, is)
	case v1alpha1.ReasonAllProgrammed:
		ends := was == v1alpha1.ReasonProgressing || was == v1alpha1.ReasonPaused || was == v1alpha1.ReasonRolloutHalted
		return events.Kind{Severity: events.Normal, Reason: is, Action: rollouts.Action}, ends
	}
	return events.Kind{}, false
}

// withRollout adds the progress of a change of NodeProxy's own settings to the condition Ready.
// That it has halted is more important than that its node is not programmed.
func withRollout(ready metav1.Condition, change findings.Finding) metav1.Condition {
	halted := change.Reason == v1alpha1.ReasonRolloutHalted && ready.Reason == v1alpha1.ReasonNodesNotProgrammed
	if change.Reason == "" || !halted && ready.Status != metav1.ConditionTrue {
		return ready
	}
	ready.Status, ready.Reason = metav1.ConditionFalse, change.Reason
	ready.Message = change.Message
	return ready
}
