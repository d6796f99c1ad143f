package status

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
)

// Rollout is a change or a policy that is not complete.
type Rollout struct {
	// Object is what causes it, as kubectl names it: nodeproxypolicy/edge.
	Object string `json:"object"`
	// Reason is the reason of the object's condition, such as Progressing or Paused.
	Reason string `json:"reason"`
	// Done of Total nodes, or Services, have it. Those of NodeProxy are in the message.
	Done  int32 `json:"done,omitempty"`
	Total int32 `json:"total,omitempty"`
	// Since is when it was last complete.
	Since   metav1.Time `json:"since,omitzero"`
	Message string      `json:"message,omitempty"`
}

func rollouts(o *cluster.Objects, nodes []*v1alpha1.NodeProxyRules) []Rollout {
	var list []Rollout
	if p := o.NodeProxy; p != nil {
		ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		if ready != nil && ready.Status != metav1.ConditionTrue && isRollout(ready.Reason) {
			list = append(list, Rollout{Object: "nodeproxy/" + p.Name, Reason: ready.Reason, Since: ready.LastTransitionTime, Message: ready.Message})
		}
	}
	onlyNew := notes.OnlyNew(nodes, o.Time)
	for i := range o.NodePolicies {
		p := &o.NodePolicies[i]
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady); onlyNew && ready != nil && ready.Reason == v1alpha1.ReasonNodesNotProgrammed {
			continue // it waits for new nodes, which are a note
		}
		list = Rollout{Object: "nodeproxypolicy/" + p.Name, Done: p.Status.Programmed, Total: p.Status.Nodes}.unlessReady(list, p.Status.Conditions)
	}
	for i := range o.ServicePolicies {
		p := &o.ServicePolicies[i]
		list = Rollout{Object: "serviceproxypolicy/" + p.Name, Done: p.Status.Applied, Total: p.Status.Services}.unlessReady(list, p.Status.Conditions)
	}
	return list
}

// isRollout reports whether NodeProxy is not ready because of a rollout.
func isRollout(reason string) bool {
	return slices.Contains([]string{v1alpha1.ReasonProgressing, v1alpha1.ReasonPaused, v1alpha1.ReasonRolloutHalted}, reason)
}

// unlessReady adds the rollout of a policy, unless that is ready and effective.
func (r Rollout) unlessReady(list []Rollout, conditions []metav1.Condition) []Rollout {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	ineffective := meta.FindStatusCondition(conditions, v1alpha1.ConditionIneffective)
	switch {
	case ready == nil:
		r.Reason, r.Message = "NotObserved", "no controller has processed this policy yet"
	case ready.Status != metav1.ConditionTrue:
		r.Reason, r.Since, r.Message = ready.Reason, ready.LastTransitionTime, ready.Message
	case ineffective != nil && ineffective.Status == metav1.ConditionTrue:
		r.Reason, r.Since, r.Message = ineffective.Reason, ineffective.LastTransitionTime, ineffective.Message
	default:
		return list
	}
	return append(list, r)
}
