package status

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ConflictCondition is the condition ConflictingProxy, if the node has it: one
// that never had a conflict does not.
func ConflictCondition(f Facts, former []metav1.Condition) *metav1.Condition {
	c := &metav1.Condition{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNoConflict}
	switch {
	case f.Conflict() != "":
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonConflictingProxy, conflictMessage(f)
	case meta.FindStatusCondition(former, c.Type) == nil:
		return nil
	case f.Removing:
		c.Message = "the NodeProxy was deleted with removalPolicy Cleanup: this agent writes nothing, whoever else does"
	case f.Audit:
		c.Message = "enforcement is Audit: this agent writes nothing, whoever else does"
	default:
		c.Message = "no other proxy is active on this node"
	}
	return c
}

// Conflict is what tells of another proxy that keeps us from writing; empty:
// nothing.
func (f Facts) Conflict() string {
	if f.Audit || f.Removing {
		return ""
	}
	return f.OtherProxy
}

func conflictMessage(f Facts) string {
	const meanwhile = "nothing is written and none of its ports is opened"
	if !f.OtherGone.IsZero() {
		return fmt.Sprintf("another proxy was active on this node (%s) and has shown no sign since %s: %s until %s have gone by without any; then the agent takes over",
			f.OtherProxy, f.OtherGone.UTC().Format(time.RFC3339), meanwhile, f.OtherWait)
	}
	return fmt.Sprintf("another proxy is active on this node (%s): %s; stop it on this node (kube-proxy: delete its DaemonSet, or keep its pods off this node) and the agent takes over",
		f.OtherProxy, meanwhile)
}

// SaysWhyNot reports whether the conditions tell why an agent that accepts its
// object writes nothing.
func SaysWhyNot(stored []metav1.Condition) bool {
	programmed := meta.FindStatusCondition(stored, v1alpha1.ConditionProgrammed)
	return programmed != nil &&
		(programmed.Reason == v1alpha1.ReasonConflictingProxy || programmed.Reason == v1alpha1.ReasonRemoved) &&
		meta.IsStatusConditionTrue(stored, v1alpha1.ConditionAccepted)
}
