package status

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
)

// Change is a change that has not reached all that it is for.
type Change struct {
	// Of is what causes it, as kubectl names it: nodeproxypolicy/edge.
	Of string `json:"of"`
	// Reason is Progressing, Paused, RolloutStopped and the like.
	Reason string `json:"reason"`
	// Done of Total nodes, or Services, have it. Of NodeProxy that is in the message.
	Done  int32 `json:"done,omitempty"`
	Total int32 `json:"total,omitempty"`
	// Since is when it ceased to be complete.
	Since   metav1.Time `json:"since,omitzero"`
	Message string      `json:"message,omitempty"`
}

func changes(o *cluster.Objects, nodes []*v1alpha1.NodeProxyRules) []Change {
	var list []Change
	onlyNew := notes.OnlyNew(nodes, o.Time)
	if p := o.NodeProxy; p != nil {
		ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		if ready != nil && ready.Status != metav1.ConditionTrue && aboutOthers(ready.Reason) && ready.Reason != v1alpha1.ReasonNodesNotProgrammed {
			list = append(list, Change{Of: "nodeproxy/" + p.Name, Reason: ready.Reason, Since: ready.LastTransitionTime, Message: ready.Message})
		}
	}
	for i := range o.NodePolicies {
		p := &o.NodePolicies[i]
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); onlyNew && ready != nil && ready.Reason == v1alpha1.ReasonNodesNotProgrammed {
			continue // it waits for nodes that are new, of which there is a remark
		}
		c := Change{Of: "nodeproxypolicy/" + p.Name, Done: p.Status.Programmed, Total: p.Status.Nodes}
		list = c.unlessReady(list, p.Status.Conditions)
	}
	for i := range o.ServicePolicies {
		p := &o.ServicePolicies[i]
		c := Change{Of: "serviceproxypolicy/" + p.Name, Done: p.Status.Applied, Total: p.Status.Services}
		list = c.unlessReady(list, p.Status.Conditions)
	}
	return list
}

// unlessReady adds the change of a policy, unless that is ready and does all that it
// says.
func (c Change) unlessReady(list []Change, conditions []metav1.Condition) []Change {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	ineffective := meta.FindStatusCondition(conditions, v1alpha1.ConditionIneffective)
	switch {
	case ready == nil:
		c.Reason, c.Message = "NotSeen", "no controller has looked at this policy yet"
	case ready.Status != metav1.ConditionTrue:
		c.Reason, c.Since, c.Message = ready.Reason, ready.LastTransitionTime, ready.Message
	case ineffective != nil && ineffective.Status == metav1.ConditionTrue:
		c.Reason, c.Since, c.Message = ineffective.Reason, ineffective.LastTransitionTime, ineffective.Message
	default:
		return list
	}
	return append(list, c)
}
