package command

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/tracer"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/doctor"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

func newDoctor(p *program) *cobra.Command {
	var severity failOn
	cmd := reporting(&cobra.Command{
		Use:   "doctor [NAMESPACE/SERVICE]",
		Short: "Find out why Services are unreachable, and the remedy",
		Long: `Run the checks an expert would run, for all Services or for one: the controller and the
nodes, the cluster's DNS, whether Services are rendered and have ready endpoints, traffic
policies that leave nodes without endpoints, pods that use their own Service, connection
tracking, policies, and what clients outside the cluster can reach. With -n and no Service,
only the Services of that namespace are checked.

The finding that explains most comes first, with its consequences. The exit code is 0
without findings, 1 for findings or skipped checks, and 2 for errors.`,
		Example: `  # What is wrong with the cluster?
  kubectl nodeproxy doctor

  # What is wrong with the Services of a namespace?
  kubectl nodeproxy doctor -n shop

  # Why is this Service unreachable?
  kubectl nodeproxy doctor shop/web

  # Machine-readable
  kubectl nodeproxy doctor -o json`,
		Args:              arguments(0, 1, "NAMESPACE/SERVICE, or a SERVICE in the namespace of -n, or no argument for all Services"),
		ValidArgsFunction: p.complete(cluster.ServiceProxyRules, 1),
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		report, err := p.examine(cmd, args)
		if err != nil {
			return nil, false, err
		}
		return report, severity.fails(!report.OK, report.Findings), nil
	})
	severity.addTo(cmd)
	return cmd
}

func newExposure(p *program) *cobra.Command {
	return reporting(&cobra.Command{
		Use:   "exposure [NAMESPACE/SERVICE]",
		Short: "List what clients outside the cluster can reach",
		Long: `List how clients outside the cluster reach Services: node ports, external IPs, addresses of
load balancers and health check node ports, with the clients that they admit and the
policies that apply. With -n and no Service, only those of that namespace are listed.
doctor reports what cannot be intended.`,
		Example: `  # What can clients outside the cluster reach?
  kubectl nodeproxy exposure

  # Of one namespace
  kubectl nodeproxy exposure -n shop`,
		Args:              arguments(0, 1, "NAMESPACE/SERVICE, or a SERVICE in the namespace of -n, or no argument for all Services"),
		ValidArgsFunction: p.complete(cluster.ServiceProxyRules, 1),
	}, func(cmd *cobra.Command, args []string) (output.Report, bool, error) {
		report, err := p.examine(cmd, args)
		if err != nil {
			return nil, false, err
		}
		return doctor.ExposureOf(report), false, nil
	})
}

// examine examines the Service of the argument, or all, or those of the namespace of -n.
func (p *program) examine(cmd *cobra.Command, args []string) (*doctor.Report, error) {
	question := doctor.Question{Trace: func(set *combine.Set, packet tracer.Packet) (*tracer.Result, error) {
		return tracer.New(set).Trace(cmd.Context(), packet)
	}}
	if len(args) > 0 {
		name, err := p.serviceName(args[0])
		if err != nil {
			return nil, err
		}
		question.Service = (*types.NamespacedName)(&name)
	} else if cmd.Flags().Changed("namespace") {
		question.Namespace = *p.kube.Namespace
	}
	r, err := p.reader()
	if err != nil {
		return nil, err
	}
	read := func() (*cluster.Objects, error) {
		return p.read(cmd, r, []cluster.Kind{cluster.NodeProxies, cluster.NodeProxyRules, cluster.ServiceProxyRules}, []cluster.Kind{
			cluster.NodeProxyPolicies, cluster.ServiceProxyPolicies,
			cluster.Namespaces, cluster.Services, cluster.EndpointSlices, cluster.Pods,
		})
	}
	question.Again = func(after time.Duration) (*cluster.Objects, error) {
		select {
		case <-cmd.Context().Done():
			return nil, fmt.Errorf("interrupted: %w", cmd.Context().Err())
		case <-p.After(after):
			return read()
		}
	}
	objects, err := read()
	if err != nil {
		return nil, err
	}
	report, err := doctor.Examine(objects, question)
	if err != nil {
		return nil, err
	}
	if err := cmd.Context().Err(); err != nil {
		return nil, fmt.Errorf("interrupted: %w", err)
	}
	return report, nil
}

// failOn is the value of the flag --fail-on.
type failOn string

func (f *failOn) addTo(cmd *cobra.Command) {
	*f = "warning"
	cmd.Flags().Var(f, "fail-on", "exit with 1 for every warning, or only for an error (a problem)")
	completeFlag(cmd, "fail-on", cobra.FixedCompletions([]cobra.Completion{"warning", "error"}, cobra.ShellCompDirectiveNoFileComp))
}

func (f *failOn) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *failOn) Type() string { return "severity" }

// Set implements pflag.Value.
func (f *failOn) Set(value string) error {
	if value != "warning" && value != "error" {
		return errors.New("use warning or error")
	}
	*f = failOn(value)
	return nil
}

// fails decides the exit code. anything: the report is not perfect.
func (f *failOn) fails(anything bool, found []findings.Finding) bool {
	if *f == "warning" {
		return anything
	}
	problems, _ := findings.Tally(found)
	return problems > 0
}
