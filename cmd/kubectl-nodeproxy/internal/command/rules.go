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
		Short: "Show the desired rules of a node",
		Long: `Show the desired rules of a node, as its agent computes them: each port of each Service
with its addresses, its traffic policies and the endpoints that this node uses. Lines that
begin with ! say why the node itself may differ.

With --service, show one Service in full, with each of its endpoints and why this node uses
it or not.`,
		Example: `  # All desired rules of a node
  kubectl nodeproxy rules node-1

  # Why does this node use these endpoints?
  kubectl nodeproxy rules node-1 --service shop/web`,
		Args:              arguments(1, 1, "the name of a node"),
		ValidArgsFunction: p.completeNodes(1),
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		report, err := p.rules(cmd, args[0], service)
		return report, false, err
	})
	cmd.Flags().StringVar(&service, "service", "", "show only this Service, in full: NAMESPACE/NAME, or a NAME in the namespace of -n")
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

// newer returns the remedy for ServiceProxyRules, or those of one Service, that are omitted
// because they are of a newer release than the plugin. One note is enough for all.
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

// serviceName parses NAMESPACE/NAME, or a name in the namespace of the flags or the
// kubeconfig.
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
		return cluster.Name{}, fmt.Errorf("%q is not the name of a Service: use NAMESPACE/NAME, such as default/kubernetes", text)
	}
	return cluster.Name{Namespace: namespace, Name: name}, nil
}
