package command

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// completionPatience is the timeout of completion.
const completionPatience = "5s"

// names returns the names of a kind for the shell, or none after an error.
func (p *program) names(cmd *cobra.Command, of cluster.Kind) []cluster.Name {
	if !cmd.Flags().Changed("request-timeout") {
		*p.kube.Timeout = completionPatience
	}
	r, err := p.reader()
	if err != nil {
		return nil
	}
	names, err := r.Names(cmd.Context(), of)
	if err != nil {
		return nil
	}
	return names
}

// completeNodes completes up to most arguments with names of nodes, each once.
func (p *program) completeNodes(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var list []cobra.Completion
		for _, n := range p.names(cmd, cluster.NodeProxyRules) {
			if !slices.Contains(args, n.Name) {
				list = append(list, n.Name)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeServices completes one argument with NAMESPACE/NAME of a Service.
func (p *program) completeServices(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var list []cobra.Completion
	for _, n := range p.names(cmd, cluster.ServiceProxyRules) {
		if service, ok := combine.ServiceOf(n.Name); ok {
			list = append(list, service.String())
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// completeServiceFlag completes a flag with NAMESPACE/NAME of a Service.
func (p *program) completeServiceFlag(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return p.completeServices(cmd, nil, begun)
}

// completeFlag adds completion to an existing flag.
func completeFlag(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err)
	}
}
