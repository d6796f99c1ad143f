package summary

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/liveness"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/rollouts"
)

const (
	// maxUnrenderedNamed is how many unrendered Services the status names.
	maxUnrenderedNamed = 10

	eventDetectLocalNotSet = "DetectLocalNotSet"
	actionConfigure        = "Configure"
	// detectLocalNotSet is the message of Ready, and of the event, if detectLocal is missing.
	detectLocalNotSet = "All nodes are programmed, but spec.settings.detectLocal is not set: traffic from pods is treated like that of external clients. " +
		"Set it to match the pod network, or to mode None if that is intended."
)

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

// staleNodes names the nodes that countNodes counts as stale.
func staleNodes(rules []v1alpha1.NodeProxyRules) []string {
	var out []string
	for i := range rules {
		if !reports.Absent(&rules[i]) && reports.NotResponding(&rules[i]) {
			out = append(out, rules[i].Name)
		}
	}
	return out
}

// readiness decides the condition Ready of a NodeProxy. next is when its message changes with time
// alone; 0: it does not.
func readiness(rules []v1alpha1.NodeProxyRules, counts v1alpha1.NodeCounts, invalid error, now time.Time) (ready metav1.Condition, next time.Duration) {
	const kind = v1alpha1.ConditionReady
	switch {
	case invalid != nil:
		return reports.False(kind, v1alpha1.ReasonInvalidSettings,
			text.Sentence("Nodes retain their settings because those of NodeProxy are invalid. Correct "+invalid.Error())), 0
	case counts.Total == 0:
		return reports.False(kind, v1alpha1.ReasonNoNodes, "There is no Linux Node."), 0
	case counts.Programmed < counts.Total:
		why, next := notProgrammed(rules, now)
		return reports.False(kind, v1alpha1.ReasonNodesNotProgrammed, why), next
	}
	return reports.True(kind, v1alpha1.ReasonAllProgrammed, ""), 0
}

// setAbnormal sets the condition Stalled while Ready cannot become True without intervention, or
// Reconciling while it is otherwise not True.
func setAbnormal(status *v1alpha1.NodeProxyStatus, ready metav1.Condition, generation int64, now time.Time) {
	reports.SetAbnormal(&status.Conditions, ready, generation, now,
		v1alpha1.ReasonInvalidSettings, v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonAPIServerUnreachable,
		v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetDenied, v1alpha1.ReasonAgentPodsFailing)
}

// notProgrammed names the first node, by name, that is not programmed, with the reason and what to do,
// and counts the others. Nodes whose agent responds come first, because more is known about them,
// and those without any report last. next is as in readiness.
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
	remedy := " Check that nodeproxy-agent runs there."
	c := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionProgrammed)
	switch {
	case c == nil:
		why = "no report from its agent yet"
	case reports.NotResponding(first) && first.Status.Agent == nil:
		why = "no agent has ever reported"
	case reports.NotResponding(first):
		var age time.Duration
		age, next = silentFor(c, now)
		why = "no heartbeat for " + text.Age(age)
	case c.Message == "":
		why, remedy = c.Reason, ""
	default:
		why, remedy = c.Reason+": "+c.Message, ""
	}
	if count > 1 {
		why = fmt.Sprintf("%s (and %d more)", text.FirstSentence(why), count-1)
	}
	return text.Sentence("Node "+first.Name+": "+why) + remedy, next
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

// withProblems adds problems of the agents' deployment to the condition Ready. They come first if
// they prevent agents from working at all: then they are why nodes are not programmed, or soon will
// not be.
func withProblems(ready metav1.Condition, apiServers reports.Finding, agents *metav1.Condition) metav1.Condition {
	problem := apiServers
	if problem.Reason == "" && agents != nil {
		none := []string{v1alpha1.ReasonNoAgentImage, v1alpha1.ReasonDaemonSetDenied, v1alpha1.ReasonAgentPodsFailing}
		if slices.Contains(none, agents.Reason) || agents.Reason == v1alpha1.ReasonAgentPodsNotReady && ready.Status == metav1.ConditionTrue {
			problem = reports.Finding{Reason: agents.Reason, Message: agents.Message}
		}
	}
	if problem.Reason == "" || ready.Reason == v1alpha1.ReasonInvalidSettings {
		return ready
	}
	return reports.False(v1alpha1.ConditionReady, problem.Reason, problem.Message)
}

// transitionOfNodeProxy is rollouts.Transition for NodeProxy, whose condition Ready reports much
// else.
func transitionOfNodeProxy(was, is string) (what events.Kind, worth bool) {
	switch is {
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused, v1alpha1.ReasonRolloutHalted:
		return rollouts.Transition(was, is)
	case v1alpha1.ReasonAllProgrammed:
		ends := was == v1alpha1.ReasonProgressing || was == v1alpha1.ReasonPaused || was == v1alpha1.ReasonRolloutHalted
		return events.Kind{Severity: events.Normal, Reason: is, Action: rollouts.Action}, ends
	}
	return events.Kind{}, false
}

// withRollout adds the progress of a change of NodeProxy's own settings to the condition Ready.
// That it has halted is more important than that its node is not programmed.
func withRollout(ready metav1.Condition, change reports.Finding) metav1.Condition {
	halted := change.Reason == v1alpha1.ReasonRolloutHalted && ready.Reason == v1alpha1.ReasonNodesNotProgrammed
	if change.Reason == "" || !halted && ready.Status != metav1.ConditionTrue {
		return ready
	}
	return reports.False(v1alpha1.ConditionReady, change.Reason, change.Message)
}

// withDetectLocal returns the condition Ready with a warning if everything is programmed, pods
// are served and no setting states how their traffic is detected.
func withDetectLocal(ready metav1.Condition, np *v1alpha1.NodeProxy, rules []v1alpha1.NodeProxyRules) metav1.Condition {
	set := np.Spec.Settings != nil && np.Spec.Settings.DetectLocal != nil
	if ready.Status == metav1.ConditionTrue && !set && slices.ContainsFunc(rules, servesUndetectedPods) {
		ready.Message = detectLocalNotSet
	}
	return ready
}

// servesUndetectedPods reports whether a node does not detect local traffic and has an endpoint
// that is a pod with an address of its own.
func servesUndetectedPods(rules v1alpha1.NodeProxyRules) bool {
	if detect := rules.Spec.Settings.DetectLocal; detect != nil && detect.Mode != v1alpha1.DetectLocalNone {
		return false
	}
	for _, service := range rules.Spec.LocalEndpoints {
		for _, port := range service.Ports {
			for _, endpoint := range port.Endpoints {
				at, err := netip.ParseAddrPort(endpoint)
				if err == nil && !slices.Contains(rules.Spec.Node.Addresses, at.Addr().String()) {
					return true
				}
			}
		}
	}
	return false
}
