package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/kubeproxy"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Exit codes of all commands.
const (
	ExitOK       = 0
	ExitFindings = 1 // status or doctor: findings or skipped checks; diff: a difference; import-kube-proxy: something is not carried over
	ExitError    = 2
)

// errFindings makes the exit code ExitFindings. The findings have been printed.
var errFindings = errors.New("there are findings")

// Options are the environment of the program.
type Options struct {
	In       io.Reader
	Out, Err io.Writer
	Version  string
	Now      func() time.Time
	// Width is that of the terminal to which Out writes, and Color whether it shows colors; 0 and
	// false without a terminal.
	Width int
	Color bool
	// After is time.After, for a second examination after a while.
	After func(time.Duration) <-chan time.Time
}

// Run runs the program and returns its exit code.
func Run(ctx context.Context, args []string, o Options) int {
	root := newRoot(&o)
	root.SetArgs(args)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return ExitOK
	case errors.Is(err, errFindings):
		return ExitFindings
	default:
		_, _ = fmt.Fprintf(o.Err, "error: %s\n", output.Printable(err.Error())) // the terminal may be closed
		if _, is := errors.AsType[*kubeproxy.InvalidError](err); is {
			return ExitFindings
		}
		return ExitError
	}
}

// usage is the usage template. It omits kubectl's flags, which would fill a screen.
const usage = `Usage:{{if .Runnable}}{{if not .HasSubCommands}}
  {{.UseLine}}{{end}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}

All commands also accept kubectl's flags, such as --context, --kubeconfig, --namespace, --as
and --request-timeout; kubectl options lists them.
`

func newRoot(o *Options) *cobra.Command {
	kube := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:         "kubectl-nodeproxy",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nodeproxy"},
		Short:       "Show how nodeproxy serves the Services of a cluster",
		Long: `Show how nodeproxy serves the Services of a cluster, and why one is unreachable. The
plugin only reads, with the permissions of the ClusterRoles nodeproxy-viewer and view, bound
cluster-wide.

The exit code is 0 on success, 1 for findings or skipped checks (status, doctor),
differences (diff) or lost settings (import-kube-proxy), and 2 for errors.`,
		Example: `  # Is everything healthy?
  kubectl nodeproxy status`,
		Version:       o.Version,
		Args:          onlyCommands,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(o.In)
	root.SetOut(output.Screen{Writer: o.Out, Width: o.Width, Color: o.Color})
	root.SetErr(o.Err)
	kube.CacheDir = nil // no request has a result worth caching
	kube.AddFlags(root.PersistentFlags())
	root.SetUsageTemplate(usage)
	p := &program{Options: o, kube: kube}
	root.AddCommand(newStatus(p), newRules(p), newDiff(p), newDoctor(p), newExposure(p), newTrace(p), newImport(p), newVersion())
	rejectUnknown(root)
	return root
}

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
