package rules

import (
	"fmt"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// maxMessage is how much of a condition's message is quoted.
const maxMessage = 500

// notesOf say why a node may differ from its desired rules.
func notesOf(node *v1alpha1.NodeProxyRules, all sets, o *cluster.Objects) []string {
	list := notes.Of(node, all[dataplane.IPv4].Mode, o)
	if old := notes.TooOld(node); old != "" {
		list = append(list, old)
	}
	status := &node.Status
	if rejected := status.Rejected; rejected != nil && rejected.Count > 0 {
		list = append(list, fmt.Sprintf("its kernel rejects %s: %s", output.Plural(int(rejected.Count), "Service"), output.Some(rejected.Examples, maxExamples)))
	}
	for _, f := range families() {
		if needed := len(all[f].Services); needed > 0 && len(status.Conditions) > 0 && !slices.Contains(status.Families, string(f)) {
			list = append(list, fmt.Sprintf("%s is not programmed there, but is needed by %s", f, output.Plural(needed, "Service")))
		}
	}
	return list
}
