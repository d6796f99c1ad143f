package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/cmd/internal/connect"
	"github.com/nodeproxy-io/nodeproxy/config/crd"
	"github.com/nodeproxy-io/nodeproxy/controllers"
	"github.com/nodeproxy-io/nodeproxy/controllers/manifest"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/preview"
)

// Exit statuses of render, as of kubectl diff.
const (
	exitSame    = 0
	exitChanges = 1
	exitFailed  = 2
)

const renderUsage = `nodeproxy-controller render prints the NodeProxyRules and ServiceProxyRules that
follow from NodeProxy, the policies and the objects that they select, once every
rollout has finished. It changes nothing.

Usage:
  nodeproxy-controller render [flags]

  render                                  from the objects of a cluster
  render -f FILE|DIRECTORY|- ...          from files alone, without a cluster
  render -f ... --kubeconfig FILE         from a cluster's objects, with the NodeProxy
                                          and the policies of the files instead of its own

With --diff it prints how they differ from the stored ones instead: in the cluster, or in
the files if there is no cluster. The output of render is such a file.

Exit status: 0 rendered, with --diff nothing would change; 1 with --diff something would
change; 2 an error, such as a file that cannot be read or a policy that is not valid.

Flags:
`

type renderOptions struct {
	api       connect.Options
	files     []string
	recursive bool
	diff      bool
	prune     bool
}

type streams struct {
	in       io.Reader
	out, err io.Writer
}

func parseRenderOptions(args []string, output io.Writer) (renderOptions, error) {
	var o renderOptions
	fs := flag.NewFlagSet("nodeproxy-controller render", flag.ContinueOnError)
	fs.SetOutput(output)
	fs.Usage = func() {
		_, _ = fmt.Fprint(output, renderUsage) // the terminal may be closed
		fs.PrintDefaults()
	}
	o.api.AddFlags(fs)
	add := func(name string) error {
		if name == "" {
			return errors.New("the name is empty")
		}
		o.files = append(o.files, name)
		return nil
	}
	fs.Func("f", "`file` of objects in YAML or JSON, or a directory of such files, or - for the standard input; repeat it for several", add)
	fs.Func("filename", "same as -f `file`", add)
	fs.BoolVar(&o.recursive, "R", false, "read subdirectories, too")
	fs.BoolVar(&o.recursive, "recursive", false, "same as -R")
	fs.BoolVar(&o.diff, "diff", false, "print how rendered objects differ from the stored ones, and how many, and exit with status 1 if any does")
	fs.BoolVar(&o.prune, "prune", false, "with files and a cluster: treat policies of the cluster that are in no file as deleted")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q: specify files with -f, see --help", fs.Arg(0))
	case o.prune && (len(o.files) == 0 || !o.asksCluster()):
		return o, errors.New("--prune needs files (-f) and a cluster (--kubeconfig): it treats policies of the cluster that are in no file as deleted")
	}
	return o, nil
}

// asksCluster reports whether the objects of a cluster are read. With files a cluster must be
// specified, so that no cluster is waited for by mistake.
func (o *renderOptions) asksCluster() bool {
	return len(o.files) == 0 || o.api.Kubeconfig != "" || len(o.api.APIServers) > 0 || o.api.APIServersFile != ""
}

// runRender runs the subcommand, and returns the exit code.
func runRender(ctx context.Context, args []string, s streams, logger logr.Logger) int {
	status, err := renderTo(ctx, args, s, logger)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitSame
	case err != nil: // of several, each on a line
		printLine(s.err, "error: "+strings.ReplaceAll(err.Error(), "\n", "\nerror: "))
		return exitFailed
	}
	return status
}

func renderTo(ctx context.Context, args []string, s streams, logger logr.Logger) (status int, err error) {
	o, err := parseRenderOptions(args, s.err)
	if err != nil {
		return exitFailed, err
	}
	objects, err := gather(ctx, &o, s, logger)
	if err != nil {
		return exitFailed, err
	}
	result := preview.Render(objects)
	changed, err := show(&o, objects, result, s.out)
	for _, note := range result.Notes {
		printLine(s.err, "note: "+note)
	}
	for _, problem := range result.Problems {
		printLine(s.err, "error: "+problem)
	}
	switch {
	case len(result.Problems) > 0:
		status = exitFailed
	case changed:
		status = exitChanges
	}
	return status, err
}

func gather(ctx context.Context, o *renderOptions, s streams, logger logr.Logger) (*preview.Objects, error) {
	var written *preview.Objects
	if len(o.files) > 0 {
		files, skipped, err := manifest.Load(o.files, o.recursive, s.in)
		if err != nil {
			return nil, err
		}
		for _, directory := range skipped {
			printLine(s.err, fmt.Sprintf("note: %s is not read: use --recursive to read subdirectories", directory))
		}
		read, err := manifest.Parse(ctx, crd.Bases(), files)
		if err != nil {
			return nil, err
		}
		if ignored := read.Ignored(); ignored != "" {
			printLine(s.err, "note: "+ignored)
		}
		written = &read.Objects
	}
	if !o.asksCluster() {
		if written.NodeProxy == nil || len(written.Nodes)+len(written.Services) == 0 {
			printLine(s.err, "note: no cluster is read: specify one with --kubeconfig, or its NodeProxy, Nodes, Namespaces, Services and EndpointSlices with -f, too")
		}
		return written, nil
	}
	live, err := liveObjects(ctx, o.api, logger)
	if err != nil || written == nil {
		return live, err
	}
	if n := written.Facts(); n > 0 {
		printLine(s.err, fmt.Sprintf("note: ignoring %s of the files: with a cluster, only NodeProxy and policies are read from files", text.Count(n, "object")))
	}
	live.Overlay(written, o.prune)
	return live, nil
}

func liveObjects(ctx context.Context, api connect.Options, logger logr.Logger) (*preview.Objects, error) {
	connection, err := connect.New(api, clock.RealClock{}, logger)
	if err != nil {
		return nil, err
	}
	scheme, err := objects.NewScheme()
	if err != nil {
		return nil, err
	}
	reader, err := client.New(connection.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("set up the client: %w", err)
	}
	return controllers.LiveObjects(ctx, reader)
}

// show prints the requested output, and reports whether it is a difference.
func show(o *renderOptions, stored *preview.Objects, result *preview.Result, out io.Writer) (changed bool, err error) {
	buffered := bufio.NewWriter(out)
	if o.diff {
		changes := preview.Compare(stored, result)
		changed = len(changes) > 0
		if err = changes.Write(buffered); err == nil {
			_, err = fmt.Fprintln(buffered, changes.Summary())
		}
	} else {
		err = result.Write(buffered)
	}
	if err = errors.Join(err, buffered.Flush()); err != nil {
		return changed, fmt.Errorf("print: %w", err)
	}
	return changed, nil
}

func printLine(out io.Writer, text string) {
	_, _ = fmt.Fprintln(out, text) // the terminal may be closed
}
