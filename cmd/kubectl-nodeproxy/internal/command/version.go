package command

import (
	"github.com/spf13/cobra"
)

// newVersion prints what --version prints.
func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "The release of the plugin",
		Long:              "The release of the plugin, as --version prints it. kubectl nodeproxy status has those of\nthe controller and the agents.",
		Args:              arguments(0, 0, "no argument"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cmd.Printf("%s version %s\n", cmd.Root().DisplayName(), cmd.Root().Version)
			return nil
		},
	}
}
