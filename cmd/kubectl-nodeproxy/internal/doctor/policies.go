package doctor

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// policyState is what the status of policies of both kinds has in common.
type policyState struct {
	name, short string
	meta        *metav1.ObjectMeta
	conditions  []metav1.Condition
	observed    int64
	// causes may explain that what is selected is not as it should be.
	causes []string
}

// policies looks whether policies do what they say, and how far changes by them are.
func (e *examination) policies() {
	var notAccepted []string // they hold back what others want of the same nodes
	for i := range e.NodePolicies {
		if p := &e.NodePolicies[i]; condition(p.Status.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse) != nil {
			notAccepted = append(notAccepted, "policy NodeProxyPolicy/"+p.Name)
		}
	}
	for i := range e.NodePolicies {
		p := &e.NodePolicies[i]
		s := policyState{name: "NodeProxyPolicy/" + p.Name, short: "npp", meta: &p.ObjectMeta, conditions: p.Status.Conditions, observed: p.Status.ObservedGeneration, causes: slices.Clone(notAccepted)}
		for _, node := range e.nodes {
			s.causes = append(s.causes, nodeKeys(node.Name)...)
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

// selects reports whether a policy has to do with what is looked at.
func (e *examination) selects(i int) bool {
	if e.only == nil {
		return true
	}
	if rules := e.rules[*e.only]; rules != nil && slices.Contains(rules.Spec.Policies, e.ServicePolicies[i].Name) {
		return true
	}
	svc := e.services[*e.only]
	return svc != nil && e.servicePolicies[i].Selects(e.labels[svc.Namespace], svc.Labels)
}

func (e *examination) policy(s policyState) {
	f := Finding{Severity: Problem, Check: CheckPolicies, Policy: s.name, key: "policy " + s.name, causes: []string{keyNoNodeProxy}}
	if s.observed < s.meta.Generation {
		f.Name, f.passing, f.causes, f.Do = "PolicyNotSeen", true, []string{keyBehind}, e.doController()
		f.What = fmt.Sprintf("the controller has not seen the latest change of the policy (generation %d, seen %d)", s.meta.Generation, s.observed)
		e.add(f)
		return
	}
	if c := condition(s.conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse); c != nil {
		f.Name, f.Since = "PolicyNotAccepted", since(c)
		f.What = cmpMessage(c)
		f.Do = e.docs.See(fmt.Sprintf("correct the policy: kubectl edit %s %s", s.short, s.meta.Name), "policies.md#what-the-status-says")
		e.add(f)
		return
	}
	if c := condition(s.conditions, v1alpha1.ConditionReady, metav1.ConditionFalse); c != nil {
		e.notReady(s, f, c)
	}
	if c := condition(s.conditions, v1alpha1.ConditionIneffective, metav1.ConditionTrue); c != nil {
		f.key = ""
		f.Severity, f.Name, f.Since, f.What = Warning, "PolicyIneffective", since(c), "a part of the policy does nothing: "+c.Message
		f.Do = e.docs.See("change what it names, or the policy's selectors", "policies.md#what-the-status-says")
		e.add(f)
	}
	if c := condition(s.conditions, v1alpha1.ConditionOverridden, metav1.ConditionTrue); c != nil {
		e.remark("stronger policies set fields of %s: %s", s.name, c.Message)
	}
}

func (e *examination) notReady(s policyState, f Finding, c *metav1.Condition) {
	f.Name, f.Since, f.What = c.Reason, since(c), cmpMessage(c)
	f.Do = e.docs.See("mend what the message names, or change the policy again", "policies.md#when-it-stops")
	switch c.Reason {
	case v1alpha1.ReasonProgressing:
		e.remark("a change by %s is on its way: %s", s.name, c.Message)
		return
	case v1alpha1.ReasonPaused:
		f.Severity, f.Do = Warning, fmt.Sprintf("set spec.rollout.paused to false: kubectl edit %s %s", s.short, s.meta.Name)
	case v1alpha1.ReasonNodesNotProgrammed:
		if e.onlyNew() {
			e.remark("%s waits for nodes that are new: %s", s.name, c.Message)
			return
		}
		f.passing = true
		f.causes = append(f.causes, s.causes...)
	case v1alpha1.ReasonRolloutStopped:
		f.What = "a change by the policy has stopped: " + cmpMessage(c)
		f.causes = append(f.causes, s.causes...)
	case v1alpha1.ReasonNoNodeProxy:
		f.causes = []string{keyNoNodeProxy}
	}
	e.add(f)
}
