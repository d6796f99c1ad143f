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
		Short: "Find out why Services do not answer, and what to do",
		Long: `Runs through what experience runs through, for all Services or for one: whether names
resolve, whether there are endpoints and they are ready, whether Services are rendered as
they should be and every node holds them, whether a traffic policy leaves nodes without
endpoints, whether pods reach themselves, whether connection tracking has room, whether
policies do what they say, and what clients outside of the cluster can reach.

What explains most comes first; what follows from it is below it. The exit status is 0
where all is well, 1 where there are findings, or where something could not be looked at,
and 2 where nothing could.`,
		Example: `  # What is wrong with the cluster?
  kubectl nodeproxy doctor

  # Why does this Service not answer?
  kubectl nodeproxy doctor shop/web

  # For a program
  kubectl nodeproxy doctor -o json`,
		Args:              arguments(0, 1, "a Service as NAMESPACE/SERVICE, or a SERVICE in the namespace of -n, or nothing for all of them"),
		ValidArgsFunction: p.completeServices,
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		service, err := p.oneService(args)
		if err != nil {
			return nil, false, err
		}
		look := func() (*cluster.Objects, error) {
			return p.read(cmd, []cluster.Kind{cluster.NodeProxies, cluster.NodeProxyRules, cluster.ServiceProxyRules}, []cluster.Kind{
				cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies,
				cluster.Namespaces, cluster.Services, cluster.EndpointSlices, cluster.Pods,
			})
		}
		objects, err := look()
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
					return look()
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
		return report, len(report.Findings)+len(report.NotMade) > 0, nil
	})
}

// oneService reads the name of a Service, if there is one.
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
