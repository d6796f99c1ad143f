package trace

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// maxMessage is how much of a condition's message is quoted.
const maxMessage = 300

// notesOf say in what a node may differ from what is wanted of it. An agent that
// does not understand its rules is an error: what it does has nothing to do with them.
func notesOf(node *v1alpha1.NodeProxyRules, set *combine.Set, now time.Time) ([]string, error) {
	status := &node.Status
	if a := status.Agent; a != nil && len(a.FormatVersions) > 0 && !slices.Contains(a.FormatVersions, node.Spec.FormatVersion) {
		return nil, fmt.Errorf("the agent %s of node %s is too old for its NodeProxyRules: it does not understand format %d, only %v, and keeps the rules that it has; upgrade it",
			a.Version, node.Name, node.Spec.FormatVersion, a.FormatVersions)
	}
	var list []string
	note := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if since, absent := node.Annotations[v1alpha1.AnnotationNodeAbsentSince]; absent {
		note("there has been no Node %s since %s: its rules are kept for a while, should it return", node.Name, since)
	}
	programmed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	switch {
	case programmed == nil:
		note("no agent has reported from this node yet: this is what one would do")
	case programmed.Status != metav1.ConditionTrue:
		note("the node may do something else: Programmed is %s for %s, %s: %s", programmed.Status,
			output.Age(now, programmed.LastTransitionTime.Time), programmed.Reason, output.Clip(programmed.Message, maxMessage))
	}
	if programmed != nil && status.ObservedGeneration != node.Generation {
		note("the agent reports about generation %d of its rules, and this is generation %d", status.ObservedGeneration, node.Generation)
	}
	if *set.Node.Settings.Enforcement == v1alpha1.Audit {
		note("enforcement is Audit: nothing of this is in the kernel, the proxy that is decides")
	}
	if meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionConflictingProxy) {
		note("another proxy is active on the node: it decides")
	}
	if status.Mode != "" && status.Mode != set.Mode {
		note("the node runs mode %s, by which this is traced; its settings ask for %s", status.Mode, set.Mode)
	}
	if !slices.Contains(status.Families, string(set.Family)) && programmed != nil && programmed.Status == metav1.ConditionTrue {
		note("%s is not programmed on this node", set.Family)
	}
	if status.Held > 0 {
		note("the node holds the rules of %s whose objects have vanished: they are not looked at here", output.Plural(int(status.Held), "Service"))
	}
	return list, nil
}
