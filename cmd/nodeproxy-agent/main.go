// Command nodeproxy-agent programs one node's kernel from the rules that the
// controller renders, and reports what the kernel really holds.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// version is the release, set when the binary is built.
var version = "v0.1.0-dev"

const usage = `nodeproxy-agent programs this node's kernel from the ServiceProxyRules and the
node's NodeProxyRules, and reports in the status of the latter. It must run as
root, in the node's network namespace. Stopping it leaves all rules in place.

Usage:
  nodeproxy-agent [flags]           run the agent
  nodeproxy-agent cleanup [flags]   remove nodeproxy's rules from this node and exit:
                                    Services stop answering on it

Flags:
`

// options are the command line.
type options struct {
	cleanup      bool
	kubeconfig   string
	apiServers   servers
	namespace    string
	nodeName     string
	stateDir     string
	proxyHealth  string
	metrics      string
	healthProbe  string
	logVerbosity int
}

// servers is a flag that can be repeated.
type servers []string

// String implements flag.Value.
func (s *servers) String() string { return strings.Join(*s, ",") }

// Set implements flag.Value.
func (s *servers) Set(value string) error {
	*s = append(*s, value)
	return nil
}

func main() {
	// Most of the agent's memory is rules that stay; collecting sooner costs
	// little and keeps it small.
	debug.SetGCPercent(50)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := run(ctx, os.Args[1:], os.Getenv("NODE_NAME"), os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "nodeproxy-agent:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, defaultNode string, out io.Writer) error {
	o, err := parse(args, defaultNode, out)
	if err != nil {
		return err
	}
	log := textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(o.logVerbosity), textlogger.Output(out)))
	klog.SetLogger(log) // client-go's messages go the same way
	planes, iptablesVersion := dataplanes()
	if o.cleanup {
		if err := dataplane.NewFanout(planes).Cleanup(ctx); err != nil {
			return fmt.Errorf("removing rules: %w", err)
		}
		log.Info("Removed nodeproxy's rules from this node")
		return nil
	}
	if o.nodeName == "" {
		return errors.New("the node's name is missing: pass --node-name, or set NODE_NAME (in a pod: from spec.nodeName)")
	}
	config, err := clientConfig(o, log)
	if err != nil {
		return err
	}
	client, err := agent.NewClient(config, o.apiServers)
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Options{
		NodeName: o.nodeName, Client: client, Dataplanes: planes, IPTables: iptablesVersion,
		Probe:              agent.ProbeProxyMode(agent.ProxyModeAddress),
		ProxyHealthAddress: o.proxyHealth, MetricsAddress: o.metrics, ProbeAddress: o.healthProbe,
		Version: version, Kernel: kernelRelease(),
		Clock: clock.RealClock{}, Log: log,
	})
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	return a.Run(ctx)
}

func parse(args []string, defaultNode string, out io.Writer) (*options, error) {
	o := &options{}
	if len(args) > 0 && args[0] == "cleanup" {
		o.cleanup, args = true, args[1:]
	}
	flags := flag.NewFlagSet("nodeproxy-agent", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		_, _ = fmt.Fprint(out, usage) // to a terminal that is gone: nothing to do
		flags.PrintDefaults()
	}
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials; without it, those of the pod are used")
	flags.Var(&o.apiServers, "api-server", "`URL` of an API server, such as https://192.0.2.10:6443, instead of the one in the kubeconfig; repeat it for several, which are tried in turn. TLS is checked for the name in the kubeconfig, unless tls-server-name is set there. Never the kubernetes Service's address, which nodeproxy itself programs")
	flags.StringVar(&o.namespace, "namespace", "nodeproxy-system", "`namespace` of the agents' leases; not used yet, because no leases are written yet")
	flags.StringVar(&o.nodeName, "node-name", defaultNode, "`name` of this Node; default: the environment variable NODE_NAME")
	flags.StringVar(&o.stateDir, "state-dir", "/var/lib/nodeproxy", "`folder` on this node for the agent's own state; not used yet, because none is kept yet")
	flags.StringVar(&o.proxyHealth, "proxy-health-bind-address", "0.0.0.0:10256", "`host:port` of the proxy's /healthz and /livez, for load balancers; 0: none. Opened once no other proxy is active")
	flags.StringVar(&o.metrics, "metrics-bind-address", agent.ProxyModeAddress, "`host:port` of /metrics and /proxyMode; 0: none. Opened once no other proxy is active")
	flags.StringVar(&o.healthProbe, "health-probe-bind-address", "127.0.0.1:19256", "`host:port` of the kubelet's probes /livez and /readyz; 0: none")
	flags.IntVar(&o.logVerbosity, "v", 0, "log `level`: 0 for what an operator wants to see, 2 for every sync, 4 for details")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, fmt.Errorf("reading the command line: %w", err)
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unknown argument %q: only the subcommand cleanup, given first, and flags are known (see --help)", flags.Arg(0))
	}
	return o, nil
}

// clientConfig says how to reach the API server.
func clientConfig(o *options, log logr.Logger) (*rest.Config, error) {
	if o.kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("reading --kubeconfig %s: %w", o.kubeconfig, err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("there is no --kubeconfig, and this is not a pod of a cluster: pass --kubeconfig: %w", err)
	}
	if len(o.apiServers) == 0 {
		log.Info("Reaching the API server by the kubernetes Service, which this agent itself programs; pass --api-server with its real addresses", "server", config.Host)
	}
	return config, nil
}

// kernelRelease is the release of the running kernel; empty if it does not
// tell.
func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}
