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
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/userspace"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
	"github.com/nodeproxy-io/nodeproxy/cmd/internal/connect"
	"github.com/nodeproxy-io/nodeproxy/cmd/internal/logging"
)

// version is the release, set when the binary is built.
var version = "v0.1.0-dev"

const usage = `nodeproxy-agent programs this node's kernel with the ServiceProxyRules and the node's
NodeProxyRules, and reports the result in the status of the latter. It must run as
root in the host's network namespace. If it stops, all rules stay in place.

Usage:
  nodeproxy-agent [flags]           run the agent
  nodeproxy-agent cleanup [flags]   remove nodeproxy's rules from this node, including
                                    those of mode IPVS, and exit: Services become
                                    unreachable through it. The kubelet's chains, such as
                                    KUBE-FIREWALL, and unmanaged virtual servers stay
  nodeproxy-agent virtual-servers   print the virtual servers of this node's kernel (of
                                    /proc/net/ip_vs) and their number of connections,
                                    and exit
  nodeproxy-agent ipsets            print the ipsets of mode IPVS of this node's kernel
                                    with their entries, and exit

Flags:
`

// options are the command line.
type options struct {
	command     string // empty: run the agent
	api         connect.Options
	namespace   string
	nodeName    string
	stateDir    string
	sysctls     string
	proxyHealth string
	metrics     string
	healthProbe string
	iptables    string
	exclude     string
	drain       time.Duration
	logging     logging.Options
}

