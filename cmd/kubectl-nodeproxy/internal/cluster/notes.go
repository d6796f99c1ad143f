package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// maxMessage is how much of a condition's message is quoted.
const maxMessage = 500

// Notes are why a node may differ from its desired rules, which are of a mode.
func (o *Objects) Notes(node *v1alpha1.NodeProxyRules, mode v1alpha1.ProxyMode) []string {
	status := &node.Status
	var list []string
	note := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if since, absent := node.Annotations[v1alpha1.AnnotationNodeAbsentSince]; absent {
		note("Node %s does not exist since %s: its rules are retained for a while, in case it returns", node.Name, since)
	}
	programmed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	if programmed == nil {
		note("no agent has reported on this node yet: this is what an agent would program")
		return list
	}
	if programmed.Status != metav1.ConditionTrue {
		note("the node may have other rules: Programmed is %s for %s, %s: %s", programmed.Status,
			output.Age(o.Time, programmed.LastTransitionTime.Time), programmed.Reason, output.Clip(programmed.Message, maxMessage))
	}
	if stale := o.Stale(node); stale != "" {
		note("%s", stale)
	} else if status.ObservedGeneration != node.Generation {
		note("the agent's report refers to generation %d of its rules, and this is generation %d", status.ObservedGeneration, node.Generation)
	}
	if Audits(node) {
		note("enforcement is Audit: the agent does not program these rules, it only compares them with the kernel's, which are effective")
	}
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionConflictingProxy) {
		note("another proxy is active on the node: its rules are effective")
	}
	if status.Mode != "" && status.Mode != mode {
		note("the node runs mode %s, but its settings specify %s", status.Mode, mode)
	}
	if status.Retained > 0 {
		note("the node retains the rules of %s whose objects have vanished: these are not shown here", text.Count(int(status.Retained), "Service"))
	}
	for _, text := range []string{o.Lags(node), o.inventoryDiffers()} {
		if text != "" {
			note("%s", text)
		}
	}
	return list
}

// TooOld reports that the agent does not support the format of its rules; empty: it does, or
// none has reported.
func TooOld(node *v1alpha1.NodeProxyRules) string {
	a := node.Status.Agent
	if a == nil || slices.Contains(a.KnownFormats(), node.Spec.FormatVersion) {
		return ""
	}
	formats := "format " + output.Join(a.KnownFormats())
	if len(a.KnownFormats()) > 1 {
		formats = "the formats " + output.Join(a.KnownFormats())
	}
	return fmt.Sprintf("the agent %s of node %s is too old for its NodeProxyRules: they have format %d, but it supports only %s; the node retains its previous rules",
		cmp.Or(a.Version, "(of an unknown release)"), node.Name, node.Spec.FormatVersion, formats)
}

// Audits reports whether a node has enforcement Audit.
func Audits(node *v1alpha1.NodeProxyRules) bool {
	return ptr.Deref(node.Spec.Settings.Enforcement, "") == v1alpha1.Audit
}

// Unmaintained reports whether no proxy maintains the rules of a node with enforcement Audit.
func Unmaintained(node *v1alpha1.NodeProxyRules) bool {
	c := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
	return c != nil && Audits(node) && strings.Contains(c.Message, v1alpha1.MessageUnmaintained)
}
