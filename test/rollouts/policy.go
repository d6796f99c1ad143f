package rollouts

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Applied returns nil when the NodeProxyPolicy with a name reports, of its present
// generation, that all of its nodes, which are so many, have what it wants.
func Applied(ctx context.Context, c client.Client, name string, nodes int32) error {
	policy := &v1alpha1.NodeProxyPolicy{}
	if err := c.Get(ctx, client.ObjectKey{Name: name}, policy); err != nil {
		return err
	}
	s := &policy.Status
	if err := InEffect(s.Conditions, s.ObservedGeneration, policy.Generation); err != nil {
		return fmt.Errorf("policy %s: %w", name, err)
	}
	if s.Nodes != nodes || s.Updated != nodes || s.Programmed != nodes || len(s.Examples) > 0 {
		return fmt.Errorf("policy %s: of %d nodes %d are counted, %d updated and %d programmed; examples: %+v", name, nodes, s.Nodes, s.Updated, s.Programmed, s.Examples)
	}
	return nil
}

// InEffect returns nil when the conditions of a policy report that all of it is in
// effect, and nothing else.
func InEffect(conditions []metav1.Condition, observed, generation int64) error {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	switch {
	case observed != generation:
		return fmt.Errorf("the status is about generation %d, there is %d", observed, generation)
	case c == nil:
		return errors.New("there is no condition Ready")
	case c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonApplied || c.ObservedGeneration != generation:
		return fmt.Errorf("condition Ready is %s, %s, of generation %d: %s", c.Status, c.Reason, c.ObservedGeneration, c.Message)
	}
	for _, abnormal := range []string{v1alpha1.ConditionStalled, v1alpha1.ConditionReconciling, v1alpha1.ConditionOverridden, v1alpha1.ConditionIneffective} {
		if c := meta.FindStatusCondition(conditions, abnormal); c != nil && c.Status == metav1.ConditionTrue {
			return fmt.Errorf("condition %s is True, %s: %s", abnormal, c.Reason, c.Message)
		}
	}
	return nil
}
