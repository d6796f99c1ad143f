package controllers

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// maxRefusedNamed is how many refused Services the status names.
const maxRefusedNamed = 10

// countNodes counts nodes by what their agents report. Which agents give no
// sign of life or lag behind is not in their reports.
func countNodes(rules []v1alpha1.NodeProxyRules) v1alpha1.NodeCounts {
	counts := v1alpha1.NodeCounts{Total: int32(len(rules))}
	for i := range rules {
		status, settings := &rules[i].Status, &rules[i].Spec.Settings
		if programmed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed); programmed != nil {
			switch programmed.Status {
			case metav1.ConditionTrue:
				counts.Programmed++
			case metav1.ConditionFalse:
				counts.NotProgrammed++
			}
		}
		if settings.Enforcement != nil && *settings.Enforcement == v1alpha1.Audit {
			counts.Audit++
		}
		if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionModeFallback) {
			counts.Fallback++
		}
	}
	return counts
}

// readiness decides the condition Ready of a NodeProxy.
func readiness(rules []v1alpha1.NodeProxyRules, counts v1alpha1.NodeCounts, invalid error) metav1.Condition {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	switch {
	case invalid != nil:
		ready.Reason = v1alpha1.ReasonInvalidSettings
		ready.Message = truncated("nodes keep the settings they have, because: "+invalid.Error(), maxStatusMessage)
	case counts.Total == 0:
		ready.Reason = v1alpha1.ReasonNoNodes
		ready.Message = "there is no Linux Node"
	case counts.Programmed < counts.Total:
		ready.Reason = v1alpha1.ReasonNodesNotProgrammed
		ready.Message = truncated(notProgrammed(rules), maxStatusMessage)
	default:
		ready.Status = metav1.ConditionTrue
		ready.Reason = v1alpha1.ReasonAllProgrammed
	}
	return ready
}

// notProgrammed names the first node, by name, that is not programmed, says
// why, and how many others there are.
func notProgrammed(rules []v1alpha1.NodeProxyRules) string {
	var first *v1alpha1.NodeProxyRules
	count := 0
	for i := range rules {
		if meta.IsStatusConditionTrue(rules[i].Status.Conditions, v1alpha1.ConditionProgrammed) {
			continue
		}
		count++
		if first == nil || rules[i].Name < first.Name {
			first = &rules[i]
		}
	}
	if first == nil {
		return ""
	}
	text := first.Name + ": no report of its agent yet; is nodeproxy-agent running there?"
	if c := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionProgrammed); c != nil {
		text = first.Name + ": " + c.Reason
		if c.Message != "" {
			text += ": " + c.Message
		}
	}
	if count > 1 {
		text += fmt.Sprintf(" (and %d more)", count-1)
	}
	return text
}

// setReady enters a condition and keeps the time of its last transition.
func setReady(status *v1alpha1.NodeProxyStatus, ready metav1.Condition, generation int64, now time.Time) {
	ready.ObservedGeneration = generation
	ready.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
	meta.SetStatusCondition(&status.Conditions, ready)
	slices.SortFunc(status.Conditions, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
}
