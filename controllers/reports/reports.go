package reports

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NotResponding reports whether the status says that the agent does not respond.
func NotResponding(rules *v1alpha1.NodeProxyRules) bool {
	c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed)
	return c != nil && c.Status == metav1.ConditionUnknown && c.Reason == v1alpha1.ReasonAgentNotResponding
}

// Absent reports whether the Node of the rules does not exist.
func Absent(rules *v1alpha1.NodeProxyRules) bool {
	return rules.Annotations[v1alpha1.AnnotationNodeAbsentSince] != ""
}

// Ready returns the condition Ready; without a reason if there is none.
func Ready(all []metav1.Condition) metav1.Condition {
	if c := meta.FindStatusCondition(all, v1alpha1.ConditionReady); c != nil {
		return *c
	}
	return metav1.Condition{}
}
