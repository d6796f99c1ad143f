package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/rules"
)

func newRules(p *program) *cobra.Command {
	var service string
	cmd := reporting(&cobra.Command{
		Use:   "rules NODE [--service NAMESPACE/NAME]",
		Short: "What a node is to hold, combined as its agent does",
		Long: `What a node is to hold, combined as its agent does: each port of each Service with
the addresses at which it answers, its traffic policies and the endpoints that they
leave to this node. A line that begins with ! says in what the node itself may differ.

With --service it is one Service in full, with each of its endpoints and why it is used
on this node or not.`,
		Example: `  # All that a node is to hold
  kubectl nodeproxy rules node-1

  # Why does this node use these endpoints?
  kubectl nodeproxy rules node-1 --service shop/web`,
		Args:              arguments(1, 1, "the name of a node"),
		ValidArgsFunction: p.completeNodes(1),
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		report, err := p.rules(cmd, args[0], service)
		return report, false, err
	})
	cmd.Flags().StringVar(&service, "service", "", "show this Service alone, in full: NAMESPACE/NAME, or a NAME in the namespace of -n")
	completeFlag(cmd, "service", p.completeServiceFlag)
	return cmd
}

func (p *program) rules(cmd *cobra.Command, node, service string) (output.Report, error) {
	var only *dataplane.ServiceName
	if cmd.Flags().Changed("service") {
		name, err := p.serviceName(service)
		if err != nil {
			return nil, err
		}
		only = &dataplane.ServiceName{Namespace: name.Namespace, Name: name.Name}
	}
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	of, err := r.Node(cmd.Context(), node)
	if err != nil {
		return nil, err
	}
	objects, err := p.readBy(cmd, r, []cluster.Kind{cluster.ServiceProxyRules}, []cluster.Kind{cluster.NodeProxies})
	if err != nil {
		return nil, err
	}
	if err := objects.Newer("NodeProxyRules "+node, of.Spec.FormatVersion, p.Version); err != nil {
		return nil, err
	}
	if only != nil {
		if err := r.Rendered(cmd.Context(), cluster.Name(*only), objects, of); err != nil {
			return nil, err
		}
	}
	report, err := rules.Of(of, objects, only)
	if err != nil {
		return nil, err
	}
	report.Notes = append(report.Notes, p.newer(objects, only)...)
	return report, nil
}

// newer says what to do about ServiceProxyRules, or those of one Service, of which nothing
// is shown as they are of a newer release than the plugin. One sentence does for all.
func (p *program) newer(objects *cluster.Objects, only *dataplane.ServiceName) []string {
	for i := range objects.ServiceRules {
		o := &objects.ServiceRules[i]
		if only != nil && o.Name != v1alpha1.ServiceProxyRulesName(only.Namespace, only.Name) {
			continue
		}
		if err := objects.Newer("ServiceProxyRules "+o.Name, o.Spec.FormatVersion, p.Version); err != nil {
			return []string{err.Error()}
		}
	}
	return nil
}

// serviceName reads NAMESPACE/NAME, or a name in the namespace that the flags or the
// kubeconfig say.
func (p *program) serviceName(text string) (cluster.Name, error) {
	namespace, name, full := strings.Cut(text, "/")
	if !full {
		var err error
		name = namespace
		if namespace, _, err = p.kube.ToRawKubeConfigLoader().Namespace(); err != nil {
			return cluster.Name{}, cluster.Configuration(err)
		}
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return cluster.Name{}, fmt.Errorf("%q does not name a Service: give NAMESPACE/NAME, such as default/kubernetes", text)
	}
	return cluster.Name{Namespace: namespace, Name: name}, nil
}
