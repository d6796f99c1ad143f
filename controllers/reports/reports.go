package reports

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

// NotResponding reports whether the agent does not respond, by the status.
func NotResponding(rules *v1alpha1.NodeProxyRules) bool {
	c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	return c != nil && c.Status == metav1.ConditionUnknown && c.Reason == v1alpha1.ReasonAgentNotResponding
}

// Absent reports whether the Node of the rules does not exist.
func Absent(rules *v1alpha1.NodeProxyRules) bool {
	return rules.Annotations[v1alpha1.AnnotationNodeAbsentSince] != ""
}

// Set sets conditions of a generation, sorted by type. It truncates their messages, and retains the
// times of their last transitions.
func Set(all *[]metav1.Condition, generation int64, now time.Time, conditions ...metav1.Condition) {
	for _, c := range conditions {
		c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now.Truncate(time.Second))
		c.Message = text.Truncate(c.Message, text.MaxStatusMessage)
		meta.SetStatusCondition(all, c)
	}
	slices.SortFunc(*all, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
}

// SetStalled sets the condition Stalled if Ready has one of the reasons, and removes it otherwise.
func SetStalled(all *[]metav1.Condition, ready metav1.Condition, generation int64, now time.Time, reasons ...string) {
	if !slices.Contains(reasons, ready.Reason) {
		meta.RemoveStatusCondition(all, v1alpha1.ConditionStalled)
		return
	}
	ready.Type, ready.Status = v1alpha1.ConditionStalled, metav1.ConditionTrue
	Set(all, generation, now, ready)
}

// Ready returns the condition Ready; without a reason if there is none.
func Ready(all []metav1.Condition) metav1.Condition {
	return ptr.Deref(meta.FindStatusCondition(all, v1alpha1.ConditionReady), metav1.Condition{})
}

// True returns a condition that is True.
func True(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

// False returns a condition that is False.
func False(kind, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message}
}
