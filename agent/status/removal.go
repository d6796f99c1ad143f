package status

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// removalRow is the condition Programmed once rules are to be removed.
func removalRow(r desired.Removal, f Facts) metav1.Condition {
	const deleted = "the NodeProxy is being deleted with removalPolicy Cleanup"
	c := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionFalse}
	switch {
	case r.Done:
		c.Reason, c.Message = v1alpha1.ReasonRemoved, r.Message
	case r.Err != nil:
		c.Reason, c.Message = v1alpha1.ReasonFailed, fmt.Sprintf("%s, but not everything of nodeproxy could be removed from this node: %s; the agent tries again", deleted, wording.OneLine(r.Err))
	case f.OtherProxy != "":
		c.Reason, c.Message = v1alpha1.ReasonPending, fmt.Sprintf("%s: the rules of this node are removed once another proxy (%s) has shown no sign for %s", deleted, f.OtherProxy, f.OtherWait)
	default:
		c.Reason, c.Message = v1alpha1.ReasonPending, deleted+": the rules of this node are about to be removed"
	}
	return c
}
