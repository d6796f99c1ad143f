package cluster

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// nearlyFull is from how many percent on a table of tracked connections is too full to
// leave it so, whatever its agent says.
const nearlyFull = 80

// ConntrackPressed reports whether a node's table of tracked connections is nearly full,
// and returns the condition that says so, if there is one.
func ConntrackPressed(status *v1alpha1.NodeProxyRulesStatus) (*metav1.Condition, bool) {
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionConntrackPressure)
	if c != nil && c.Status == metav1.ConditionTrue {
		return c, true
	}
	return nil, status.Conntrack != nil && status.Conntrack.UsagePercent >= nearlyFull
}
