package rollouts

import (
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

// Action is the action of events about rollouts.
const Action = "RollOut"

// recordTransition writes an event if the state of a policy's rollout changes: the reason of its condition
// Ready.
func (r *Reconciler) recordTransition(before, after *v1alpha1.NodeProxyPolicy) {
	was, is := reports.Ready(before.Status.Conditions), reports.Ready(after.Status.Conditions)
	if what, worth := Transition(was.Reason, is.Reason); worth {
		r.Events.TransitionOfPolicy(before, "NodeProxyPolicy", what, fmt.Sprintf("generation %d: %s", after.Generation, is.Message))
	}
}

// Transition returns the event for a change of a policy's condition Ready. What nodes do outside a
// rollout has none: it is in the status.
func Transition(was, is string) (what events.Kind, worth bool) {
	if was == is {
		return events.Kind{}, false
	}
	switch is {
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused:
		return events.Kind{Severity: events.Normal, Reason: is, Action: Action}, true
	case v1alpha1.ReasonApplied:
		// Not when failed nodes have recovered, or the first node appears.
		if was != v1alpha1.ReasonNodesNotProgrammed && was != v1alpha1.ReasonNothingSelected {
			return events.Kind{Severity: events.Normal, Reason: is, Action: Action}, true
		}
	case v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonInvalidResult:
		return events.Kind{Severity: events.Warning, Reason: is, Action: Action}, true
	}
	return events.Kind{}, false
}
