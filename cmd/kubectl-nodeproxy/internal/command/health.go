package command

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/doctor"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/status"
)

func newDoctor(p *program) *cobra.Command {
	return reporting(&cobra.Command{
		Use:   "doctor [NAMESPACE/SERVICE]",
		Short: "Find out why Services are unreachable, and the remedy",
		Long: `Run the checks an expert would run, for all Services or for one: the controller and the
nodes, the cluster's DNS, whether Services are rendered and have ready endpoints, traffic
policies that leave nodes without endpoints, pods that use their own Service, connection
tracking, policies, and what clients outside the cluster can reach.

The finding that explains most comes first, with its consequences. The exit code is 0
without findings, 1 for findings or skipped checks, and 2 for errors.`,
		Example: `  # What is wrong with the cluster?
  kubectl nodeproxy doctor

  # Why is this Service unreachable?
  kubectl nodeproxy doctor shop/web

  # Machine-readable
  kubectl nodeproxy doctor -o json`,
		Args:              arguments(0, 1, "NAMESPACE/SERVICE, or a SERVICE in the namespace of -n, or no argument for all Services"),
		ValidArgsFunction: p.complete(cluster.ServiceProxyRules, 1),
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		var service *types.NamespacedName
		if len(args) > 0 {
			name, err := p.serviceName(args[0])
			if err != nil {
				return nil, false, err
			}
			service = (*types.NamespacedName)(&name)
		}
		r, err := p.reader()
		if err != nil {
			return nil, false, err
		}
		read := func() (*cluster.Objects, error) {
			return p.read(cmd, r, []cluster.Kind{cluster.NodeProxies, cluster.NodeProxyRules, cluster.ServiceProxyRules}, []cluster.Kind{
				cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies,
				cluster.Namespaces, cluster.Services, cluster.EndpointSlices, cluster.Pods,
			})
		}
		objects, err := read()
		if err != nil {
			return nil, false, err
		}
		report, err := doctor.Examine(objects, doctor.Question{
			Service: service,
			Again: func(after time.Duration) (*cluster.Objects, error) {
				select {
				case <-cmd.Context().Done():
					return nil, fmt.Errorf("interrupted: %w", cmd.Context().Err())
				case <-p.After(after):
					return read()
				}
			},
			Trace: func(set *combine.Set, packet tracer.Packet) (*tracer.Result, error) {
				return tracer.New(set).Trace(cmd.Context(), packet)
			},
		})
		if err != nil {
			return nil, false, err
		}
		if err := cmd.Context().Err(); err != nil {
			return nil, false, fmt.Errorf("interrupted: %w", err)
		}
		return report, !report.OK, nil
	})
}

func newStatus(p *program) *cobra.Command {
	return reporting(&cobra.Command{
		Use:   "status",
		Short: "Summarize the cluster: counts and problems",
		Long: `Summarize the cluster: whether nodeproxy is enabled, its versions, the nodes by state,
and problems of the controller, the nodes, rollouts and connection tracking, with the
Services that are not rendered, or that a node rejects or retains.

status does not read Services and their rules. doctor does, and finds out which nodes lag
and whether they have the IP families that Services need.

The exit code is 0 if everything is healthy, 1 for findings, incomplete rollouts, Services
that are not rendered or skipped checks, and 2 for errors.`,
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
		objects, err := p.read(cmd, r,
			[]cluster.Kind{cluster.NodeProxies, cluster.NodeProxyRules},
			[]cluster.Kind{cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies})
		if err != nil {
			return nil, false, err
		}
		if err := r.ReadOwnPods(cmd.Context(), objects); err != nil {
			return nil, false, err
		}
		report := status.Of(objects)
		return report, !report.OK, nil
	})
}
