// Package notes says of a node what has to be known beside what is wanted of it: in
// what it may differ from that. It is pure.
package notes

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// maxMessage is how much of a condition's message is quoted.
const maxMessage = 500

// Of says in what a node may differ from what is wanted of it, which is in a mode and
// made of a cluster's ServiceProxyRules.
func Of(node *v1alpha1.NodeProxyRules, mode v1alpha1.ProxyMode, o *cluster.Objects) []string {
	status := &node.Status
	var list []string
	note := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if since, absent := node.Annotations[v1alpha1.AnnotationNodeAbsentSince]; absent {
		note("there has been no Node %s since %s: its rules are kept for a while, should it return", node.Name, since)
	}
	programmed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	if programmed == nil {
		note("no agent has reported from this node yet: this is what one would do")
		return list
	}
	if programmed.Status != metav1.ConditionTrue {
		note("the node may do something else: Programmed is %s for %s, %s: %s", programmed.Status,
			output.Age(o.Time, programmed.LastTransitionTime.Time), programmed.Reason, output.Clip(programmed.Message, maxMessage))
	}
	if stale := Stale(node, o.Time); stale != "" {
		note("%s", stale)
	} else if status.ObservedGeneration != node.Generation {
		note("the agent reports about generation %d of its rules, and this is generation %d", status.ObservedGeneration, node.Generation)
	}
	if Audits(node) {
		note("enforcement is Audit: nothing of this is written to the kernel, it is only compared with what is there, which decides")
	}
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionConflictingProxy) {
		note("another proxy is active on the node: it decides")
	}
	if status.Mode != "" && status.Mode != mode {
		note("the node runs mode %s, and its settings ask for %s", status.Mode, mode)
	}
	if status.Held > 0 {
		note("the node holds the rules of %s whose objects have vanished: they are not looked at here", output.Plural(int(status.Held), "Service"))
	}
	for _, text := range []string{Lags(node, o.ServiceRules, o.Time), missing(o)} {
		if text != "" {
			note("%s", text)
		}
	}
	return list
}

// TooOld says that the agent does not know the format of what it is given; empty: it
// does, or none has reported.
func TooOld(node *v1alpha1.NodeProxyRules) string {
	a := node.Status.Agent
	if a == nil || slices.Contains(a.KnownFormats(), node.Spec.FormatVersion) {
		return ""
	}
	return fmt.Sprintf("the agent %s of node %s is too old for its NodeProxyRules: they have format %d, it knows only %s, and keeps the rules that it has",
		cmp.Or(a.Version, "(of an unknown release)"), node.Name, node.Spec.FormatVersion, formats(a.KnownFormats()))
}

func formats(known []int32) string {
	texts := make([]string, len(known))
	for i, v := range known {
		texts[i] = fmt.Sprint(v)
	}
	if len(texts) == 1 {
		return "format " + texts[0]
	}
	return "the formats " + strings.Join(texts, ", ")
}

// Audits reports whether a node only compares.
func Audits(node *v1alpha1.NodeProxyRules) bool {
	e := node.Spec.Settings.Enforcement
	return e != nil && *e == v1alpha1.Audit
}

// nobody is how an agent says with Audit that nothing else proxies on its node.
const nobody = "nobody maintains the rules"

// Unmaintained reports whether the agent of a node that only compares says that nobody
// maintains its rules.
func Unmaintained(node *v1alpha1.NodeProxyRules) bool {
	c := meta.FindStatusCondition(node.Status.Conditions, v1alpha1.ConditionProgrammed)
	return c != nil && Audits(node) && strings.Contains(c.Message, nobody)
}
