package rollouts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

// maxFieldsInText is how many fields a message names.
const maxFieldsInText = 10

// Action is the action of events about rollouts.
const Action = "RollOut"

// status returns the status of a policy. What has not changed is as it is stored.
func (p *pass) status(policy *v1alpha1.NodeProxyPolicy, now time.Time) *v1alpha1.NodeProxyPolicyStatus {
	status := policy.Status.DeepCopy()
	status.ObservedGeneration = policy.Generation
	status.Nodes, status.Updated, status.Programmed = 0, 0, 0
	if s := p.decision.States[policy.Name]; s != nil {
		status.Nodes, status.Updated, status.Programmed = int32(s.Nodes), int32(s.Updated), int32(s.Programmed)
	}
	t := p.tallyOf(policy.Name)
	status.Examples = p.examples(policy.Name, t)
	ready, accepted := p.ready(policy.Name, t), reports.True(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")
	if invalid := p.invalid(policy.Name); invalid.Reason != "" {
		accepted = reports.False(v1alpha1.ConditionAccepted, invalid.Reason, invalid.Message)
	}
	reports.Set(&status.Conditions, policy.Generation, now, ready, accepted, p.overriddenBy(policy))
	reports.SetAbnormal(&status.Conditions, ready, policy.Generation, now,
		v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonInvalidResult)
	return status
}

// examples returns the nodes that do not count as programmed.
func (p *pass) examples(policy string, t tally) []v1alpha1.NodeExample {
	var out []v1alpha1.NodeExample
	for which := range done {
		for _, m := range t[which] {
			if len(out) == text.MaxExamples {
				return out
			}
			reason, message := p.example(m, which, policy)
			out = append(out, v1alpha1.NodeExample{Name: m.Name, Reason: reason, Message: text.Truncate(message, text.MaxExampleMessage)})
		}
	}
	return out
}

func (p *pass) ready(policy string, t tally) metav1.Condition {
	s := p.decision.States[policy]
	found := p.invalid(policy)
	switch {
	case found.Reason == v1alpha1.ReasonInvalidPolicy:
	case p.nodeProxy == nil:
		found = reports.Finding{
			Reason:  v1alpha1.ReasonNoNodeProxy,
			Message: "There is no NodeProxy, so nodes are not changed. Create one named " + v1alpha1.NodeProxyName + ".",
		}
	case found.Reason != "":
	case len(s.Missed) > 0 || s.Pending > 0 || len(t[waiting]) > 0 || len(t[updating]) > 0:
		found = p.unfinished(policy, t)
	case len(t[retaining]) > 0 || len(t[failing]) > 0:
		found = reports.Finding{Reason: v1alpha1.ReasonNodesNotProgrammed, Message: p.failingText(policy, t)}
	case s.Nodes == 0:
		return reports.True(v1alpha1.ConditionReady, v1alpha1.ReasonNothingSelected,
			"No Linux node matches spec.nodeSelector. Compare it with the labels in `kubectl get nodes --show-labels`.")
	case s.Nodes == 1:
		return reports.True(v1alpha1.ConditionReady, v1alpha1.ReasonApplied, "The selected node has applied its settings.")
	default:
		return reports.True(v1alpha1.ConditionReady, v1alpha1.ReasonApplied, fmt.Sprintf("All %d selected nodes have applied their settings.", s.Nodes))
	}
	return reports.False(v1alpha1.ConditionReady, found.Reason, found.Message)
}

// finding is what NodeProxy's own condition Ready reports about changes by NodeProxy itself.
func (p *pass) finding() reports.Finding {
	s := p.decision.States[policies.Base]
	if s == nil || len(s.Missed) == 0 && s.Pending == 0 && s.InFlight() == 0 {
		return reports.Finding{}
	}
	return p.unfinished(policies.Base, p.tallyOf(policies.Base))
}

// unfinished reports the state of a rollout that has not finished.
func (p *pass) unfinished(budget string, t tally) reports.Finding {
	s := p.decision.States[budget]
	switch {
	case len(s.Missed) > 0:
		return reports.Finding{Reason: v1alpha1.ReasonRolloutHalted, Message: p.haltedText(budget, t)}
	case s.Pending > 0 && p.set.Budgets[budget].Paused:
		return reports.Finding{
			Reason:  v1alpha1.ReasonPaused,
			Message: fmt.Sprintf("The rollout is paused: %s. Set spec.rollout.paused to false to continue.", countsText(t)),
		}
	}
	return reports.Finding{Reason: v1alpha1.ReasonProgressing, Message: p.progressText(budget, t)}
}

func (p *pass) overriddenBy(policy *v1alpha1.NodeProxyPolicy) metav1.Condition {
	fields := p.overridden[policy.Name]
	if len(fields) == 0 {
		return reports.False(v1alpha1.ConditionOverridden, v1alpha1.ReasonNotOverridden, "")
	}
	priority := func(policy *v1alpha1.NodeProxyPolicy) int32 {
		return ptr.Deref(cmp.Or(policy, &v1alpha1.NodeProxyPolicy{}).Spec.Priority, 0)
	}
	var parts []string
	for _, path := range slices.Sorted(maps.Keys(fields)) {
		for _, name := range fields[path] {
			parts = append(parts, fmt.Sprintf("policy %s (%s) sets spec.settings.%s", name, text.WinsBy(priority(p.set.Find(name)), priority(policy)), path))
		}
	}
	if more := len(parts) - maxFieldsInText; more > 0 {
		parts = append(parts[:maxFieldsInText], fmt.Sprintf("and %d more", more))
	}
	return reports.True(v1alpha1.ConditionOverridden, v1alpha1.ReasonOverridden, text.Capital(strings.Join(parts, "; "))+".")
}

// invalid reports what is wrong with a policy, or with what it results in. It names the other
// policies involved, because the mistake may be theirs.
func (p *pass) invalid(policy string) reports.Finding {
	if err := p.set.Invalid[policy]; err != nil {
		return reports.Finding{
			Reason:  v1alpha1.ReasonInvalidPolicy,
			Message: text.Sentence("This policy is not used, and the nodes that it selects or has shaped retain their settings. Correct " + err.Error()),
		}
	}
	if p.blamed[policy] == nil {
		return reports.Finding{}
	}
	together := "Together with NodeProxy"
	var others []string
	for _, m := range p.selected[policy] {
		if m.resolution.Invalid != nil && slices.Contains(m.resolution.Blamed, policy) {
			others = append(others, m.resolution.Policies...)
		}
	}
	slices.Sort(others)
	others = slices.DeleteFunc(slices.Compact(others), func(name string) bool { return name == policy })
	if len(others) > 0 {
		together += " and " + named(others)
	}
	return reports.Finding{
		Reason:  v1alpha1.ReasonInvalidResult,
		Message: text.Sentence(fmt.Sprintf("%s, this policy results in invalid settings, and nodes retain theirs. Correct %s", together, p.blamed[policy])),
	}
}

// haltedText names the nodes that have halted a rollout, and what lets it continue.
func (p *pass) haltedText(budget string, t tally) string {
	missed, first := t.names(missedDeadline), t[missedDeadline][0]
	nodes, their, fix := "Node", "its", "Fix the node, change spec, or delete its Node"
	if len(missed) > 1 {
		nodes, their, fix = "Nodes", "their", "Fix the nodes, change spec, or delete their Nodes"
	}
	waits := "no other node is waiting"
	switch n := len(t[waiting]); {
	case n == 1:
		waits = "1 other node is waiting"
	case n > 1:
		waits = fmt.Sprintf("%d other nodes are waiting", n)
	}
	return fmt.Sprintf("%s %s did not apply %s settings within %d s of %s (%s). %s; %s.", nodes, text.Some(missed, maxNodesInText), their,
		int(p.set.Budgets[budget].Deadline.Seconds()), first.Given.UTC().Format(time.RFC3339), nodeProblem(first.rules), fix, waits)
}

// progressText describes the progress of a rollout, and what it waits for.
func (p *pass) progressText(budget string, t tally) string {
	s := p.decision.States[budget]
	parts := []string{countsText(t)}
	if len(t[waiting]) > 0 {
		parts = append(parts, fmt.Sprintf("at most %d may be unavailable", s.Max))
		if blocking := t.names(failing); s.InFlight() == 0 && len(blocking) > 0 && s.Unavailable >= s.Max {
			parts = append(parts, fmt.Sprintf("%s must be programmed first (%s)", text.Some(blocking, maxNodesInText), nodeProblem(t[failing][0].rules)))
		}
	}
	for _, name := range t.others(budget) {
		switch other := p.decision.States[name]; {
		case other == nil:
		case len(other.Missed) > 0:
			parts = append(parts, fmt.Sprintf("some wait for %s, whose rollout has halted", whose(name)))
		case p.set.Budgets[name].Paused:
			parts = append(parts, fmt.Sprintf("some wait for %s, whose rollout is paused", whose(name)))
		default:
			parts = append(parts, "some are also part of the rollout of "+whose(name))
		}
	}
	return strings.Join(parts, "; ") + "."
}

// named lists policies, as in "policy a" or "policies a, b".
func named(policies []string) string {
	if len(policies) == 1 {
		return "policy " + policies[0]
	}
	return "policies " + text.Some(policies, maxNodesInText)
}

func whose(budget string) string {
	if budget == policies.Base {
		return "NodeProxy"
	}
	return "policy " + budget
}

func countsText(t tally) string {
	total := 0
	for _, nodes := range t {
		total += len(nodes)
	}
	parts := []string{text.CountOf(len(t[done]), total, "node") + " done"}
	for _, c := range []struct {
		which progress
		text  string
	}{
		{missedDeadline, "missed the deadline"}, {updating, "being updated"}, {failing, "not programmed"}, {retaining, "with retained settings"},
	} {
		if names := t.names(c.which); len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s (%s)", len(names), c.text, text.Some(names, maxNodesInText)))
		}
	}
	if n := len(t[waiting]); n > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting", n))
	}
	return strings.Join(parts, ", ")
}

