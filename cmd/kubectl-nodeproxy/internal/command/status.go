package command

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/status"
)

// statusInterval is how often --watch and --wait read the cluster.
const statusInterval = 2 * time.Second

// clearScreen empties a terminal.
const clearScreen = "\x1b[H\x1b[2J\x1b[3J"

// follow are the flags of status that repeat it.
type follow struct {
	watch   bool
	wait    string
	timeout time.Duration
}

func newStatus(p *program) *cobra.Command {
	var severity failOn
	var f follow
	cmd := reporting(&cobra.Command{
		Use:   "status",
		Short: "Summarize the cluster: counts and problems",
		Long: `Summarize the cluster: whether nodeproxy is enabled, its versions, the nodes by state,
and problems of the controller, the nodes, rollouts and connection tracking, with the
Services that are not rendered, or that a node rejects or retains. -o wide adds each node.

status does not read Services and their rules. doctor does, and finds out which nodes lag
and whether they have the IP families that Services need.

The exit code is 0 if everything is healthy, 1 for findings, incomplete rollouts, Services
that are not rendered or skipped checks, and 2 for errors. With --wait it is 0 once the
condition is met, and 1 if that takes too long.`,
		Example: `  # Is everything healthy?
  kubectl nodeproxy status

  # Follow it
  kubectl nodeproxy status --watch

  # Wait until every node has a change of settings
  kubectl nodeproxy status --wait=rolled-out --timeout=10m

  # Machine-readable
  kubectl nodeproxy status -o json`,
		Args:              arguments(0, 0, "no argument"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}, func(cmd *cobra.Command, _ []string) (output.Report, bool, error) {
		report, err := p.status(cmd)
		switch {
		case err != nil:
			return nil, false, err
		case f.watch:
			report, err = p.watchStatus(cmd, report)
			return nil, err == nil && severity.failsStatus(report), err
		case f.wait != "":
			report, err = p.awaitStatus(cmd, report, f)
			return report, err == nil && !report.Meets(status.Goal(f.wait)), err
		}
		return report, severity.failsStatus(report), nil
	})
	severity.addTo(cmd)
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "print the status again whenever it changes, until interrupted")
	cmd.Flags().StringVar(&f.wait, "wait", "", "wait for a `goal`: healthy, programmed (every node) or rolled-out")
	cmd.Flags().Lookup("wait").NoOptDefVal = string(status.Healthy)
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Minute, "how long --wait waits")
	goals := []cobra.Completion{string(status.Healthy), string(status.Programmed), string(status.RolledOut)}
	completeFlag(cmd, "wait", cobra.FixedCompletions(goals, cobra.ShellCompDirectiveNoFileComp))
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if f.watch && f.wait != "" {
			return errors.New("--watch and --wait exclude each other: pass one of them")
		}
		if goal := status.Goal(f.wait); f.wait != "" && goal != status.Healthy && goal != status.Programmed && goal != status.RolledOut {
			return fmt.Errorf("--wait=%s: unknown; use healthy, programmed or rolled-out", f.wait)
		}
		return nil
	}
	return cmd
}

// failsStatus is fails for a status. A Service that is not rendered is a problem.
func (f *failOn) failsStatus(r *status.Report) bool {
	return f.fails(!r.OK, r.Findings) || r.Services.Unrendered > 0
}

func (p *program) status(cmd *cobra.Command) (*status.Report, error) {
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	objects, err := p.read(cmd, r,
		[]cluster.Kind{cluster.NodeProxies, cluster.NodeProxyRules},
		[]cluster.Kind{cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies})
	if err != nil {
		return nil, err
	}
	if err := r.ReadOwnPods(cmd.Context(), objects); err != nil {
		return nil, err
	}
	return status.Of(objects), nil
}

// next is the status after the interval. Without an answer it reports why, and returns the last one.
// It is nil once time is up or the command is interrupted.
func (p *program) next(cmd *cobra.Command, last *status.Report, timeUp <-chan time.Time) *status.Report {
	select {
	case <-cmd.Context().Done():
		return nil
	case <-timeUp:
		return nil
	case <-p.After(statusInterval):
	}
	now, err := p.status(cmd)
	switch {
	case cmd.Context().Err() != nil:
		return nil
	case err != nil:
		cmd.PrintErrf("error: %s\n", output.Printable(err.Error()))
		return last
	}
	return now
}

// watchStatus prints the status whenever it changes, and returns the last one.
func (p *program) watchStatus(cmd *cobra.Command, report *status.Report) (*status.Report, error) {
	format, err := output.Parse(cmd.Flag("output").Value.String())
	if err != nil {
		return nil, err
	}
	shown := ""
	for {
		if state := report.State(); state != shown {
			shown = state
			var out bytes.Buffer
			switch {
			case p.Width > 0:
				out.WriteString(clearScreen)
			case format == output.YAML:
				out.WriteString("---\n")
			}
			screen := output.Screen{Writer: &out, Width: p.Width, Color: p.Color}
			if err := output.Print(screen, format, report); err != nil {
				return nil, err
			}
			if p.Width == 0 && (format == output.Table || format == output.Wide) {
				out.WriteString("\n")
			}
			if _, err := p.Out.Write(out.Bytes()); err != nil {
				return nil, fmt.Errorf("print: %w", err)
			}
		}
		now := p.next(cmd, report, nil)
		if now == nil {
			return report, nil
		}
		report = now
	}
}

// awaitStatus waits until the goal is reached or time is up, and returns the last status.
func (p *program) awaitStatus(cmd *cobra.Command, report *status.Report, f follow) (*status.Report, error) {
	timeUp := p.After(f.timeout)
	for !report.Meets(status.Goal(f.wait)) {
		now := p.next(cmd, report, timeUp)
		if err := cmd.Context().Err(); err != nil {
			return nil, fmt.Errorf("interrupted: %w", err)
		}
		if now == nil {
			cmd.PrintErrf("not %s within %s\n", f.wait, f.timeout)
			break
		}
		report = now
	}
	return report, nil
}