func main() {
	// Most of the agent's memory is long-lived rules, so collecting garbage sooner costs
	// little and saves memory.
	debug.SetGCPercent(20)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	o, err := parse(os.Args[1:], os.Getenv("NODE_NAME"), os.Stderr)
	if err == nil {
		err = run(ctx, o, os.Stderr)
	}
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		o.logging.Exit("nodeproxy-agent", os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options, out io.Writer) error {
	log := o.logging.Logger(out)
	if o.command == "virtual-servers" {
		return printVirtualServers(os.Stdout, "/proc")
	}
	if o.command == "ipsets" {
		return printIPSets(os.Stdout, func(f dataplane.Family) setReader { return ipvs.NewKernel(f, "") })
	}
	variant, err := variantOf(o.iptables)
	if err != nil {
		return err
	}
	host := modes.NewNode(modes.Options{Variant: variant, SysctlDirectory: o.sysctls})
	if o.command == "cleanup" {
		if err := cleanup(ctx, dataplane.NewFanout(host.Planes), o.exclude); err != nil {
			return fmt.Errorf("removing rules: %w", err)
		}
		log.Info("Removed nodeproxy's rules from this node")
		return nil
	}
	if o.nodeName == "" {
		return errors.New("the node's name is missing: pass --node-name, or set NODE_NAME (in a pod: from spec.nodeName)")
	}
	connection, err := connect.New(o.api, clock.RealClock{}, log)
	if err != nil {
		return err
	}
	client, err := apiclient.New(connection.Config())
	if err != nil {
		return err
	}
	here, err := checkpoint.Here("/proc")
	if err != nil {
		log.Info("Cannot detect node restarts; using a checkpoint as after a restart", "err", err.Error())
	}
	flows := conntrack.NewKernel()
	proxy := userspace.NewHost(host.Planes, userspace.Options{Flows: flows})
	a, err := agent.New(agent.Options{
		NodeName: o.nodeName, Namespace: o.namespace, Client: client, Dataplanes: proxy.Dataplanes, IPTables: host.Version,
		Userspace: proxy, Flows: flows, Tracking: conntrack.NewSystem(o.sysctls),
		Probe: ownership.NewProbe(sockets.Kernel{}, log), Spotter: host.Spotter(), Sockets: sockets.Kernel{},
		Serving:            ownership.NewServing(sockets.Kernel{}, log),
		ProxyHealthAddress: o.proxyHealth, MetricsAddress: o.metrics, ProbeAddress: o.healthProbe,
		StateDir: o.stateDir, Identity: here,
		Version: version, Kernel: kernelRelease(),
		Clock: clock.RealClock{}, Log: log,
	})
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	go connection.Run(ctx)
	return runBoth(ctx, a, proxy, o.drain)
}

// runBoth runs the agent, and the userspace proxy until its connections have ended after that, which may take
// as long as drain. If the proxy fails, the agent stops.
func runBoth(ctx context.Context, a *agent.Agent, proxy *userspace.Host, drain time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	serving, stop := context.WithCancel(context.Background())
	defer stop()
	failed := make(chan error, 1)
	go func() {
		failed <- proxy.Run(serving)
		cancel()
	}()
	err := a.Run(ctx)
	draining, end := context.WithTimeout(serving, drain)
	defer end()
	proxy.Drain(draining, clock.RealClock{})
	stop()
	return errors.Join(err, <-failed)
}

// cleanup removes rules, except virtual servers in excluded ranges.
func cleanup(ctx context.Context, node *dataplane.Fanout, exclude string) error {
	var o dataplane.CleanupOptions
	if exclude != "" {
		var err error
		if o.PreservedRanges, err = dataplane.ParsePreserved(strings.Split(exclude, ",")); err != nil {
			return fmt.Errorf("--ipvs-exclude-cidrs %q: %w", exclude, err)
		}
	}
	return node.Cleanup(ctx, o)
}

func parse(args []string, defaultNode string, out io.Writer) (*options, error) {
	o := &options{}
	if len(args) > 0 && slices.Contains([]string{"cleanup", "virtual-servers", "ipsets"}, args[0]) {
		o.command, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("nodeproxy-agent", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		_, _ = fmt.Fprint(out, usage) // the terminal may be closed
		flags.PrintDefaults()
	}
	o.api.AddFlags(flags)
	flags.StringVar(&o.namespace, "namespace", "nodeproxy-system", "`namespace` of this agent's Lease, its heartbeat for the controller; it must exist")
	flags.StringVar(&o.nodeName, "node-name", defaultNode, "`name` of this Node; default: the environment variable NODE_NAME")
	flags.StringVar(&o.stateDir, "state-dir", "/var/lib/nodeproxy", "`directory` on this node for <node>.checkpoint, the rules that an agent uses if it starts while the API server is unreachable; it must survive a reboot")
	flags.StringVar(&o.sysctls, "sysctl-directory", "/proc/sys", "`directory` with a writable net/ of /proc/sys; in a container that is not privileged, /proc/sys itself is read-only")
	flags.StringVar(&o.proxyHealth, "proxy-health-bind-address", "0.0.0.0:10256", "`host:port` of the proxy's /healthz and /livez, for load balancers; 0: none. Opened when no other proxy is active")
	flags.StringVar(&o.metrics, "metrics-bind-address", ownership.ProxyModeAddress, "`host:port` of /metrics and /proxyMode; 0: none. 127.0.0.1 or [::1] means the loopback addresses of both IP families. Opened when no other proxy is active")
	flags.StringVar(&o.healthProbe, "health-probe-bind-address", "127.0.0.1:19256", "`host:port` of the kubelet's probes /livez and /readyz, and of /metrics, also while another proxy is active; 0: none. 127.0.0.1 or [::1] means the loopback addresses of both IP families")
	flags.DurationVar(&o.drain, "userspace-drain", 10*time.Second, "how long connections that the agent itself serves may go on when it stops; their Services get new ones from the kernel meanwhile. Less than the pod's termination grace period")
	flags.StringVar(&o.iptables, "iptables-variant", "auto", "`variant` of iptables to program: auto, nf_tables or legacy. auto: the one that the kubelet or a proxy already uses when the agent starts. For cleanup: the variant to clean up; auto: both")
	flags.StringVar(&o.exclude, "ipvs-exclude-cidrs", "", "for cleanup, which does not read the API: address `ranges`, separated by commas, whose virtual servers stay, as in spec.settings.ipvs.excludeCIDRs of the NodeProxy")
	o.logging.AddFlags(flags, "sync")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, fmt.Errorf("reading the command line: %w", err)
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q: expected flags, after an optional subcommand cleanup, virtual-servers or ipsets (see --help)", flags.Arg(0))
	}
	return o, nil
}

// kernelRelease is the release of the running kernel; empty: unknown.
func kernelRelease() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

// variantOf parses the flag --iptables-variant. Empty: any.
func variantOf(flag string) (iptables.Variant, error) {
	switch v := iptables.Variant(flag); v {
	case "auto":
		return "", nil
	case iptables.VariantNFT, iptables.VariantLegacy:
		return v, nil
	default:
		return "", fmt.Errorf("--iptables-variant %q: unknown; use auto, nf_tables or legacy", flag)
	}
}
