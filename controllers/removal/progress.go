package removal

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

const (
	// removalLimit is how long to wait for nodes to remove their rules after NodeProxy was deleted,
	// from the API server's time of the deletion by the controller's clock.
	removalLimit = 5 * time.Minute
	// maxNodesNamed is how many nodes a message about a removal names.
	maxNodesNamed = 10
)

// removalState is the progress of the nodes in removing their rules.
type removalState struct {
	removed int
	// waiting are the nodes that have not finished, by name, with the failure that they report, if
	// any.
	waiting []string
	// silent are the nodes whose agent once worked and does not respond any more, by name. They are
	// not waited for, and may still have rules.
	silent []string
}

// removalOf returns the progress. Nodes whose agent does not respond, or that are absent, are not
// waited for.
func removalOf(rules []v1alpha1.NodeProxyRules) removalState {
	var s removalState
	for i := range rules {
		r := &rules[i]
		if reports.Absent(r) {
			continue
		}
		if reports.NotResponding(r) {
			if r.Status.Agent != nil {
				s.silent = append(s.silent, r.Name)
			}
			continue
		}
		programmed := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ConditionProgrammed)
		switch {
		case programmed != nil && programmed.Reason == v1alpha1.ReasonRemoved:
			s.removed++
		case programmed != nil && programmed.Reason == v1alpha1.ReasonFailed && programmed.Message != "":
			s.waiting = append(s.waiting, fmt.Sprintf("%s (%s)", r.Name, text.Truncate(programmed.Message, 200)))
		default:
			s.waiting = append(s.waiting, r.Name)
		}
	}
	slices.Sort(s.waiting)
	slices.Sort(s.silent)
	return s
}

// left says on which nodes rules may be left, once none is waited for any longer; empty: none.
func (s removalState) left() string {
	var parts []string
	if len(s.waiting) > 0 {
		parts = append(parts, fmt.Sprintf("rules may be left on %s, which did not finish within %s after NodeProxy was deleted",
			text.FirstNames(s.waiting, maxNodesNamed), text.Age(removalLimit)))
	}
	if len(s.silent) > 0 {
		parts = append(parts, fmt.Sprintf("rules may be left on %s, where the agent does not respond", text.FirstNames(s.silent, maxNodesNamed)))
	}
	return strings.Join(parts, "; ")
}

// Condition is the condition Ready of a NodeProxy that is being removed.
func Condition(np *v1alpha1.NodeProxy, rules []v1alpha1.NodeProxyRules) metav1.Condition {
	s := removalOf(rules)
	message := fmt.Sprintf("%d of %d nodes have removed their rules", s.removed, s.removed+len(s.waiting))
	if len(s.waiting) > 0 {
		message += fmt.Sprintf("; waiting until %s at the latest for %s",
			np.DeletionTimestamp.Add(removalLimit).UTC().Format(time.RFC3339), text.FirstNames(s.waiting, maxNodesNamed))
	}
	return metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRemoving,
		Message: message,
	}
}
