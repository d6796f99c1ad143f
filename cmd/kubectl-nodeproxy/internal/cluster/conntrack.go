package cluster

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// nearlyFull is the usage in percent that is too high, whatever the agent reports.
const nearlyFull = 80

// ConntrackNearlyFull reports whether a node's connection tracking table is nearly full, and
// returns the condition that says so, if any.
func ConntrackNearlyFull(status *v1alpha1.NodeProxyRulesStatus) (*metav1.Condition, bool) {
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionConntrackPressure)
	if c != nil && c.Status == metav1.ConditionTrue {
		return c, true
	}
	return nil, status.Conntrack != nil && status.Conntrack.UsagePercent >= nearlyFull
}
