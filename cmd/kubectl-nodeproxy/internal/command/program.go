package command

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/hints"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// program is what all commands share.
type program struct {
	*Options
	kube *genericclioptions.ConfigFlags
}

// anyServer is where kubectl looks when nothing says where.
const anyServer = "http://localhost:8080"

// reader returns a reader of the cluster that the flags and the kubeconfig lead to.
func (p *program) reader() (*cluster.Reader, error) {
	config, err := p.kube.ToRESTConfig()
	if err != nil {
		return nil, cluster.Configuration(err)
	}
	raw, err := p.kube.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cluster.Configuration(err)
	}
	if len(raw.Clusters) == 0 && *p.kube.APIServer == "" && config.Host == anyServer {
		return nil, cluster.ErrNoKubeconfig
	}
	return cluster.NewReader(config, hints.Docs(p.Version))
}

// read reads what a command looks at.
func (p *program) read(cmd *cobra.Command, wanted, optional []cluster.Kind) (*cluster.Objects, error) {
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	return p.readBy(cmd, r, wanted, optional)
}

// readBy reads what a command looks at by a reader of which it asks more, and notes the
// time.
func (p *program) readBy(cmd *cobra.Command, r *cluster.Reader, wanted, optional []cluster.Kind) (*cluster.Objects, error) {
	objects, err := r.Read(cmd.Context(), wanted, optional)
	if err != nil {
		return nil, err
	}
	objects.Time = p.Now()
	if told := r.Time(); !told.IsZero() {
		objects.Time, objects.Ahead = told, objects.Time.Sub(told)
	}
	return objects, nil
}

// outputFlag adds the flag -o and returns where its value will be.
func outputFlag(cmd *cobra.Command) *string {
	format := cmd.Flags().StringP("output", "o", string(output.Table), "how to print it: table, yaml or json")
	values := []cobra.Completion{string(output.Table), string(output.YAML), string(output.JSON)}
	completeFlag(cmd, "output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	return format
}

// reporting is a command that looks at the cluster and prints a report. Nothing is
// printed before all of it is known. The second result of look reports whether there
// is something to act upon, for the exit status.
func reporting(cmd *cobra.Command, look func(cmd *cobra.Command, args []string) (output.Report, bool, error)) *cobra.Command {
	format := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := output.Parse(*format)
		if err != nil {
			return err
		}
		report, findings, err := look(cmd, args)
		if err != nil {
			return err
		}
		if err := output.Print(cmd.OutOrStdout(), f, report); err != nil {
			return err
		}
		if findings {
			return errFindings
		}
		return nil
	}
	return cmd
}

// arguments returns a check of how many arguments there are: least to most. What says
// what they are.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		return fmt.Errorf("%s takes %s, and got %s: kubectl nodeproxy %s", cmd.Name(), what, output.Plural(len(args), "argument"), cmd.Use)
	}
}
