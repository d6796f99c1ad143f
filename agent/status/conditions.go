package status

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// FallbackCondition is the condition ModeFallback; nil where there is nothing to
// say.
func FallbackCondition(s desired.Snapshot, former []metav1.Condition) *metav1.Condition {
	switch {
	case s.Mode.Fallback() != "":
		return &metav1.Condition{
			Type: v1alpha1.ConditionModeFallback, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonKernelLacksMode,
			Message: fmt.Sprintf("mode %s runs, because this node cannot run the one that is asked for (%s); mend that on the node, and the agent changes the mode by itself at its next verification", s.Mode.Mode, s.Mode.Lacks),
		}
	case meta.FindStatusCondition(former, v1alpha1.ConditionModeFallback) != nil:
		return &metav1.Condition{
			Type: v1alpha1.ConditionModeFallback, Status: metav1.ConditionFalse,
			Reason: v1alpha1.ReasonNoFallback, Message: "the mode that runs is the one that is asked for",
		}
	default:
		return nil
	}
}
