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
)

// Exit statuses of all commands.
const (
	ExitWell     = 0
	ExitFindings = 1 // doctor has findings or could not look at everything, diff has found a difference
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
		_, _ = fmt.Fprintf(o.Err, "error: %v\n", err) // to a terminal that is gone: nothing to do
		return ExitError
	}
}

func newRoot(o *Options) *cobra.Command {
	kube := genericclioptions.NewConfigFlags(true)
	root := &cobra.Command{
		Use:           "kubectl-nodeproxy",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nodeproxy"},
		Short:         "What nodeproxy does with the Services of a cluster",
		Version:       o.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(o.In)
	root.SetOut(o.Out)
	root.SetErr(o.Err)
	kube.CacheDir = nil // nothing is asked of the server that would be kept
	kube.AddFlags(root.PersistentFlags())
	p := &program{Options: o, kube: kube}
	root.AddCommand(newDoctor(p), newStatus(p))
	return root
}
