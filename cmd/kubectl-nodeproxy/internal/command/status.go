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
		Short: "Summarize the cluster: counts and problems",
		Long: `Summarize the cluster: whether nodeproxy is enabled, its versions, the nodes by state,
and problems of the controller, the nodes, rollouts and connection tracking, with the
Services that the controller or a node rejects or retains.

status does not read Services and their rules. doctor does, and finds out which nodes lag
and whether they have the IP families that Services need.

The exit code is 0 if everything is healthy, 1 for findings, incomplete rollouts, rejected
Services or skipped checks, and 2 for errors.`,
		Example: `  # Is everything healthy?
  kubectl nodeproxy status

  # Machine-readable
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
		return report, !report.OK, nil
	})
}
