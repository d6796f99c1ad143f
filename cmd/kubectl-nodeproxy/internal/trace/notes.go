package trace

import (
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/notes"
)

// notesOf say why a node may differ from its desired rules. An agent that does not support
// their format is an error: its rules have nothing to do with them.
func notesOf(node *v1alpha1.NodeProxyRules, set *combine.Set, o *cluster.Objects) ([]string, error) {
	if old := notes.TooOld(node); old != "" {
		return nil, errors.New(old + "; kubectl nodeproxy doctor shows how to upgrade it")
	}
	list := notes.Of(node, set.Mode, o)
	if meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionProgrammed) && !slices.Contains(node.Status.Families, string(set.Family)) {
		list = append(list, fmt.Sprintf("%s is not programmed on this node", set.Family))
	}
	return list, nil
}
