package status

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// auditCondition is the condition Programmed with Audit, once the kernel has
// been compared. What differs is in status.difference alone: where rules come and
// go, a message that told it would have the status written time and again.
func auditCondition(s desired.Snapshot, f Facts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAuditInSync,
		Message: "the kernel holds what is wanted; enforcement is Audit: " + maintainer(f)}
	if d := s.Difference; d != nil && d.Count > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonAuditDiffers
		c.Message = "the kernel differs from what is wanted: status.difference says where; enforcement is Audit: " + maintainer(f)
	}
	return c
}

// maintainer says who maintains the rules with Audit.
func maintainer(f Facts) string {
	switch {
	case f.OtherProxy != "" && f.OtherGone.IsZero():
		return fmt.Sprintf("this agent writes nothing; another proxy runs on this node (%s)", f.OtherProxy)
	case f.OtherProxy != "":
		return fmt.Sprintf("this agent writes nothing; another proxy ran on this node (%s) and has shown no sign since %s", f.OtherProxy, f.OtherGone.UTC().Format(time.RFC3339))
	case f.Unanswered:
		return "this agent writes nothing, and it cannot be told yet whether another proxy runs on this node"
	default:
		return "nobody maintains the rules, because this agent writes nothing and no other proxy shows on this node; start kube-proxy on it, or set spec.settings.enforcement to Enforce"
	}
}
