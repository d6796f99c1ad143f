package command

import (
	"github.com/spf13/cobra"
)

// newVersion prints the same as --version.
func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the release of the plugin",
		Long:              "Print the release of the plugin, like --version. kubectl nodeproxy status prints those of\nthe controller and the agents.",
		Args:              arguments(0, 0, "no argument"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.Printf("%s version %s\n", cmd.Root().DisplayName(), cmd.Root().Version)
			return nil
		},
	}
}
