package startuptaint

import (
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// hasStartupTaint reports whether a Node still repels pods until its Services are served.
func hasStartupTaint(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, isStartupTaint)
}

// isStartupTaint compares the key: users who set the taint choose value and effect.
func isStartupTaint(t corev1.Taint) bool { return t.Key == v1alpha1.TaintAgentNotReady }

// withoutStartupTaint returns all other taints, in their order.
func withoutStartupTaint(taints []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), isStartupTaint)
}

// servesPods reports whether, by the last report of a node, pods on it reach Services: the agent
// has applied or compared its desired rules, or another proxy is active there. The readiness of the
// agent's pod has the same criteria.
func servesPods(rules *v1alpha1.NodeProxyRules) bool {
	if !meta.IsStatusConditionTrue(rules.Status.Conditions, v1alpha1.ConditionAccepted) {
		return false
	}
	programmed := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	switch {
	case programmed == nil:
		return false
	case programmed.Status == metav1.ConditionTrue:
		return true
	default:
		return programmed.Reason == v1alpha1.ReasonAuditDiffers || programmed.Reason == v1alpha1.ReasonConflictingProxy
	}
}

// sameRun reports whether the agent that renews the Lease has written the report. A report outlives
// its writer, and rules outlive their Node, so a recreated Node has the report of its former life.
func sameRun(rules *v1alpha1.NodeProxyRules, lease *coordinationv1.Lease) bool {
	if rules.Status.Agent == nil {
		return false
	}
	started := lease.Spec.AcquireTime
	return started == nil || // an agent that does not report it
		started.Truncate(time.Second).Equal(rules.Status.Agent.StartTime.Time)
}

// renewedSince reports whether the agent has renewed its Lease since before, which is zero if there
// was none.
func renewedSince(before metav1.MicroTime, lease *coordinationv1.Lease) bool {
	return lease != nil && lease.Spec.RenewTime != nil && !lease.Spec.RenewTime.IsZero() && !lease.Spec.RenewTime.Equal(&before)
}
