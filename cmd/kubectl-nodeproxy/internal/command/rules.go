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
begin with ! explain why the node itself may differ.

With --service, show one Service in full, with each of its endpoints and why this node uses
it or not.`,
		Example: `  # All desired rules of a node
  kubectl nodeproxy rules node-1

  # Why does this node use these endpoints?
  kubectl nodeproxy rules node-1 --service shop/web`,
		Args:              arguments(1, 1, "the name of a node"),
		ValidArgsFunction: p.complete(cluster.NodeProxyRules, 1),
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		report, err := p.rules(cmd, args[0], service)
		return report, false, err
	})
	cmd.Flags().StringVar(&service, "service", "", "show only this Service, in full: NAMESPACE/NAME, or a NAME in the namespace of -n")
	completeFlag(cmd, "service", p.complete(cluster.ServiceProxyRules, 2)) // besides the NODE
	return cmd
}

func (p *program) rules(cmd *cobra.Command, node, service string) (output.Report, error) {
	var only *dataplane.ServiceName
	if cmd.Flags().Changed("service") {
		name, err := p.serviceName(service)
		if err != nil {
			return nil, err
		}
		only = &name
	}
	r, nodes, objects, err := p.nodes(cmd, node)
	if err != nil {
		return nil, err
	}
	if only != nil {
		if err := r.Rendered(cmd.Context(), *only, objects, nodes[0]); err != nil {
			return nil, err
		}
	}
	report, err := rules.Of(nodes[0], objects, only)
	if err != nil {
		return nil, err
	}
	report.Notes = append(report.Notes, newer(objects, only)...)
	return report, nil
}

// nodes reads the rules of nodes and of all Services.
func (p *program) nodes(cmd *cobra.Command, names ...string) (*cluster.Reader, []*v1alpha1.NodeProxyRules, *cluster.Objects, error) {
	r, err := p.reader()
	if err != nil {
		return nil, nil, nil, err
	}
	var nodes []*v1alpha1.NodeProxyRules
	for _, name := range names {
		node, err := r.Node(cmd.Context(), name)
		if err != nil {
			return nil, nil, nil, err
		}
		nodes = append(nodes, node)
	}
	objects, err := p.read(cmd, r, []cluster.Kind{cluster.ServiceProxyRules}, []cluster.Kind{cluster.NodeProxies})
	if err != nil {
		return nil, nil, nil, err
	}
	for _, node := range nodes {
		if err := objects.NewerNode(node); err != nil {
			return nil, nil, nil, err
		}
	}
	return r, nodes, objects, nil
}

// newer returns the remedy for ServiceProxyRules, or those of one Service, that are omitted
// because they are of a newer release than the plugin. One note is enough for all.
func newer(objects *cluster.Objects, only *dataplane.ServiceName) []string {
	for i := range objects.ServiceRules {
		o := &objects.ServiceRules[i]
		if only != nil && o.Name != v1alpha1.ServiceProxyRulesName(only.Namespace, only.Name) {
			continue
		}
		if err := objects.NewerService(o); err != nil {
			return []string{err.Error()}
		}
	}
	return nil
}

// serviceName parses NAMESPACE/NAME, or a name in the namespace of the flags or the
// kubeconfig.
func (p *program) serviceName(text string) (dataplane.ServiceName, error) {
	namespace, name, full := strings.Cut(text, "/")
	if !full {
		var err error
		name = namespace
		if namespace, _, err = p.kube.ToRawKubeConfigLoader().Namespace(); err != nil {
			return dataplane.ServiceName{}, cluster.Configuration(err)
		}
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return dataplane.ServiceName{}, fmt.Errorf("%q is not the name of a Service: use NAMESPACE/NAME, such as default/kubernetes", text)
	}
	return dataplane.ServiceName{Namespace: namespace, Name: name}, nil
}

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
		ValidArgsFunction: p.complete(cluster.NodeProxyRules, 2),
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

func (p *program) diff(cmd *cobra.Command, names []string, local bool) (*rules.Difference, error) {
	if len(names) == 1 && local {
		return nil, fmt.Errorf("--local needs two nodes: kubectl nodeproxy diff %s OTHER --local", names[0])
	}
	_, nodes, objects, err := p.nodes(cmd, names...)
	if err != nil {
		return nil, err
	}
	var d *rules.Difference
	if len(nodes) == 2 {
		d, err = rules.Between(nodes[0], nodes[1], objects.ServiceRules, local)
	} else {
		d, err = rules.Reported(nodes[0], objects)
	}
	if err != nil {
		return nil, err
	}
	d.Notes = append(d.Notes, newer(objects, nil)...)
	return d, nil
}
