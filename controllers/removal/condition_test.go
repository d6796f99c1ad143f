package removal

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/messages"
)

// TestConditionCountsNodes, and names those that it waits for, in two sentences at most.
func TestConditionCountsNodes(t *testing.T) {
	node := func(name string, status metav1.ConditionStatus, reason, message string) v1alpha1.NodeProxyRules {
		return v1alpha1.NodeProxyRules{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1alpha1.NodeProxyRulesStatus{Agent: &v1alpha1.AgentReport{}, Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: message},
			}},
		}
	}
	const failure = "The NodeProxy is being deleted, but not everything could be removed from this node: exit status 4. The agent retries."
	removed := node("a", metav1.ConditionFalse, v1alpha1.ReasonRemoved, "The rules are removed.")
	waiting := node("b", metav1.ConditionFalse, v1alpha1.ReasonPending, "The rules are about to be removed.")
	failing := node("c", metav1.ConditionFalse, v1alpha1.ReasonFailed, failure)
	silent := node("d", metav1.ConditionUnknown, v1alpha1.ReasonAgentNotResponding, "No heartbeat. Check it.")
	np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Date(2026, 11, 20, 6, 0, 0, 0, time.UTC)}}}
	for _, tt := range []struct {
		rules []v1alpha1.NodeProxyRules
		want  string
	}{
		{nil, "0 of 0 nodes have removed their rules."},
		{[]v1alpha1.NodeProxyRules{removed}, "1 of 1 node has removed its rules."},
		{[]v1alpha1.NodeProxyRules{waiting, silent}, "0 of 1 node has removed its rules. Waiting until 2026-11-20T06:05:00Z at the latest for b."},
		{
			[]v1alpha1.NodeProxyRules{failing, removed, waiting},
			"1 of 3 nodes have removed their rules. Waiting until 2026-11-20T06:05:00Z at the latest for b, " +
				"c (The NodeProxy is being deleted, but not everything could be removed from this node: exit status 4).",
		},
	} {
		got := Condition(np, tt.rules).Message
		if got != tt.want {
			t.Errorf("%s, want\n%s", got, tt.want)
		}
		messages.Check(t, got)
	}
	left := removalOf([]v1alpha1.NodeProxyRules{failing, silent}).left()
	if !strings.Contains(left, "rules may be left on c (") || !strings.Contains(left, "; rules may be left on d, ") {
		t.Error(left)
	}
	messages.Check(t, notCleaned(left))
}