// failingText describes failing nodes while nothing waits.
func (p *pass) failingText(policy string, t tally) string {
	which := failing
	if len(t[which]) == 0 {
		which = retaining
	}
	_, message := p.example(t[which][0], which, policy)
	return text.Sentence(fmt.Sprintf("%s; node %s: %s", countsText(t), t[which][0].Name, message))
}

// example describes a node that is named as an example.
func (p *pass) example(m *fleetNode, which progress, budget string) (reason, message string) {
	switch which {
	case missedDeadline:
		return v1alpha1.ReasonDeadlineMissed, fmt.Sprintf("not applied since %s: %s", m.Given.UTC().Format(time.RFC3339), nodeReport(m.rules))
	case retaining:
		return m.retains.Reason, m.retains.Message
	case failing:
		reason, _, _ = strings.Cut(nodeReport(m.rules), ":")
		if strings.Contains(reason, " ") { // no report at all
			reason = v1alpha1.ReasonAgentNotResponding
		}
		return reason, nodeReport(m.rules)
	case waiting:
		var others []string
		for _, name := range m.Causes {
			if name != budget {
				others = append(others, whose(name))
			}
		}
		if len(others) > 0 {
			message = "is part of the rollout of " + strings.Join(others, " and ")
		}
		return v1alpha1.ReasonWaiting, message
	}
	given := m.Given
	if p.granted[m.Name] {
		given = p.now
	}
	return v1alpha1.ReasonUpdating, "received its settings at " + given.UTC().Format(time.RFC3339)
}

// Transition returns the event for a change of a policy's condition Ready. What nodes do outside a
// rollout has none: it is in the status.
func Transition(was, is string) (what events.Kind, worth bool) {
	severity := ""
	switch is {
	case was:
	case v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused:
		severity = events.Normal
	case v1alpha1.ReasonApplied:
		// Not when failed nodes have recovered, or the first node appears.
		if was != v1alpha1.ReasonNodesNotProgrammed && was != v1alpha1.ReasonNothingSelected {
			severity = events.Normal
		}
	case v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonInvalidResult:
		severity = events.Warning
	}
	return events.Kind{Severity: severity, Reason: is, Action: Action}, severity != ""
}
