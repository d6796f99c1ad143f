package rollouts

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

// How much a message names.
const (
	maxNodesInText  = 3
	maxFieldsInText = 10
)

const (
	noNodeProxyText     = "There is no NodeProxy, so nodes are not changed. Create one named " + v1alpha1.NodeProxyName + "."
	nothingSelectedText = "spec.nodeSelector selects no Linux node. Compare it with the labels in `kubectl get nodes --show-labels`."
)

func appliedText(nodes int) string {
	if nodes == 1 {
		return "The selected node has applied its settings."
	}
	return fmt.Sprintf("All %d selected nodes have applied their settings.", nodes)
}

func invalidPolicyText(err error) string {
	return "This policy is not used, and the nodes that it selects or has shaped keep their settings: " + err.Error()
}

// invalidResultText names the other policies involved, because the mistake may be theirs.
func (p *pass) invalidResultText(policy string) string {
	out := "Together with NodeProxy"
	var others []string
	for _, m := range p.selected[policy] {
		if m.resolution.Invalid == nil || !slices.Contains(m.resolution.Blamed, policy) {
			continue
		}
		for _, name := range m.resolution.Policies {
			if name != policy && !slices.Contains(others, name) {
				others = append(others, name)
			}
		}
	}
	if len(others) > 0 {
		slices.Sort(others)
		out += " and policies " + text.FirstNames(others, maxNodesInText)
	}
	return fmt.Sprintf("%s, this policy results in settings that are not valid, and nodes keep theirs: %s", out, p.blamed[policy])
}

// haltedText says which nodes have halted a rollout, and what lets it continue.
func (p *pass) haltedText(budget string, t tally) string {
	missed, first := t.names(missedDeadline), t[missedDeadline][0]
	their, until := "its", "until it does, until spec is changed, or until its Node is deleted"
	if len(missed) > 1 {
		their, until = "their", "until they do, until spec is changed, or until their Nodes are deleted"
	}
	out := fmt.Sprintf("%s did not apply %s settings within %d s of %s (%s)", text.FirstNames(missed, maxNodesInText), their,
		int(p.set.Budgets[budget].Deadline.Seconds()), first.Given.UTC().Format(time.RFC3339), nodeReport(first.rules))
	switch n := len(t[waiting]); n {
	case 0:
		return out + "; no other node waits"
	case 1:
		out += "; 1 other node waits"
	default:
		out += fmt.Sprintf("; %d other nodes wait", n)
	}
	return out + " " + until
}

func pausedText(t tally) string {
	return fmt.Sprintf("spec.rollout.paused is true: %s; set it to false to continue", countsText(t))
}

// progressText describes the progress of a rollout, and what it waits for.
func (p *pass) progressText(budget string, t tally) string {
	s := p.decision.States[budget]
	parts := []string{countsText(t)}
	if len(t[waiting]) > 0 {
		parts = append(parts, fmt.Sprintf("at most %d may be unavailable", s.Max))
		if blocking := t.names(failing); s.InFlight() == 0 && len(blocking) > 0 && s.Unavailable >= s.Max {
			parts = append(parts, fmt.Sprintf("%s must be programmed first (%s)", text.FirstNames(blocking, maxNodesInText), nodeReport(t[failing][0].rules)))
		}
	}
	for _, name := range t.others(budget) {
		if why := p.whyBlocked(name); why != "" {
			parts = append(parts, why)
		}
	}
	return strings.Join(parts, "; ")
}

// whyBlocked says why nothing that needs a budget continues; empty: it does.
func (p *pass) whyBlocked(budget string) string {
	s := p.decision.States[budget]
	switch who := whose(budget); {
	case s == nil:
		return ""
	case len(s.Missed) > 0:
		return fmt.Sprintf("some wait for %s, whose rollout has halted", who)
	case p.set.Budgets[budget].Paused:
		return fmt.Sprintf("some wait for %s, whose rollout is paused", who)
	default:
		return fmt.Sprintf("some are also part of the rollout of %s", who)
	}
}

func whose(budget string) string {
	if budget == policies.Base {
		return "NodeProxy"
	}
	return "policy " + budget
}

// countsText counts nodes by progress.
func countsText(t tally) string {
	total := 0
	for _, nodes := range t {
		total += len(nodes)
	}
	parts := []string{fmt.Sprintf("%d of %d nodes are done", len(t[done]), total)}
	for _, c := range []struct {
		which progress
		text  string
	}{
		{missedDeadline, "missed the deadline"}, {updating, "being updated"}, {failing, "not programmed"}, {retaining, "held back"},
	} {
		if names := t.names(c.which); len(names) > 0 {
			parts = append(parts, fmt.Sprintf("%d %s (%s)", len(names), c.text, text.FirstNames(names, maxNodesInText)))
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
	return fmt.Sprintf("%s; %s: %s", countsText(t), t[which][0].Name, message)
}

// example describes a node that is named as an example.
func (p *pass) example(m *member, which progress, budget string) (reason, message string) {
	switch which {
	case missedDeadline:
		return v1alpha1.ReasonDeadlineMissed, fmt.Sprintf("not applied since %s: %s", m.Given.UTC().Format(time.RFC3339), nodeReport(m.rules))
	case retaining:
		return m.kept.Reason, m.kept.Message
	case failing:
		return failure(m.rules), nodeReport(m.rules)
	case waiting:
		return v1alpha1.ReasonWaiting, p.waitsFor(m, budget)
	}
	given := m.Given
	if p.granted[m.Name] {
		given = p.now
	}
	return v1alpha1.ReasonUpdating, "given its settings at " + given.UTC().Format(time.RFC3339)
}

// waitsFor names the other rollouts that a node waits for.
func (p *pass) waitsFor(m *member, budget string) string {
	var others []string
	for _, name := range m.Causes {
		if name != budget {
			others = append(others, whose(name))
		}
	}
	if len(others) == 0 {
		return ""
	}
	return "is part of the rollout of " + strings.Join(others, " and ")
}

// failure returns the reason why a node is not programmed.
func failure(rules *v1alpha1.NodeProxyRules) string {
	reason, _, _ := strings.Cut(nodeReport(rules), ":")
	if strings.Contains(reason, " ") { // no report at all
		return v1alpha1.ReasonAgentNotResponding
	}
	return reason
}

// overriddenText names the fields of a policy that others set.
func (p *pass) overriddenText(policy *v1alpha1.NodeProxyPolicy, fields map[string][]string) string {
	var parts []string
	for _, path := range slices.Sorted(maps.Keys(fields)) {
		for _, name := range fields[path] {
			parts = append(parts, fmt.Sprintf("spec.settings.%s is set by policy %s (%s)", path, name, text.WinsBy(priorityOf(p.set.Find(name)), priorityOf(policy))))
		}
	}
	if more := len(parts) - maxFieldsInText; more > 0 {
		parts = append(parts[:maxFieldsInText], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, "; ")
}

// priorityOf returns the priority of a policy, which may be nil.
func priorityOf(policy *v1alpha1.NodeProxyPolicy) int32 {
	if policy == nil || policy.Spec.Priority == nil {
		return 0
	}
	return *policy.Spec.Priority
}
