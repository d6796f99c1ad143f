package command

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// completionPatience is the timeout of completion.
const completionPatience = "5s"

// complete completes up to most arguments with the names of nodes or Services, each once. After
// an error there are none.
func (p *program) complete(of cluster.Kind, most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if !cmd.Flags().Changed("request-timeout") {
			*p.kube.Timeout = completionPatience
		}
		r, err := p.reader()
		if err != nil || len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var list []cobra.Completion
		names, _ := r.Names(cmd.Context(), of)
		for _, name := range names {
			if service, ok := combine.ServiceOf(name); ok && of == cluster.ServiceProxyRules {
				list = append(list, service.String())
			} else if of == cluster.NodeProxyRules && !slices.Contains(args, name) {
				list = append(list, name)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag adds completion to an existing flag.
func completeFlag(cmd *cobra.Command, flag string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err)
	}
}

// unknown returns an error for an unknown subcommand.
func unknown(of *cobra.Command, name string) error {
	var names []string
	for _, c := range of.Commands() {
		names = append(names, c.Name())
	}
	return fmt.Errorf("unknown command %q%s (%s --help lists the commands)", name, cluster.Suggest(name, names), of.CommandPath())
}

// onlyCommands rejects arguments that are not subcommands.
func onlyCommands(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknown(cmd, args[0])
}

// rejectUnknown makes help and completion reject unknown commands. By default they print
// help and exit with 0.
func rejectUnknown(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				if of, rest, err := root.Find(args); err != nil || len(rest) > 0 {
					return unknown(of, append(rest, args...)[0])
				}
				return nil
			}
		case "completion":
			c.Args = onlyCommands
			c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		}
	}
}
