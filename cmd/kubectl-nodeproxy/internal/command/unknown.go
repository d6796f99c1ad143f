package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

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
