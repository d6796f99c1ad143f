package controllers

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// retrySoon is the pause before another try when somebody else's write came
// first: about the time the watch needs to bring it.
const retrySoon = 25 * time.Millisecond

// Options are what the reconcilers need beside the manager.
type Options struct {
	// Version is the release that NodeProxy reports.
	Version string
	// Clock tells the time; required.
	Clock clock.PassiveClock
	// Registerer takes the metrics; required.
	Registerer prometheus.Registerer
	// Concurrency is how many Services, and how many Nodes, are reconciled at
	// a time. Default: 4.
	Concurrency int
}

// NewScheme returns a scheme with every kind that the reconcilers use.
func NewScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, discoveryv1.AddToScheme, eventsv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("build scheme: %w", err)
		}
	}
	return s, nil
}

// What the program does around the reconcilers: looking for its namespace and
// holding the lease, which leader election reports in old-style events.
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update,namespace=nodeproxy-system
// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch,namespace=nodeproxy-system

// SetupWithManager adds indexes and reconcilers to a manager, whose scheme must
// come from NewScheme and whose cache from CacheOptions.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, o Options) error {
	if o.Concurrency <= 0 {
		o.Concurrency = 4
	}
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	metrics, err := newMetrics(o.Registerer)
	if err != nil {
		return err
	}
	// One pending wake-up is enough: the status is computed afresh each time.
	wake := make(chan event.GenericEvent, 1)
	memory := newServiceMemory(metrics, func() {
		select {
		case wake <- event.GenericEvent{Object: &v1alpha1.NodeProxy{}}:
		default:
		}
	})
	services := &ServiceReconciler{
		client:  mgr.GetClient(),
		live:    mgr.GetAPIReader(),
		events:  &events{client: mgr.GetClient(), clock: o.Clock},
		clock:   o.Clock,
		metrics: metrics,
		memory:  memory,
	}
	nodes := &NodeReconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), clock: o.Clock, metrics: metrics}
	summary := &NodeProxyReconciler{client: mgr.GetClient(), clock: o.Clock, memory: memory, version: o.Version}
	if err := services.setup(mgr, controllerOptions(o.Concurrency)); err != nil {
		return fmt.Errorf("set up the Service reconciler: %w", err)
	}
	if err := nodes.setup(mgr, controllerOptions(o.Concurrency)); err != nil {
		return fmt.Errorf("set up the Node reconciler: %w", err)
	}
	if err := summary.setup(mgr, controllerOptions(1), wake); err != nil {
		return fmt.Errorf("set up the NodeProxy reconciler: %w", err)
	}
	return nil
}

// controllerOptions fills a standby's queues while it waits for the lease, and
// retries for at most 30 s apart, so that the end of an outage is not slept
// through.
func controllerOptions(concurrency int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: concurrency,
		EnableWarmup:            new(true),
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
			5*time.Millisecond, 30*time.Second),
	}
}

// switchedOn tells whether nodeproxy was ever switched on: NodeProxy exists, or
// rendered objects of a time when it did. Otherwise nothing is rendered.
func switchedOn(ctx context.Context, c client.Reader) (bool, error) {
	np, err := nodeProxy(ctx, c)
	if err != nil || np != nil {
		return np != nil, err
	}
	var services v1alpha1.ServiceProxyRulesList
	if err := c.List(ctx, &services, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list ServiceProxyRules: %w", err)
	}
	if len(services.Items) > 0 {
		return true, nil
	}
	var nodes v1alpha1.NodeProxyRulesList
	if err := c.List(ctx, &nodes, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list NodeProxyRules: %w", err)
	}
	return len(nodes.Items) > 0, nil
}

// nodeProxy returns the NodeProxy, nil when there is none.
func nodeProxy(ctx context.Context, c client.Reader) (*v1alpha1.NodeProxy, error) {
	np := &v1alpha1.NodeProxy{}
	found, err := get(ctx, c, client.ObjectKey{Name: v1alpha1.NodeProxyName}, np)
	if err != nil || !found {
		return nil, err
	}
	return np, nil
}

// get reads an object and tells whether it exists.
func get(ctx context.Context, c client.Reader, key client.ObjectKey, into client.Object) (bool, error) {
	if err := c.Get(ctx, key, into); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("get %T %s: %w", into, key, err)
	} else if err != nil {
		return false, nil
	}
	return true, nil
}
