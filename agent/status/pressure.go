package status

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// pressureCondition says whether the connection tracking table is nearly full.
// Between the two limits it is as it was, which the stored status tells also
// after a restart. Its messages hold no figures, which would have it written
// time and again. A node that never had it does not have the condition.
func pressureCondition(report *v1alpha1.ConntrackReport, former []metav1.Condition) *metav1.Condition {
	old := meta.FindStatusCondition(former, v1alpha1.ConditionConntrackPressure)
	before := old != nil && old.Status == metav1.ConditionTrue
	switch {
	case report == nil && old == nil:
		return nil
	case report == nil: // not known: as it was
		return old
	case conntrack.Pressed(before, report.Entries, report.Max):
		return &metav1.Condition{
			Type: v1alpha1.ConditionConntrackPressure, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTableNearlyFull,
			Message: fmt.Sprintf("the connection tracking table has been %d %% full or more, see status.conntrack: %s", conntrack.PressureFrom, conntrack.PressureAdvice),
		}
	case old == nil:
		return nil
	default:
		return &metav1.Condition{
			Type: v1alpha1.ConditionConntrackPressure, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTableHasRoom,
			Message: fmt.Sprintf("the connection tracking table has room: once %d %% are in use, this becomes True", conntrack.PressureFrom),
		}
	}
}

// trackingMoved reports whether the figures of connection tracking have changed
// so much that they are written without waiting for others.
func trackingMoved(wanted, stored *v1alpha1.ConntrackReport) bool {
	if wanted == nil || stored == nil {
		return wanted != stored
	}
	step := wanted.UsagePercent - stored.UsagePercent
	return max(step, -step) >= conntrack.UsageStep || wanted.Max != stored.Max || wanted.Buckets != stored.Buckets
}
