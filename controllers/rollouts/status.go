package rollouts

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/findings"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

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
	ready := p.ready(policy, t)
	reports.Set(&status.Conditions, policy.Generation, now, ready, p.accepted(policy), p.overriddenBy(policy))
	reports.SetStalled(&status.Conditions, ready, policy.Generation, now,
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

// ready decides the condition Ready of a policy.
func (p *pass) ready(policy *v1alpha1.NodeProxyPolicy, t tally) metav1.Condition {
	s := p.decision.States[policy.Name]
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	set := func(reason, message string) metav1.Condition {
		c.Reason, c.Message = reason, message
		return c
	}
	switch {
	case p.set.Invalid[policy.Name] != nil:
		return set(v1alpha1.ReasonInvalidPolicy, invalidPolicyText(p.set.Invalid[policy.Name]))
	case p.nodeProxy == nil:
		return set(v1alpha1.ReasonNoNodeProxy, noNodeProxyText)
	case p.blamed[policy.Name] != nil:
		return set(v1alpha1.ReasonInvalidResult, p.invalidResultText(policy.Name))
	case len(s.Missed) > 0:
		return set(v1alpha1.ReasonRolloutHalted, p.haltedText(policy.Name, t))
	case s.Pending > 0 && p.set.Budgets[policy.Name].Paused:
		return set(v1alpha1.ReasonPaused, pausedText(t))
	case s.Pending > 0, len(t[waiting]) > 0, len(t[updating]) > 0:
		return set(v1alpha1.ReasonProgressing, p.progressText(policy.Name, t))
	case len(t[retaining]) > 0, len(t[failing]) > 0:
		return set(v1alpha1.ReasonNodesNotProgrammed, p.failingText(policy.Name, t))
	}
	c.Status = metav1.ConditionTrue
	if s.Nodes == 0 {
		return set(v1alpha1.ReasonNothingSelected, nothingSelectedText)
	}
	return set(v1alpha1.ReasonApplied, appliedText(s.Nodes))
}

// accepted decides the condition Accepted of a policy.
func (p *pass) accepted(policy *v1alpha1.NodeProxyPolicy) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse}
	switch {
	case p.set.Invalid[policy.Name] != nil:
		c.Reason, c.Message = v1alpha1.ReasonInvalidPolicy, invalidPolicyText(p.set.Invalid[policy.Name])
	case p.blamed[policy.Name] != nil:
		c.Reason, c.Message = v1alpha1.ReasonInvalidResult, p.invalidResultText(policy.Name)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAccepted
	}
	return c
}

// overriddenBy decides the condition Overridden of a policy.
func (p *pass) overriddenBy(policy *v1alpha1.NodeProxyPolicy) metav1.Condition {
	fields := p.overridden[policy.Name]
	if len(fields) == 0 {
		return metav1.Condition{Type: v1alpha1.ConditionOverridden, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotOverridden}
	}
	return metav1.Condition{
		Type: v1alpha1.ConditionOverridden, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonOverridden,
		Message: p.overriddenText(policy, fields),
	}
}

// finding is what NodeProxy's own condition Ready reports about changes by NodeProxy itself.
func (p *pass) finding() findings.Finding {
	s := p.decision.States[policies.Base]
	if s == nil {
		return findings.Finding{}
	}
	t := p.tallyOf(policies.Base)
	switch {
	case len(s.Missed) > 0:
		return findings.Finding{Reason: v1alpha1.ReasonRolloutHalted, Message: p.haltedText(policies.Base, t)}
	case s.Pending > 0 && p.set.Budgets[policies.Base].Paused:
		return findings.Finding{Reason: v1alpha1.ReasonPaused, Message: pausedText(t)}
	case s.Pending > 0, s.InFlight() > 0:
		return findings.Finding{Reason: v1alpha1.ReasonProgressing, Message: p.progressText(policies.Base, t)}
	}
	return findings.Finding{}
}
