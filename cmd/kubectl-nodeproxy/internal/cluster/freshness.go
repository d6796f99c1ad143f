package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

const (
	// Grace is how long a new agent's pod or node may take to start, which includes pulling the
	// image.
	Grace = 2 * time.Minute
	// Fresh is how long an agent may take to report a change.
	Fresh = time.Minute
	// countersFresh is the same for counters, which agents report within five minutes.
	countersFresh = 10 * time.Minute
)

// IsNew reports whether a node is so new that its agent need not have reported yet.
func (o *Objects) IsNew(node *v1alpha1.NodeProxyRules) bool {
	return meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed) == nil && o.Time.Sub(node.CreationTimestamp.Time) < Grace
}

// OnlyNew reports whether there are new nodes, and all others are programmed.
func (o *Objects) OnlyNew(nodes []*v1alpha1.NodeProxyRules) bool {
	some := false
	for _, node := range nodes {
		switch {
		case o.IsNew(node):
			some = true
		case !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionProgrammed):
			return false
		}
	}
	return some
}

// Current reports whether an agent is alive and supports the format of its rules. The report
// of any other agent is stale.
func Current(node *v1alpha1.NodeProxyRules) bool {
	programmed := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
	return programmed != nil && programmed.Reason != v1alpha1.ReasonAgentNotResponding && TooOld(node) == ""
}

// Stale reports that a current agent has not processed the rules of its node for a while;
// empty: it has.
func (o *Objects) Stale(node *v1alpha1.NodeProxyRules) string {
	if !Current(node) || node.Status.ObservedGeneration >= node.Generation || !o.Settled(node, Fresh, node) {
		return ""
	}
	return fmt.Sprintf("the node's rules changed more than a minute ago (generation %d), but its agent still reports older ones (generation %d)", node.Generation, node.Status.ObservedGeneration)
}

// OldSettings reports that an agent has not applied the settings of its node for a while;
// empty: it has.
func (o *Objects) OldSettings(node *v1alpha1.NodeProxyRules) string {
	if node.Status.SettingsRevision == node.Spec.SettingsRevision || !o.Settled(node, Fresh, node) {
		return ""
	}
	return "the node's settings are not applied: its agent reports older ones"
}

// Lags reports that a programmed kernel lacks some ServiceProxyRules long after its agent must
// have reported them; empty: it has all.
func (o *Objects) Lags(node *v1alpha1.NodeProxyRules) string {
	if !Current(node) || !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionProgrammed) || Audits(node) {
		return ""
	}
	// The newest of all may always have been written just now.
	var newest *v1alpha1.ServiceProxyRules
	for i := range o.ServiceRules {
		one := &o.ServiceRules[i]
		if !Applied(node, one) && o.Settled(node, countersFresh, one) && (newest == nil || compareVersions(one.ResourceVersion, newest.ResourceVersion) > 0) {
			newest = one
		}
	}
	if newest == nil {
		return ""
	}
	return fmt.Sprintf("a change that was rendered more than ten minutes ago is not applied on the node: ServiceProxyRules %s have resourceVersion %s, but its kernel has nothing newer than %s",
		newest.Name, newest.ResourceVersion, cmp.Or(node.Status.AppliedResourceVersion, "none"))
}

// Newest returns the ServiceProxyRules that were written last; nil: there are none.
func (o *Objects) Newest() *v1alpha1.ServiceProxyRules {
	if len(o.ServiceRules) == 0 {
		return nil
	}
	newest := slices.MaxFunc(o.ServiceRules, func(a, b v1alpha1.ServiceProxyRules) int {
		return compareVersions(a.ResourceVersion, b.ResourceVersion)
	})
	return &newest
}

// Applied reports whether a node's kernel has these ServiceProxyRules, as far as its agent
// has reported.
func Applied(node *v1alpha1.NodeProxyRules, rules *v1alpha1.ServiceProxyRules) bool {
	return rules == nil || compareVersions(rules.ResourceVersion, node.Status.AppliedResourceVersion) <= 0
}

// compareVersions compares two resourceVersions. They are numbers.
func compareVersions(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// Settled reports whether these objects have not changed for so long. If the time of their
// last change is unknown, the last change of the node's status counts.
func (o *Objects) Settled(node *v1alpha1.NodeProxyRules, long time.Duration, objects ...metav1.Object) bool {
	newest := Written(objects...)
	if newest.IsZero() {
		if s := node.Status.LastSync; s != nil {
			newest = s.Time.Time
		}
		for _, c := range node.Status.Conditions {
			if c.LastTransitionTime.After(newest) {
				newest = c.LastTransitionTime.Time
			}
		}
	}
	return o.Time.Sub(newest) > long
}

// Written is when the controller last wrote one of these objects, within seconds; zero: unknown.
func Written(objects ...metav1.Object) time.Time {
	var newest time.Time
	for _, o := range objects {
		for _, name := range []string{v1alpha1.AnnotationWritten, v1alpha1.AnnotationLastChangeTriggerTime} {
			if t, err := time.Parse(time.RFC3339Nano, o.GetAnnotations()[name]); err == nil && t.After(newest) {
				newest = t
			}
		}
	}
	return newest
}

// InventoryDiffers reports that the existing ServiceProxyRules are not those of NodeProxy's
// inventory; empty: they are, or there is no inventory.
func (o *Objects) InventoryDiffers() string {
	if o.NodeProxy == nil || o.NodeProxy.Status.Inventory == nil {
		return ""
	}
	var names []string
	for _, rules := range o.ServiceRules {
		if !rules.Spec.Released {
			names = append(names, rules.Name)
		}
	}
	desired, actual := *o.NodeProxy.Status.Inventory, render.Inventory(names)
	if actual == desired {
		return ""
	}
	return fmt.Sprintf("the %d existing ServiceProxyRules are not the %d of NodeProxy's inventory: nodes retain the missing ones", actual.Services, desired.Services)
}

// inventoryDiffers is InventoryDiffers for a single examination: it reports nothing while
// NodeProxy is being deleted, which deletes all rules, and while rules change, because the
// inventory follows later.
func (o *Objects) inventoryDiffers() string {
	if o.NodeProxy != nil && o.NodeProxy.DeletionTimestamp != nil {
		return ""
	}
	for _, rules := range o.ServiceRules {
		if o.Time.Sub(Written(&rules)) < Fresh {
			return ""
		}
	}
	return o.InventoryDiffers()
}
