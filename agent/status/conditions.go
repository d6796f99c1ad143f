package status

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// AcceptedCondition returns the condition Accepted.
func AcceptedCondition(s desired.Snapshot) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse}
	switch {
	case s.Rejection != nil:
		c.Reason, c.Message = s.Rejection.Reason, v1alpha1.MessageNotAccepted+s.Rejection.Message
	case errors.Is(s.Err, dataplane.ErrUnsupported):
		c.Reason, c.Message = v1alpha1.ReasonUnsupported, v1alpha1.MessageNotAccepted+wording.OneLine(s.Err)+". The agent retries until it works."
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonAccepted, "The agent and the node support this object."
	}
	return c
}

// fallbackCondition returns the condition ModeFallback; nil: the node never had one.
func fallbackCondition(s desired.Snapshot, former []metav1.Condition) *metav1.Condition {
	c := &metav1.Condition{Type: v1alpha1.ConditionModeFallback}
	switch {
	case s.Mode.Fallback() != "":
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonKernelLacksMode
		c.Message = fmt.Sprintf("Mode %s runs, because this node cannot run the desired one (%s). Fix that on the node; the agent then switches at its next verification.", s.Mode.Mode, s.Mode.Lacks)
	case meta.FindStatusCondition(former, c.Type) == nil:
		return nil
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNoFallback, "The desired mode runs."
	}
	return c
}

// ConflictCondition returns the condition ConflictingProxy; nil: the node never had one.
func conflictCondition(f Facts, former []metav1.Condition) *metav1.Condition {
	c := &metav1.Condition{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoConflict}
	switch {
	case f.Conflict() != "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonConflictingProxy, conflictMessage(f)
	case meta.FindStatusCondition(former, c.Type) == nil:
		return nil
	case f.Removing:
		c.Message = "The NodeProxy was deleted with removalPolicy Cleanup: this agent writes nothing, even without another proxy."
	case f.Audit:
		c.Message = "Enforcement is Audit: this agent writes nothing, even without another proxy."
	default:
		c.Message = "No other proxy is active on this node."
	}
	return c
}

// Conflict is the evidence of another proxy that prevents writing; empty: there is none.
func (f Facts) Conflict() string {
	if f.Audit || f.Removing {
		return ""
	}
	return f.OtherProxy
}

func conflictMessage(f Facts) string {
	if !f.OtherGone.IsZero() {
		return fmt.Sprintf("Another proxy was active on this node (%s) but has not been detected since %s. The agent writes nothing and opens none of the proxy's ports until %s after that, and then takes over.",
			f.OtherProxy, f.OtherGone.UTC().Format(time.RFC3339), f.OtherWait)
	}
	if remaining := f.remaining(); remaining != "" {
		return fmt.Sprintf("Another proxy is active on this node (%s), and %s.", f.OtherProxy, remaining)
	}
	return fmt.Sprintf("Another proxy is active on this node (%s): the agent writes nothing and opens none of the proxy's ports. Stop it on this node (kube-proxy: delete its DaemonSet, or keep its pods off this node), and the agent takes over.", f.OtherProxy)
}

// remaining is what packets meet before another proxy's rules, and until when; empty: nothing.
func (f Facts) remaining() string {
	if f.Remaining == "" {
		return ""
	}
	return fmt.Sprintf("packets still meet outdated rules of nodeproxy first (%s): the agent removes them once that proxy reports at %s that it has programmed Services; if it cannot, run \"nodeproxy-agent cleanup\" while both are stopped", f.Remaining, ownership.MetricsURL)
}

// ExplainsIdle reports whether the conditions explain why an agent that accepts its object writes
// nothing.
func ExplainsIdle(stored []metav1.Condition) bool {
	programmed := meta.FindStatusCondition(stored, v1alpha1.ConditionProgrammed)
	return programmed != nil &&
		(programmed.Reason == v1alpha1.ReasonConflictingProxy || programmed.Reason == v1alpha1.ReasonRemoved) &&
		meta.IsStatusConditionTrue(stored, v1alpha1.ConditionAccepted)
}

// pressureCondition returns the condition ConntrackPressure; nil: the node never had one. Between
// the two limits it stays as it was, according to the stored status even after a restart. Its
// messages have no numbers, which would cause repeated writes.
func pressureCondition(report *v1alpha1.ConntrackReport, former []metav1.Condition) *metav1.Condition {
	old := meta.FindStatusCondition(former, v1alpha1.ConditionConntrackPressure)
	if report == nil { // unknown
		return old
	}
	c := &metav1.Condition{Type: v1alpha1.ConditionConntrackPressure}
	switch {
	case conntrack.Pressed(old != nil && old.Status == metav1.ConditionTrue, report.Entries, report.Max):
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonTableNearlyFull
		c.Message = fmt.Sprintf("The connection tracking table has reached %d%% of its size (see status.conntrack): %s", conntrack.PressureFrom, conntrack.PressureAdvice)
	case old == nil:
		return nil
	default:
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonTableHasRoom
		c.Message = fmt.Sprintf("Less than %d%% of the connection tracking table is in use.", conntrack.PressureFrom)
	}
	return c
}
