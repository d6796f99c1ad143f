package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/rules"
)

func newDiff(p *program) *cobra.Command {
	var local bool
	cmd := reporting(&cobra.Command{
		Use:   "diff NODE [NODE]",
		Short: "What a node reports against what is wanted, or one node against another",
		Long: `What a node reports against what is wanted of it; or two nodes against each other:
their settings, policies and versions, and the Services of which they are to hold
something else. What is the same is not printed. What agents report up to five minutes
late is no difference, until a node has not applied it for ten.

What cannot be compared is told of in notes, and is no difference.

The exit status is 1 where something differs, 2 after an error.`,
		Example: `  # Does the node do what is wanted?
  kubectl nodeproxy diff node-1

  # Why does a Service answer on one node and not on the other?
  kubectl nodeproxy diff node-1 node-2 --local`,
		Args:              arguments(1, 2, "the name of a node, or of two"),
		ValidArgsFunction: p.completeNodes(2),
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		d, err := p.diff(cmd, args, local)
		if err != nil {
			return nil, false, err
		}
		return d, d.Differs(), nil
	})
	cmd.Flags().BoolVar(&local, "local", false, "of two nodes: compare the endpoints on the nodes themselves, too, where traffic policy Local uses them")
	return cmd
}

func (p *program) diff(cmd *cobra.Command, nodes []string, local bool) (*rules.Difference, error) {
	if len(nodes) == 1 && local {
		return nil, fmt.Errorf("--local is for two nodes: kubectl nodeproxy diff %s OTHER --local", nodes[0])
	}
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	first, err := r.Node(cmd.Context(), nodes[0])
	if err != nil {
		return nil, err
	}
	second := first
	if len(nodes) == 2 {
		if second, err = r.Node(cmd.Context(), nodes[1]); err != nil {
			return nil, err
		}
	}
	objects, err := p.readBy(cmd, r, []cluster.Kind{cluster.ServiceProxyRules}, []cluster.Kind{cluster.NodeProxies})
	if err != nil {
		return nil, err
	}
	for _, n := range []*v1alpha1.NodeProxyRules{first, second} {
		if err := objects.Newer("NodeProxyRules "+n.Name, n.Spec.FormatVersion, p.Version); err != nil {
			return nil, err
		}
	}
	var d *rules.Difference
	if len(nodes) == 2 {
		d, err = rules.Between(first, second, objects.ServiceRules, local)
	} else {
		d, err = rules.Reported(first, objects.ServiceRules, objects.Time)
	}
	if err != nil {
		return nil, err
	}
	d.Notes = append(d.Notes, p.newer(objects, nil)...)
	return d, nil
}
