package doctor

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
)

// inventory compares the ServiceProxyRules with those that must exist.
func (e *examination) inventory() {
	np := e.NodeProxy
	if np == nil || np.Status.Inventory == nil || e.Only != nil {
		return
	}
	if what := e.InventoryDiffers(); what != "" {
		e.Add(findings.Finding{
			Severity: findings.Problem, Reason: "InventoryDiffers", Check: findings.CheckController, Key: findings.KeyInventory,
			Causes:  []string{findings.KeyRemoving, findings.KeyBehind},
			Message: what, Remedy: e.CheckController(), Transient: true, Token: np.ResourceVersion,
		})
	}
	if np.Status.Inventory.Services == 0 {
		e.Notef("no Services are proxied")
	}
}

// unrenderedServices names the Services that the controller cannot render or store.
func (e *examination) unrenderedServices() {
	if e.NodeProxy == nil {
		return
	}
	status := &e.NodeProxy.Status
	for _, r := range status.Unrendered {
		name := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}
		if !e.concerns(name) || e.Unreadable(cluster.Services) == "" && e.services[name] == nil {
			continue // deleted Services are about to vanish from the status
		}
		e.Add(findings.Finding{
			Severity: findings.Problem, Reason: "ServiceNotRendered", Transient: true, Check: findings.CheckRendering, Service: name.String(),
			Message: "the Service cannot be rendered or stored, so no node serves it: " + r.Message,
			Remedy:  e.Docs.See("correct the Service as the message explains", "troubleshooting.md#nodeproxyservicesnotrendered"),
		})
	}
	if more := int(status.UnrenderedServices) - len(status.Unrendered); more > 0 && e.Only == nil {
		e.Notef("the controller cannot render %s that NodeProxy does not name: kubectl get events -A --field-selector reason=ServiceNotRendered", text.Count(more, "more Service"))
	}
}

// behind adds the cause of findings that mean that the controller has not reacted to
// objects in time.
func (e *examination) behind() {
	known := map[string]bool{findings.KeyBehind: true}
	for i := range e.Found {
		known[e.Found[i].Key] = true
	}
	if !slices.ContainsFunc(e.Found, func(f findings.Finding) bool {
		best := slices.IndexFunc(f.Causes, func(cause string) bool { return cause != "" && known[cause] })
		return best >= 0 && f.Causes[best] == findings.KeyBehind
	}) {
		return
	}
	e.Add(findings.Finding{
		Severity: findings.Problem, Reason: "ControllerBehind", Check: findings.CheckController, Key: findings.KeyBehind, Causes: []string{findings.KeyNoController},
		Message: "the controller is down or behind: two examinations found that it has not reacted to changes",
		Remedy:  e.CheckController(),
	})
}

// followController makes a controller that is down or behind the cause of findings that do
// not show that by themselves.
func (e *examination) followController() {
	for i := range e.Found {
		switch f := &e.Found[i]; {
		case f.Key == findings.KeyLagging: // its count is stale then
			f.Causes = slices.Insert(f.Causes, 1, findings.KeyBehind)
		case e.Only != nil && slices.Contains(f.Causes, findings.KeyInventory): // the inventory is only checked for all Services
			f.Causes = append(f.Causes, findings.KeyRemoving, findings.KeyBehind, findings.KeyNoController)
		}
	}
}

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
	for _, p := range e.NodePolicies {
		if findings.Condition(p.Status.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse) != nil {
			notAccepted = append(notAccepted, "policy NodeProxyPolicy/"+p.Name)
		}
	}
	causes := slices.Concat(notAccepted, findings.NodeKeys(e.Nodes...))
	for _, p := range e.NodePolicies {
		e.policy(policyState{name: "NodeProxyPolicy/" + p.Name, short: "npp", meta: &p.ObjectMeta, conditions: p.Status.Conditions, observed: p.Status.ObservedGeneration, causes: causes})
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
		f.Reason, f.Since = "PolicyNotAccepted", c.LastTransitionTime
		f.Message = findings.Message(c)
		f.Remedy = e.Docs.See(fmt.Sprintf("correct the policy: kubectl edit %s %s", s.short, s.meta.Name), "policies.md#what-the-status-shows")
		e.Add(f)
		return
	}
	if c := findings.Condition(s.conditions, v1alpha1.ConditionReady, metav1.ConditionFalse); c != nil {
		e.notReady(s, f, c)
	}
	if c := findings.Condition(s.conditions, v1alpha1.ConditionIneffective, metav1.ConditionTrue); c != nil {
		f.Key = ""
		f.Severity, f.Reason, f.Since, f.Message = findings.Warning, "PolicyIneffective", c.LastTransitionTime, "a part of the policy has no effect: "+c.Message
		f.Remedy = e.Docs.See("change what the message names, or the policy's selectors", "policies.md#what-the-status-shows")
		e.Add(f)
	}
	if c := findings.Condition(s.conditions, v1alpha1.ConditionOverridden, metav1.ConditionTrue); c != nil {
		e.Notef("policies with precedence override fields of %s: %s", s.name, c.Message)
	}
}

func (e *examination) notReady(s policyState, f findings.Finding, c *metav1.Condition) {
	f.Reason, f.Since, f.Message = c.Reason, c.LastTransitionTime, findings.Message(c)
	f.Remedy = e.Docs.See("fix what the message names, or change the policy again", "policies.md#when-it-halts")
	switch c.Reason {
	case v1alpha1.ReasonProgressing:
		e.Notef("a change by %s is being rolled out: %s", s.name, c.Message)
		return
	case v1alpha1.ReasonPaused:
		f.Severity, f.Remedy = findings.Warning, fmt.Sprintf("set spec.rollout.paused to false: kubectl edit %s %s", s.short, s.meta.Name)
	case v1alpha1.ReasonNodesNotProgrammed:
		if e.OnlyNew(e.Nodes) {
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
