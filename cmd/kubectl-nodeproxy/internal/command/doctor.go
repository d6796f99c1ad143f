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
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
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
		ValidArgsFunction: p.completeServices,
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		service, err := p.oneService(args)
		if err != nil {
			return nil, false, err
		}
		read := func() (*cluster.Objects, error) {
			return p.read(cmd, []cluster.Kind{cluster.NodeProxies, cluster.NodeProxyRules, cluster.ServiceProxyRules}, []cluster.Kind{
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
			Docs:    hints.Docs(p.Version),
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

// oneService parses the name of a Service, if any.
func (p *program) oneService(args []string) (*types.NamespacedName, error) {
	if len(args) == 0 {
		return nil, nil
	}
	name, err := p.serviceName(args[0])
	if err != nil {
		return nil, err
	}
	return &types.NamespacedName{Namespace: name.Namespace, Name: name.Name}, nil
}
