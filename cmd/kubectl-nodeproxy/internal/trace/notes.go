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

// notesOf say in what a node may differ from what is wanted of it. An agent that
// does not understand its rules is an error: what it does has nothing to do with them.
func notesOf(node *v1alpha1.NodeProxyRules, set *combine.Set, o *cluster.Objects) ([]string, error) {
	if old := notes.TooOld(node); old != "" {
		return nil, errors.New(old + "; kubectl nodeproxy doctor says how to upgrade it")
	}
	list := notes.Of(node, set.Mode, o)
	if meta.IsStatusConditionTrue(node.Status.Conditions, v1alpha1.ConditionProgrammed) && !slices.Contains(node.Status.Families, string(set.Family)) {
		list = append(list, fmt.Sprintf("%s is not programmed on this node", set.Family))
	}
	return list, nil
}
