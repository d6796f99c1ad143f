package summary

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/liveness"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

// maxRejectedNamed is how many rejected Services the status names.
const maxRejectedNamed = 10

// countNodes counts nodes by what their rules report, except for lagging ones. Absent Nodes do not
// count: their rules are only retained in case the Node returns.
func countNodes(rules []v1alpha1.NodeProxyRules) v1alpha1.NodeCounts {
	var counts v1alpha1.NodeCounts
	for i := range rules {
		if reports.Absent(&rules[i]) {
			continue
		}
		counts.Total++
		status, settings := &rules[i].Status, &rules[i].Spec.Settings
		if programmed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed); programmed != nil {
			switch programmed.Status {
			case metav1.ConditionTrue:
				counts.Programmed++
			case metav1.ConditionFalse:
				counts.NotProgrammed++
			}
		}
		if reports.NotResponding(&rules[i]) {
			counts.Stale++
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

// readiness decides the condition Ready of a NodeProxy. next is when its message changes with time
// alone; 0: it does not.
func readiness(rules []v1alpha1.NodeProxyRules, counts v1alpha1.NodeCounts, invalid error, now time.Time) (ready metav1.Condition, next time.Duration) {
	ready = metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	switch {
	case invalid != nil:
		ready.Reason = v1alpha1.ReasonInvalidSettings
		ready.Message = "Nodes keep their settings because those of NodeProxy are not valid: " + invalid.Error()
	case counts.Total == 0:
		ready.Reason = v1alpha1.ReasonNoNodes
		ready.Message = "There is no Linux Node."
	case counts.Programmed < counts.Total:
		ready.Reason = v1alpha1.ReasonNodesNotProgrammed
		ready.Message, next = notProgrammed(rules, now)
	default:
		ready.Status = metav1.ConditionTrue
		ready.Reason = v1alpha1.ReasonAllProgrammed
	}
	return ready, next
}

// setStalled sets the condition Stalled while Ready cannot become True without intervention, and
// removes it otherwise. Tools that follow kstatus need it to report a failure.
func setStalled(status *v1alpha1.NodeProxyStatus, ready metav1.Condition, generation int64, now time.Time) {
	reports.SetStalled(&status.Conditions, ready, generation, now,
		v1alpha1.ReasonInvalidSettings, v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonAPIServerUnreachable,
		v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetDenied, v1alpha1.ReasonAgentPodsFailing)
}

// notProgrammed names the first node, by name, that is not programmed, says why, and counts the
// others. Nodes whose agent responds come first, because more is known about them, and those
// without any report last. next is as in readiness.
func notProgrammed(rules []v1alpha1.NodeProxyRules, now time.Time) (why string, next time.Duration) {
	var first *v1alpha1.NodeProxyRules
	count := 0
	for i := range rules {
		r := &rules[i]
		if reports.Absent(r) || meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionProgrammed) {
			continue
		}
		count++
		if first == nil || cmp.Or(cmp.Compare(knowledge(r), knowledge(first)), cmp.Compare(r.Name, first.Name)) < 0 {
			first = r
		}
	}
	if first == nil {
		return "", 0
	}
	c := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionProgrammed)
	switch {
	case c == nil:
		why = "no report of its agent yet; is nodeproxy-agent running there?"
	case reports.NotResponding(first) && first.Status.Agent == nil:
		why = "no agent has ever reported; is nodeproxy-agent running there?"
	case reports.NotResponding(first):
		var age time.Duration
		age, next = silentFor(c, now)
		why = "no heartbeat for " + text.Age(age)
	case c.Message == "":
		why = c.Reason
	default:
		why = c.Reason + ": " + c.Message
	}
	why = first.Name + ": " + why
	if count > 1 {
		why += fmt.Sprintf(" (and %d more)", count-1)
	}
	return why, next
}

// knowledge ranks nodes by how much is known about them: the most comes first.
func knowledge(rules *v1alpha1.NodeProxyRules) int {
	switch c := meta.FindStatusCondition(rules.Status.Conditions, v1alpha1.ConditionProgrammed); {
	case c == nil:
		return 2
	case reports.NotResponding(rules):
		return 1
	default:
		return 0
	}
}

// silentFor returns how long an agent that does not respond has been silent, in steps so that the
// message does not change all the time: of a minute in the first hour, then of an hour, then of a
// day. next is when the next step is reached.
func silentFor(reported *metav1.Condition, now time.Time) (age, next time.Duration) {
	total := liveness.Silence + max(0, now.Sub(reported.LastTransitionTime.Time))
	step, start, end := time.Minute, liveness.Silence, time.Hour
	switch {
	case total >= 48*time.Hour:
		step, start, end = 24*time.Hour, 0, math.MaxInt64
	case total >= time.Hour:
		step, start, end = time.Hour, 0, 48*time.Hour
	}
	age = (total - start).Truncate(step) + start
	return age, min(age+step, end) - total
}
