package doctor

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
)

// policyState is what the policies of both kinds have in common.
type policyState struct {
	name, short string
	meta        *metav1.ObjectMeta
	conditions  []metav1.Condition
	observed    int64
	// causes may explain why a policy is not ready.
	causes []string
}

// policies checks whether policies are effective, and their rollouts.
func (e *examination) policies() {
	var notAccepted []string // they block other changes of the same nodes
	for i := range e.NodePolicies {
		if p := &e.NodePolicies[i]; findings.Condition(p.Status.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse) != nil {
			notAccepted = append(notAccepted, "policy NodeProxyPolicy/"+p.Name)
		}
	}
	for i := range e.NodePolicies {
		p := &e.NodePolicies[i]
		s := policyState{name: "NodeProxyPolicy/" + p.Name, short: "npp", meta: &p.ObjectMeta, conditions: p.Status.Conditions, observed: p.Status.ObservedGeneration, causes: slices.Clone(notAccepted)}
		for _, node := range e.Nodes {
			s.causes = append(s.causes, findings.NodeKeys(node.Name)...)
		}
		e.policy(s)
	}
	for i := range e.ServicePolicies {
		p := &e.ServicePolicies[i]
		if !e.selects(i) {
			continue
		}
		e.policy(policyState{name: "ServiceProxyPolicy/" + p.Name, short: "spp", meta: &p.ObjectMeta, conditions: p.Status.Conditions, observed: p.Status.ObservedGeneration})
	}
}

// selects reports whether a policy applies to an examined Service.
func (e *examination) selects(i int) bool {
	if e.Only == nil {
		return true
	}
	if rules := e.rules[*e.Only]; rules != nil && slices.Contains(rules.Spec.Policies, e.ServicePolicies[i].Name) {
		return true
	}
	svc := e.services[*e.Only]
	return svc != nil && e.servicePolicies[i].Selects(e.labels[svc.Namespace], svc.Labels)
}

func (e *examination) policy(s policyState) {
	f := findings.Finding{Severity: findings.Problem, Check: findings.CheckPolicies, Policy: s.name, Key: "policy " + s.name, Causes: []string{findings.KeyNoNodeProxy}}
	if s.observed < s.meta.Generation {
		f.Reason, f.Transient, f.Causes, f.Remedy = "PolicyNotObserved", true, []string{findings.KeyBehind}, e.CheckController()
		f.Message = fmt.Sprintf("the controller has not observed the latest change of the policy (generation %d, observed %d)", s.meta.Generation, s.observed)
		e.Add(f)
		return
	}
	if c := findings.Condition(s.conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse); c != nil {
		f.Reason, f.Since = "PolicyNotAccepted", findings.Since(c)
		f.Message = findings.Message(c)
		f.Remedy = e.Docs.See(fmt.Sprintf("correct the policy: kubectl edit %s %s", s.short, s.meta.Name), "policies.md#what-the-status-says")
		e.Add(f)
		return
	}
	if c := findings.Condition(s.conditions, v1alpha1.ConditionReady, metav1.ConditionFalse); c != nil {
		e.notReady(s, f, c)
	}
	if c := findings.Condition(s.conditions, v1alpha1.ConditionIneffective, metav1.ConditionTrue); c != nil {
		f.Key = ""
		f.Severity, f.Reason, f.Since, f.Message = findings.Warning, "PolicyIneffective", findings.Since(c), "a part of the policy has no effect: "+c.Message
		f.Remedy = e.Docs.See("change what the message names, or the policy's selectors", "policies.md#what-the-status-says")
		e.Add(f)
	}
	if c := findings.Condition(s.conditions, v1alpha1.ConditionOverridden, metav1.ConditionTrue); c != nil {
		e.Notef("policies with precedence override fields of %s: %s", s.name, c.Message)
	}
}

func (e *examination) notReady(s policyState, f findings.Finding, c *metav1.Condition) {
	f.Reason, f.Since, f.Message = c.Reason, findings.Since(c), findings.Message(c)
	f.Remedy = e.Docs.See("fix what the message names, or change the policy again", "policies.md#when-it-stops")
	switch c.Reason {
	case v1alpha1.ReasonProgressing:
		e.Notef("a change by %s is being rolled out: %s", s.name, c.Message)
		return
	case v1alpha1.ReasonPaused:
		f.Severity, f.Remedy = findings.Warning, fmt.Sprintf("set spec.rollout.paused to false: kubectl edit %s %s", s.short, s.meta.Name)
	case v1alpha1.ReasonNodesNotProgrammed:
		if e.OnlyNew() {
			e.Notef("%s waits for new nodes: %s", s.name, c.Message)
			return
		}
		f.Transient = true
		f.Causes = append(f.Causes, s.causes...)
	case v1alpha1.ReasonRolloutHalted:
		f.Message = "the rollout of the policy has halted: " + findings.Message(c)
		f.Causes = append(f.Causes, s.causes...)
	case v1alpha1.ReasonNoNodeProxy:
		f.Causes = []string{findings.KeyNoNodeProxy}
	}
	e.Add(f)
}
