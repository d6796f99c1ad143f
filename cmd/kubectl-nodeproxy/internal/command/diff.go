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
		Short: "Compare a node's desired state with its report, or two nodes",
		Long: `Compare a node's desired state with what it reports, or two nodes: their settings,
policies, versions, and the Services whose rules differ. The output has differences only.
Counts that agents may report five minutes late are not differences until a node has not
applied a change for ten minutes.

Notes mention what cannot be compared.

The exit code is 0 if there is no difference, 1 if there is one, and 2 for errors.`,
		Example: `  # Does the node have its desired state?
  kubectl nodeproxy diff node-1

  # Why is a Service reachable by one node but not by the other?
  kubectl nodeproxy diff node-1 node-2 --local`,
		Args:              arguments(1, 2, "one or two names of nodes"),
		ValidArgsFunction: p.completeNodes(2),
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		d, err := p.diff(cmd, args, local)
		if err != nil {
			return nil, false, err
		}
		return d, !d.Equal, nil
	})
	cmd.Flags().BoolVar(&local, "local", false, "for two nodes: also compare local endpoints, which traffic policy Local uses")
	return cmd
}

func (p *program) diff(cmd *cobra.Command, nodes []string, local bool) (*rules.Difference, error) {
	if len(nodes) == 1 && local {
		return nil, fmt.Errorf("--local needs two nodes: kubectl nodeproxy diff %s OTHER --local", nodes[0])
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
