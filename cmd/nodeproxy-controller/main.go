// Command nodeproxy-controller renders Services into ServiceProxyRules and
// NodeProxyRules for the node agents, and reports the state of the cluster in
// NodeProxy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers"
)

// Leader election: a standby takes over 13 s after a leader was killed at the
// latest, 2 s after one was stopped.
const (
	leaseName     = "nodeproxy-controller"
	leaseDuration = 8 * time.Second
	renewDeadline = 5 * time.Second
	retryPeriod   = time.Second
)

// version is set by the linker; without it the module's version counts.
var version string

func main() {
	o, err := parseOptions(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "nodeproxy-controller: %v\n", err)
		os.Exit(2)
	}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(o.verbosity)))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	if err := run(ctrl.SetupSignalHandler(), o, logger); err != nil {
		fmt.Fprintf(os.Stderr, "nodeproxy-controller: %v\n", err)
		os.Exit(1)
	}
}

// run works until the context ends or the lease is lost.
func run(ctx context.Context, o options, logger logr.Logger) error {
	cfg, err := connect(ctx, o, logger)
	if err != nil {
		return err
	}
	mgr, err := newManager(cfg, o)
	if err != nil {
		return err
	}
	if err := preflight(ctx, mgr, o); err != nil {
		return err
	}
	err = controllers.SetupWithManager(ctx, mgr, controllers.Options{
		Version:    ownVersion(),
		Clock:      clock.RealClock{},
		Registerer: ctrlmetrics.Registry,
	})
	if err != nil {
		return err
	}
	if err := addProbes(mgr); err != nil {
		return err
	}
	logger.Info("Starting", "version", ownVersion(), "apiServer", cfg.Host, "namespace", o.namespace, "leaderElect", o.leaderElect)
	if err := mgr.Start(ctx); err != nil {
		if o.leaderElect && err.Error() == "leader election lost" {
			return fmt.Errorf("lost the lease %s/%s: it could not be renewed for %s, so another replica may lead; "+
				"exiting to be started again as a standby", o.namespace, leaseName, renewDeadline)
		}
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

func newManager(cfg *rest.Config, o options) (ctrl.Manager, error) {
	scheme, err := controllers.NewScheme()
	if err != nil {
		return nil, err
	}
	cacheOptions, err := controllers.CacheOptions()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:                        scheme,
		Cache:                         cacheOptions,
		Metrics:                       metricsserver.Options{BindAddress: o.metricsBindAddress},
		HealthProbeBindAddress:        o.healthProbeBindAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              leaseName,
		LeaderElectionNamespace:       o.namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 new(leaseDuration),
		RenewDeadline:                 new(renewDeadline),
		RetryPeriod:                   new(retryPeriod),
	})
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	return mgr, nil
}

// preflight checks what must be there, and says how to get it.
func preflight(ctx context.Context, mgr ctrl.Manager, o options) error {
	for _, kind := range []string{"NodeProxy", "NodeProxyRules", "ServiceProxyRules"} {
		_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: kind}, v1alpha1.GroupVersion.Version)
		if meta.IsNoMatchError(err) {
			return fmt.Errorf("the API server does not know the kind %s (%s): install the CRDs with `kubectl apply -f config/crd/bases`",
				kind, v1alpha1.GroupVersion)
		}
		if err != nil {
			return fmt.Errorf("ask the API server for the kind %s: %w", kind, err)
		}
	}
	err := mgr.GetAPIReader().Get(ctx, client.ObjectKey{Name: o.namespace}, &corev1.Namespace{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("the namespace %s does not exist, leases live there: create it with `kubectl create namespace %s`, or name another with --namespace",
			o.namespace, o.namespace)
	}
	if err != nil {
		return fmt.Errorf("look for the namespace %s: %w", o.namespace, err)
	}
	return nil
}

// addProbes answers /healthz while the process runs and /readyz once the caches
// are synced, on a standby too.
func addProbes(mgr ctrl.Manager) error {
	if err := mgr.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("add health check: %w", err)
	}
	synced := func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), 200*time.Millisecond)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("caches are not synced yet")
		}
		return nil
	}
	if err := mgr.AddReadyzCheck("caches", synced); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
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
