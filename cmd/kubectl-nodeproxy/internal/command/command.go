// Package command is the plugin's command line: flags, what is read for which
// command, and exit statuses.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// Exit statuses of all commands.
const (
	ExitWell     = 0
	ExitFindings = 1 // status or doctor has found something or could not look at everything, diff a difference
	ExitError    = 2
)

// errFindings makes the exit status ExitFindings. What was found has been printed.
var errFindings = errors.New("there are findings")

// Options are what the program is run with.
type Options struct {
	In       io.Reader
	Out, Err io.Writer
	Version  string
	Now      func() time.Time
	// After is time.After, for a second look a while later.
	After func(time.Duration) <-chan time.Time
}

// Run runs the program with these arguments and returns its exit status.
func Run(ctx context.Context, args []string, o Options) int {
	root := newRoot(&o)
	root.SetArgs(args)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return ExitWell
	case errors.Is(err, errFindings):
		return ExitFindings
	default:
		_, _ = fmt.Fprintf(o.Err, "error: %s\n", output.Printable(err.Error())) // to a terminal that is gone: nothing to do
		return ExitError
	}
}

// usage is how commands are used. The flags of kubectl, which all commands have, would
// fill a screen.
const usage = `Usage:{{if .Runnable}}{{if not .HasSubCommands}}
  {{.UseLine}}{{end}}{{end}}{{if .HasAvailableSubCommands}}
  {{.CommandPath}} COMMAND{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}

Flags of kubectl such as --context, --kubeconfig, --namespace, --as and --request-timeout
may be given to every command; kubectl options lists them.
`

func newRoot(o *Options) *cobra.Command {
	kube := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:         "kubectl-nodeproxy",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nodeproxy"},
		Short:       "What nodeproxy does with the Services of a cluster",
		Long: `What nodeproxy does with the Services of a cluster, and why one does not answer. It
only reads, with the rights of the ClusterRoles nodeproxy-viewer and view, bound in the
whole cluster.

The exit status is 0 if all is well, 1 if something is not (status, doctor) or differs
(diff), 2 after an error.`,
		Example: `  # Is all well?
  kubectl nodeproxy status`,
		Version:       o.Version,
		Args:          onlyCommands,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(o.In)
	root.SetOut(o.Out)
	root.SetErr(o.Err)
	kube.CacheDir = nil // nothing is asked of the server that would be kept
	kube.AddFlags(root.PersistentFlags())
	root.SetUsageTemplate(usage)
	p := &program{Options: o, kube: kube}
	root.AddCommand(newStatus(p), newRules(p), newDiff(p), newDoctor(p), newTrace(p), newVersion())
	refuseUnknown(root)
	return root
}
