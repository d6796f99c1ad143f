package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"strings"
)

// options are the command line.
type options struct {
	kubeconfig             string
	apiServers             urls
	namespace              string
	leaderElect            bool
	metricsBindAddress     string
	healthProbeBindAddress string
	verbosity              int
}

// urls is a repeatable flag.
type urls []string

// String implements flag.Value.
func (u *urls) String() string { return strings.Join(*u, ",") }

// Set implements flag.Value.
func (u *urls) Set(s string) error {
	parsed, err := url.Parse(s)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" || parsed.Path != "" && parsed.Path != "/" {
		return errors.New("must be a URL such as https://192.0.2.10:6443")
	}
	*u = append(*u, s)
	return nil
}

// parseOptions reads the command line. It has a flag set of its own because
// libraries add theirs to the global one.
func parseOptions(args []string, output io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("nodeproxy-controller", flag.ContinueOnError)
	fs.SetOutput(output)
	fs.Usage = func() {
		_, _ = fmt.Fprint(output, "nodeproxy-controller renders Services into rules objects for the node agents.\n\n"+
			"It needs the CRDs (kubectl apply -f config/crd/bases) and the namespace, and renders nothing\n"+
			"before the NodeProxy named cluster exists.\n\nFlags:\n")
		fs.PrintDefaults()
	}
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` that says how to reach the API server; without it, the pod's service account is used")
	fs.Var(&o.apiServers, "api-server", "`URL` of an API server, such as https://192.0.2.10:6443, instead of the one in the kubeconfig; repeat it for several, which are tried in turn. TLS is checked for the name in the kubeconfig, unless tls-server-name is set there. Never the kubernetes Service's address, which nodeproxy itself programs")
	fs.StringVar(&o.namespace, "namespace", "nodeproxy-system", "`namespace` of the leases; it must exist")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "work only while holding a lease, so that several replicas can stand by")
	fs.StringVar(&o.metricsBindAddress, "metrics-bind-address", ":8080", "`address` of /metrics; 0 for none")
	fs.StringVar(&o.healthProbeBindAddress, "health-probe-bind-address", ":8081", "`address` of /healthz and /readyz; 0 for none")
	fs.IntVar(&o.verbosity, "v", 0, "log `level`: 0 what an operator wants to see, 2 every write, 4 details")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: there are only flags, see --help", fs.Arg(0))
	}
	if o.namespace == "" {
		return o, errors.New("--namespace must not be empty")
	}
	return o, nil
}
