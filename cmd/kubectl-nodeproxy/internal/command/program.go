package command

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

// program is what the commands share.
type program struct {
	*Options
	kube *genericclioptions.ConfigFlags
}

// anyServer is the address of the API server if none is configured.
const anyServer = "http://localhost:8080"

// reader returns a reader of the cluster of the flags and the kubeconfig.
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
	return cluster.NewReader(config, cluster.Docs(p.Version))
}

// read reads the objects that a command needs, and records the time.
func (p *program) read(cmd *cobra.Command, r *cluster.Reader, required, optional []cluster.Kind) (*cluster.Objects, error) {
	objects := &cluster.Objects{}
	if err := r.Read(cmd.Context(), objects, required, optional); err != nil {
		return nil, err
	}
	objects.Time = p.Now()
	if server := r.Time(); !server.IsZero() {
		objects.Time, objects.Ahead = server, objects.Time.Sub(server)
	}
	return objects, nil
}

// reporting is a command that examines the cluster and prints a report, or an error and
// nothing else. examine returns no report if it has printed it. Its second result reports whether there are findings, for the
// exit code.
func reporting(cmd *cobra.Command, examine func(cmd *cobra.Command, args []string) (output.Report, bool, error)) *cobra.Command {
	format := cmd.Flags().StringP("output", "o", string(output.Table), "output format: table, wide (nothing left out or wrapped), yaml or json")
	values := []cobra.Completion{string(output.Table), string(output.Wide), string(output.YAML), string(output.JSON)}
	completeFlag(cmd, "output", cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := output.Parse(*format)
		if err != nil {
			return err
		}
		report, findings, err := examine(cmd, args)
		if err != nil {
			return err
		}
		if report != nil { // else it is printed already
			if err := output.Print(cmd.OutOrStdout(), f, report); err != nil {
				return err
			}
		}
		if findings {
			return errFindings
		}
		return nil
	}
	return cmd
}

// arguments returns a check of the number of arguments. what describes them.
func arguments(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		return fmt.Errorf("%s takes %s, but got %s: kubectl nodeproxy %s", cmd.Name(), what, text.Count(len(args), "argument"), cmd.Use)
	}
}
