package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/kubeproxy"
)

func newImport(p *program) *cobra.Command {
	var audit bool
	cmd := &cobra.Command{
		Use:   "import-kube-proxy [--audit]",
		Short: "Print a NodeProxy with kube-proxy's settings",
		Long: `Print a NodeProxy with kube-proxy's settings, and NodeProxyPolicies for node pools whose
kube-proxy differs, as YAML for kubectl apply. Nothing is changed.

The settings come from the DaemonSets and static pods of kube-proxy in kube-system, their
ConfigMaps and flags, or else from k3s's arguments on the Nodes, which the ClusterRole view
does not permit to list. Comments explain what is not carried over.

The exit code is 0 if everything is carried over, 1 if something is not or kube-proxy's
configuration cannot be read, and 2 for other errors.`,
		Example: `  # Compare nodeproxy's rules with kube-proxy's
  kubectl nodeproxy import-kube-proxy --audit > nodeproxy.yaml
  kubectl apply -f nodeproxy.yaml`,
		Args:              arguments(0, 0, "no argument"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			enforcement := v1alpha1.Enforce
			if audit {
				enforcement = v1alpha1.Audit
			}
			r, err := p.reader()
			if err != nil {
				return err
			}
			result, err := kubeproxy.Import(cmd.Context(), r, enforcement)
			if err != nil {
				return err
			}
			if err := result.Write(cmd.OutOrStdout()); err != nil {
				return err
			}
			if result.Lost == 0 {
				return nil
			}
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s not carried over: see the comments\n", // the terminal may be closed
				text.Count(result.Lost, "setting")+text.For(result.Lost, " is", " are"))
			return errFindings
		},
	}
	cmd.Flags().BoolVar(&audit, "audit", false, "set enforcement Audit, to only compare rules, instead of Enforce")
	return cmd
}
