package command

import (
	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/status"
)

func newStatus(p *program) *cobra.Command {
	return reporting(&cobra.Command{
		Use:   "status",
		Short: "The cluster at a glance: what is not well, and since when",
		Long: `The cluster at a glance: whether nodeproxy is on, its versions, the nodes by state,
and then only what is not well: nodes, the agents' deployment, rollouts, refused and
held Services, connection tracking.

It does not look at Services and what is rendered of them: how many nodes lag behind
is what the controller counts; which nodes those are, and whether each has the IP
families that Services need, the doctor tells.

The exit status is 0 if all is well, 1 if not or if something could not be looked at,
and 2 after an error.`,
		Example: `  # Is all well?
  kubectl nodeproxy status

  # All of it, for a program
  kubectl nodeproxy status -o json`,
		Args:              arguments(0, 0, "no argument"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(cmd *cobra.Command, _ []string) (output.Report, bool, error) {
		r, err := p.reader()
		if err != nil {
			return nil, false, err
		}
		objects, err := p.readBy(cmd, r,
			[]cluster.Kind{cluster.NodeProxies, cluster.NodeProxyRules},
			[]cluster.Kind{cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies})
		if err != nil {
			return nil, false, err
		}
		if err := r.ReadOwnPods(cmd.Context(), objects); err != nil {
			return nil, false, err
		}
		report := status.Of(objects, hints.Docs(p.Version))
		return report, !report.Well, nil
	})
}
