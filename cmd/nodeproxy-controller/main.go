package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodeproxy-io/nodeproxy/cmd/internal/connect"
	"github.com/nodeproxy-io/nodeproxy/cmd/internal/logging"
	"github.com/nodeproxy-io/nodeproxy/controllers"
	"github.com/nodeproxy-io/nodeproxy/controllers/agentdeploy"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

// leaseName is the name of the leader's Lease.
const leaseName = "nodeproxy-controller"

// version is set by the linker; otherwise it is the module's version.
var version string

func main() {
	if len(os.Args) > 1 && os.Args[1] == "render" {
		logger := setLogger(&logging.Options{}) // the output is the result; of the log only errors matter
		os.Exit(runRender(ctrl.SetupSignalHandler(), os.Args[2:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}, logger))
	}
	// Most of the controller's memory is caches, so collecting garbage sooner costs little and saves
	// memory.
	debug.SetGCPercent(50)
	o, err := parseOptions(os.Args[1:], os.Stderr)
	status := 2
	if err == nil {
		status = 1
		err = run(ctrl.SetupSignalHandler(), o, setLogger(&o.logging))
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		o.logging.Exit("nodeproxy-controller", os.Stderr, err)
		os.Exit(status)
	}
}

func setLogger(o *logging.Options) logr.Logger {
	logger := o.Logger(os.Stderr)
	ctrl.SetLogger(logger)
	return logger
}

func run(ctx context.Context, o options, logger logr.Logger) error {
	connection, err := connect.New(o.api, clock.RealClock{}, logger)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go connection.Run(ctx)
	cfg := connection.Config()
	cfg.QPS = -1 // the API server's own priority and fairness is the limit
	probes := newProbes()
	closeProbes, err := port{
		flag: "health-probe-bind-address", address: o.healthProbeBindAddress, handler: probes,
		failed: "The probes are no longer served; the kubelet will restart the controller",
	}.serve(ctx, logger)
	if err != nil {
		return err
	}
	defer closeProbes()
	logger.Info("Starting", "version", ownVersion(), "namespace", o.namespace, "leaderElect", o.leaderElect)
	scheme, err := objects.NewScheme()
	if err != nil {
		return err
	}
	needs, err := newRequirements(cfg, scheme, o.namespace)
	if err != nil {
		return err
	}
	if !await(ctx, needs.check, probes.unready, clock.RealClock{}, logger) {
		return nil // ctx is done
	}
	closeMetrics, err := port{
		flag: "metrics-bind-address", address: o.metricsBindAddress, handler: metricsHandler(ctrlmetrics.Registry),
		failed: "The metrics are no longer served; everything else continues. Restart the controller to restore them",
	}.serve(ctx, logger)
	if err != nil {
		return err
	}
	defer closeMetrics()
	options := controllers.Options{
		Version: ownVersion(), Clock: clock.RealClock{}, Namespace: o.namespace, Agents: o.agents, APIServers: connection.Given(),
		Registerer: ctrlmetrics.Registry, ManageClusterObjects: o.manageClusterObjects,
	}
	options.Agents.Image = os.Getenv("RELATED_IMAGE_AGENT")
	return manage(ctx, stop, cfg, scheme, probes, o.leaderElect, options, logger)
}

// manage runs the controller, leading or standing by, until ctx is done; stop ends ctx.
func manage(ctx context.Context, stop func(), cfg *rest.Config, scheme *runtime.Scheme, probes *probes, elect bool, o controllers.Options, logger logr.Logger) error {
	// The manager continues until pending writes have ended and the lease is released.
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var elected func(context.Context) error
	if elect {
		gate := leader.NewGate(clock.RealClock{})
		election, err := leader.NewElection(cfg, o.Namespace, leaseName, gate, logger)
		if err != nil {
			return err
		}
		o.Leadership, elected = gate, election.Run
		cfg = rest.CopyConfig(cfg)
		cfg.Wrap(gate.Guard) // denies writes while another controller may lead
	}
	mgr, err := newManager(work, cfg, scheme, o.Namespace)
	if err != nil {
		return err
	}
	if err := controllers.SetupWithManager(ctx, mgr, o); err != nil {
		return err
	}
	probes.follow(func(ctx context.Context) error { return synced(ctx, mgr) })
	ended := make(chan error, 1)
	go func() {
		defer end()
		defer close(ended)
		if elected != nil {
			ended <- elected(ctx)
		} else {
			<-ctx.Done()
		}
	}()
	err = mgr.Start(work)
	asked := ctx.Err() != nil
	stop()
	return outcome(err, <-ended, asked, logger)
}

// outcome is the result of the program. An election that ends without a request to stop is a
// failure: the program must be restarted. After a request, an error only means that the lease is
// not released.
func outcome(managerErr, electionErr error, asked bool, logger logr.Logger) error {
	if electionErr != nil && (managerErr != nil || asked) {
		logger.Error(electionErr, "The election ended with an error")
		electionErr = nil
	}
	if err := cmp.Or(managerErr, electionErr); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

// newManager returns the manager to be started with the context work.
func newManager(work context.Context, cfg *rest.Config, scheme *runtime.Scheme, namespace string) (ctrl.Manager, error) {
	cacheOptions, err := controllers.CacheOptions(namespace)
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                 scheme,
		Cache:                  cacheOptions,
		NewCache:               controllers.NewCache(work),
		Metrics:                metricsserver.Options{BindAddress: "0"}, // see ports.go
		HealthProbeBindAddress: "0",
		// The caches wait for an API server that does not answer.
		Controller: config.Controller{CacheSyncTimeout: 24 * time.Hour},
	})
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	return mgr, nil
}

// synced returns nil once the caches are synced, on a standby too.
func synced(ctx context.Context, mgr ctrl.Manager) error {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return errors.New("the caches of the controller are not synced yet; if that persists, its log names what it cannot read")
	}
	return nil
}

func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

type options struct {
	api                    connect.Options
	namespace              string
	leaderElect            bool
	metricsBindAddress     string
	healthProbeBindAddress string
	agents                 agentdeploy.Options
	manageClusterObjects   bool
	logging                logging.Options
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
	fs.BoolVar(&o.agents.ExposeMetrics, "expose-agent-metrics", false, "serve the /metrics of managed agents on every address of their node, port 19256, not only on loopback")
	fs.BoolVar(&o.agents.ShareProxyPorts, "share-proxy-ports", false, "do not reserve ports 10249 and 10256 for managed agents. Use it during a migration from a kube-proxy whose pods reserve them; otherwise the agents cannot be scheduled beside it")
	fs.BoolVar(&o.manageClusterObjects, "manage-cluster-objects", false, "maintain the ValidatingAdmissionPolicies of nodeproxy and the pod security labels of --namespace, for installers such as OLM that cannot install them. It needs permissions that the plain manifests do not grant")
	o.logging.AddFlags(fs, "write")
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
