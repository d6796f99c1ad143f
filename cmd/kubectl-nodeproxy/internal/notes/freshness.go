package notes

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

const (
	// Fresh is how old a change may be that a node does not report yet.
	Fresh = time.Minute
	// figuresFresh is the same for figures, which agents report within five minutes.
	figuresFresh = 10 * time.Minute
)

// IsNew reports whether a node is so new that its agent need not have reported yet.
func IsNew(node *v1alpha1.NodeProxyRules, now time.Time) bool {
	return meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed) == nil && now.Sub(node.CreationTimestamp.Time) < cluster.Grace
}

// OnlyNew reports whether there are new nodes, and none else is not programmed.
func OnlyNew(nodes []*v1alpha1.NodeProxyRules, now time.Time) bool {
	some := false
	for _, node := range nodes {
		switch {
		case IsNew(node, now):
			some = true
		case !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionProgrammed):
			return false
		}
	}
	return some
}

// Current reports whether an agent lives and understands what it is given: of any other
// all that it has said is old.
func Current(node *v1alpha1.NodeProxyRules) bool {
	programmed := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
	return programmed != nil && programmed.Reason != v1alpha1.ReasonAgentNotResponding && TooOld(node) == ""
}

// Stale says that a current agent reports about older rules of its node than it has had
// for a while; empty: it does not.
func Stale(node *v1alpha1.NodeProxyRules, now time.Time) string {
	if !Current(node) || node.Status.ObservedGeneration >= node.Generation || !Settled(node, now, Fresh, node) {
		return ""
	}
	return fmt.Sprintf("the node's rules changed more than a minute ago (generation %d), and its agent reports about older ones (generation %d)", node.Generation, node.Status.ObservedGeneration)
}

// OldSettings says that a node's agent does not do yet what it has been told for a
// while; empty: it does.
func OldSettings(node *v1alpha1.NodeProxyRules, now time.Time) string {
	if node.Status.SettingsRevision == node.Spec.SettingsRevision || !Settled(node, now, Fresh, node) {
		return ""
	}
	return "the node's settings are not in force: its agent reports older ones"
}

// Lags says that a kernel which its agent calls programmed does not hold some
// ServiceProxyRules long after that must have been reported; empty: it does.
func Lags(node *v1alpha1.NodeProxyRules, all []v1alpha1.ServiceProxyRules, now time.Time) string {
	if !Current(node) || !meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionProgrammed) || Audits(node) {
		return ""
	}
	// The newest of all may have been written just now, and again and again.
	var newest *v1alpha1.ServiceProxyRules
	for i := range all {
		one := &all[i]
		if !Applied(node, one) && Settled(node, now, figuresFresh, one) && (newest == nil || compareVersions(one.ResourceVersion, newest.ResourceVersion) > 0) {
			newest = one
		}
	}
	if newest == nil {
		return ""
	}
	return fmt.Sprintf("what was rendered more than ten minutes ago is not applied on the node: ServiceProxyRules %s have resourceVersion %s, and its kernel holds nothing newer than %s",
		newest.Name, newest.ResourceVersion, cmp.Or(node.Status.AppliedResourceVersion, "none"))
}

// Newest are the ServiceProxyRules that were written last; nil: there are none.
func Newest(all []v1alpha1.ServiceProxyRules) *v1alpha1.ServiceProxyRules {
	var newest *v1alpha1.ServiceProxyRules
	for i := range all {
		if newest == nil || compareVersions(all[i].ResourceVersion, newest.ResourceVersion) > 0 {
			newest = &all[i]
		}
	}
	return newest
}

// Applied reports whether a node's kernel holds these ServiceProxyRules, as far as its
// agent has said; nil: there are none to hold.
func Applied(node *v1alpha1.NodeProxyRules, rules *v1alpha1.ServiceProxyRules) bool {
	return rules == nil || compareVersions(rules.ResourceVersion, node.Status.AppliedResourceVersion) <= 0
}

// compareVersions compares two resourceVersions. They are numbers.
func compareVersions(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// Settled reports whether all of these objects have been as they are for so long. Where
// it is not noted when they were written, the time since when the node's agent has
// reported nothing new has to do.
func Settled(node *v1alpha1.NodeProxyRules, now time.Time, long time.Duration, objects ...metav1.Object) bool {
	newest := Written(objects...)
	if newest.IsZero() {
		if s := node.Status.LastSync; s != nil {
			newest = s.Time.Time
		}
		for i := range node.Status.Conditions {
			if t := node.Status.Conditions[i].LastTransitionTime.Time; t.After(newest) {
				newest = t
			}
		}
	}
	return now.Sub(newest) > long
}

// Written is when the last of these objects was written, but for its status, as the API
// server has noted; zero: it has not.
func Written(objects ...metav1.Object) time.Time {
	var newest time.Time
	for _, o := range objects {
		for _, m := range o.GetManagedFields() {
			if m.Subresource == "" && m.Time != nil && m.Time.After(newest) {
				newest = m.Time.Time
			}
		}
	}
	return newest
}

// missing says for a single look what InventoryDiffers does: not while NodeProxy is being
// removed, which takes all rules with it, nor while they change, upon which the inventory
// follows.
func missing(o *cluster.Objects) string {
	for i := range o.ServiceRules {
		if o.Time.Sub(Written(&o.ServiceRules[i])) < Fresh {
			return ""
		}
	}
	if o.NodeProxy == nil || o.NodeProxy.DeletionTimestamp != nil {
		return ""
	}
	return InventoryDiffers(o.NodeProxy, o.ServiceRules)
}

// InventoryDiffers says that other ServiceProxyRules exist than must, by what NodeProxy
// says; empty: they do not, or it does not say.
func InventoryDiffers(np *v1alpha1.NodeProxy, all []v1alpha1.ServiceProxyRules) string {
	if np == nil || np.Status.Inventory == nil {
		return ""
	}
	var names []string
	for i := range all {
		if !all[i].Spec.Released {
			names = append(names, all[i].Name)
		}
	}
	said := *np.Status.Inventory
	there := render.Inventory(names)
	if there == said {
		return ""
	}
	return fmt.Sprintf("NodeProxy says that %d ServiceProxyRules must exist, and %d exist, or others: nodes hold on to what is missing", said.Services, there.Services)
}
