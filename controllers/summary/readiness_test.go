package summary

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/test/messages"
)

func TestHowLongAnAgentIsSilent(t *testing.T) {
	start := time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)
	reported := &metav1.Condition{LastTransitionTime: metav1.NewTime(start)}
	for _, tt := range []struct {
		since time.Duration // since it was reported
		text  string
		next  time.Duration
	}{
		{-time.Hour, "1m30s", time.Minute}, // another controller's clock is ahead
		{0, "1m30s", time.Minute},
		{59 * time.Second, "1m30s", time.Second},
		{time.Minute, "2m30s", time.Minute},
		{58*time.Minute + 29*time.Second, "59m30s", time.Second},
		{58*time.Minute + 30*time.Second, "1h", time.Hour},
		{3 * time.Hour, "3h", 58*time.Minute + 30*time.Second},
		{48 * time.Hour, "2d", 24*time.Hour - 90*time.Second},
		{240 * time.Hour, "10d", 24*time.Hour - 90*time.Second},
	} {
		age, next := silentFor(reported, start.Add(tt.since))
		if got := text.Age(age); got != tt.text || next != tt.next {
			t.Errorf("%v after it was reported: %s, next in %v; want %s, %v", tt.since, got, next, tt.text, tt.next)
		}
	}
}

func TestSummary(t *testing.T) {
	now := time.Date(2026, 11, 20, 6, 0, 0, 0, time.UTC)
	audit := v1alpha1.Audit
	rules := func(name string, conditions ...metav1.Condition) v1alpha1.NodeProxyRules {
		return v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.NodeProxyRulesStatus{Conditions: conditions}}
	}
	programmed := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: message}
	}
	fallback := metav1.Condition{Type: v1alpha1.ConditionModeFallback, Status: metav1.ConditionTrue}
	auditing := rules("d", programmed("True", v1alpha1.ReasonAuditInSync, ""))
	auditing.Spec.Settings.Enforcement = &audit
	all := []v1alpha1.NodeProxyRules{
		rules("c", programmed("Unknown", v1alpha1.ReasonAgentNotResponding, "")),
		rules("b", programmed("False", v1alpha1.ReasonPending, "")),
		rules("a", programmed("True", v1alpha1.ReasonProgrammed, ""), fallback),
		auditing,
		rules("e"),
	}
	all[0].Status.Agent = &v1alpha1.AgentReport{}
	all[0].Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-40 * time.Second))
	never := rules("f", all[0].Status.Conditions[0])
	absentee := rules("a-gone", programmed("Unknown", v1alpha1.ReasonAgentNotResponding, ""))
	absentee.Annotations = map[string]string{v1alpha1.AnnotationNodeAbsentSince: "2026-11-20T06:00:00Z"}
	all = append(all, absentee)
	counts := countNodes(all)
	if diff := cmp.Diff(v1alpha1.NodeCounts{Total: 5, Programmed: 2, NotProgrammed: 1, Stale: 1, Audit: 1, Fallback: 1}, counts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if stale := staleNodes(all); !slices.Equal(stale, []string{"c"}) {
		t.Errorf("stale: %v", stale)
	}
	for name, c := range map[string]struct {
		rules   []v1alpha1.NodeProxyRules
		invalid error
		want    string
	}{
		"several": {rules: all, want: "False NodesNotProgrammed Node b: Pending (and 2 more)."},
		"stale":   {rules: []v1alpha1.NodeProxyRules{all[0], all[4], absentee}, want: "False NodesNotProgrammed Node c: no heartbeat for 1m30s (and 1 more). Check that nodeproxy-agent runs there."},
		"never":   {rules: []v1alpha1.NodeProxyRules{never}, want: "False NodesNotProgrammed Node f: no agent has ever reported. Check that nodeproxy-agent runs there."},
		"silent":  {rules: all[4:5], want: "False NodesNotProgrammed Node e: no report from its agent yet. Check that nodeproxy-agent runs there."},
		"a longer message": {
			rules: []v1alpha1.NodeProxyRules{rules("a", programmed("False", v1alpha1.ReasonFailed, "Not everything could be written: no. The agent retries.")), rules("b")},
			want:  "False NodesNotProgrammed Node a: Failed: Not everything could be written: no (and 1 more).",
		},
		"all well": {rules: []v1alpha1.NodeProxyRules{all[2], all[3], absentee}, want: "True AllProgrammed "},
		"no nodes": {want: "False NoNodes There is no Linux Node."},
		"invalid":  {rules: all, invalid: errors.New("spec.settings.mode: wrong"), want: "False InvalidSettings Nodes retain their settings because those of NodeProxy are invalid. Correct spec.settings.mode: wrong."},
	} {
		got, _ := readiness(c.rules, countNodes(c.rules), c.invalid, now)
		if text := fmt.Sprintf("%s %s %s", got.Status, got.Reason, got.Message); text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
		messages.Check(t, got.Message)
	}
}

// TestAbnormal: while Ready is not True, a user sees whether to intervene, by one condition.
func TestAbnormal(t *testing.T) {
	status := &v1alpha1.NodeProxyStatus{}
	for _, c := range []struct {
		reason  string
		stalled bool
	}{
		{v1alpha1.ReasonProgressing, false}, {v1alpha1.ReasonRolloutHalted, true}, {v1alpha1.ReasonNodesNotProgrammed, false},
		{v1alpha1.ReasonInvalidSettings, true}, {v1alpha1.ReasonPaused, false}, {v1alpha1.ReasonAPIServerUnreachable, true},
		{v1alpha1.ReasonNoAgentImage, true}, {v1alpha1.ReasonDaemonSetDenied, true}, {v1alpha1.ReasonAgentPodsFailing, true},
		{v1alpha1.ReasonAgentPodsNotReady, false}, {v1alpha1.ReasonNoNodes, false}, {v1alpha1.ReasonRemoving, false}, {v1alpha1.ReasonAllProgrammed, false},
	} {
		ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: c.reason, Message: "why"}
		want := v1alpha1.ConditionReconciling
		switch {
		case c.stalled:
			want = v1alpha1.ConditionStalled
		case c.reason == v1alpha1.ReasonAllProgrammed:
			ready.Status, want = metav1.ConditionTrue, ""
		case c.reason == v1alpha1.ReasonPaused:
			want = ""
		}
		setAbnormal(status, ready, 2, controllertest.Noon)
		got := ""
		for _, condition := range status.Conditions {
			got += condition.Type
			if condition.Status != metav1.ConditionTrue || condition.Reason != c.reason || condition.Message != "why" || condition.ObservedGeneration != 2 {
				t.Errorf("%s: %+v", c.reason, condition)
			}
		}
		if got != want {
			t.Errorf("%s: conditions %q, want %q", c.reason, got, want)
		}
	}
}
