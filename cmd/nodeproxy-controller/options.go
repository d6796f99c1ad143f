package main

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/nodeproxy-io/nodeproxy/cmd/internal/connect"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
)

type options struct {
	api                    connect.Options
	namespace              string
	leaderElect            bool
	metricsBindAddress     string
	healthProbeBindAddress string
	agents                 agentdeploy.Options
	manageClusterObjects   bool
	verbosity              int
}

// parseOptions parses the command line. It has a flag set of its own because libraries add theirs
// to the global one.
func parseOptions(args []string, output io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("nodeproxy-controller", flag.ContinueOnError)
	fs.SetOutput(output)
	fs.Usage = func() {
		_, _ = fmt.Fprint(output, "nodeproxy-controller renders Services into rules objects for the node agents.\n\n"+
			"It waits for the CRDs (kubectl apply -f config/crd/bases), the namespace, and the NodeProxy named\n"+
			"cluster.\n\n"+
			"Usage:\n"+
			"  nodeproxy-controller [flags]          run the controller\n"+
			"  nodeproxy-controller render [flags]   print the rules objects rendered from a cluster or files,\n"+
			"                                        or how they would change, and exit\n\n"+
			"Flags:\n")
		fs.PrintDefaults()
	}
	o.api.AddFlags(fs)
	fs.StringVar(&o.namespace, "namespace", "nodeproxy-system", "`namespace` of the leases; it must exist")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "only work as the leader, so that other replicas can stand by")
	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", ":8080", "`address` of /metrics; 0 for none")
	fs.StringVar(&o.healthProbeBindAddress, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz; 0 for none")
	fs.BoolVar(&o.agents.ExposeMetrics, "expose-agent-metrics", false, "have the agents that this controller runs serve /metrics on every address of their node, port 19256, not only on its loopback addresses")
	fs.BoolVar(&o.agents.ShareProxyPorts, "share-proxy-ports", false, "have the pods of the agents that this controller runs not reserve ports 10249 and 10256 of their node. Use it during a migration from a kube-proxy whose pods reserve them: otherwise the agents cannot be scheduled beside it")
	fs.BoolVar(&o.manageClusterObjects, "manage-cluster-objects", false, "maintain the ValidatingAdmissionPolicies of nodeproxy and the pod security labels of --namespace, for installers such as OLM that cannot install them. It needs permissions that the plain manifests do not grant")
	fs.IntVar(&o.verbosity, "v", 0, "log `level`: 0 for operators, 2 every write, 4 details")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: expected flags, after an optional subcommand render (see --help)", fs.Arg(0))
	}
	if o.namespace == "" {
		return o, errors.New("--namespace must not be empty")
	}
	return o, nil
}
