package rules

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// maxMessage is how much of a condition's message is quoted.
const maxMessage = 500

// notes say in what a node may differ from what it is to hold.
func notes(node *v1alpha1.NodeProxyRules, all sets, now time.Time) []string {
	status := &node.Status
	programmed := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProgrammed)
	var list []string
	note := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if since, absent := node.Annotations[v1alpha1.AnnotationNodeAbsentSince]; absent {
		note("there has been no Node %s since %s: these rules are kept for a while, should it return", node.Name, since)
	}
	if programmed == nil {
		note("no agent has reported from this node yet: this is what one would hold")
		return list
	}
	if programmed.Status != metav1.ConditionTrue {
		note("Programmed is %s for %s, %s: %s", programmed.Status, output.Age(now, programmed.LastTransitionTime.Time), programmed.Reason, output.Clip(programmed.Message, maxMessage))
	}
	if a := status.Agent; a != nil && len(a.FormatVersions) > 0 && !slices.Contains(a.FormatVersions, node.Spec.FormatVersion) {
		note("its agent %s does not understand format %d of these rules, only %v: it keeps what it has", a.Version, node.Spec.FormatVersion, a.FormatVersions)
	}
	if wanted := all[dataplane.IPv4].Mode; status.Mode != "" && status.Mode != wanted {
		note("the node runs mode %s, and its settings ask for %s", status.Mode, wanted)
	}
	if status.ObservedGeneration != node.Generation {
		note("its agent reports about generation %d of its rules, and this is generation %d", status.ObservedGeneration, node.Generation)
	}
	if e := node.Spec.Settings.Enforcement; e != nil && *e == v1alpha1.Audit {
		note("enforcement is Audit: nothing of this is written to the kernel, it is only compared")
	}
	if status.Held > 0 {
		note("the node holds the rules of %s whose objects have vanished: they are not shown here", output.Plural(int(status.Held), "Service"))
	}
	if refused := status.Refused; refused != nil && refused.Count > 0 {
		note("its kernel refuses %s: %s", output.Plural(int(refused.Count), "Service"), output.Some(refused.Examples, 3))
	}
	for _, f := range families() {
		if needed := len(all[f].Services); needed > 0 && !slices.Contains(status.Families, string(f)) {
			note("%s is not programmed there, and %s need it", f, output.Plural(needed, "Service"))
		}
	}
	return list
}
