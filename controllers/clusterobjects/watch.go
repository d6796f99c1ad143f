package clusterobjects

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/controllers/admission"
	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
	"github.com/nodeproxy-io/nodeproxy/controllers/watches"
)

const (
	// followPause is the time between attempts to find out how policies are served.
	followPause = 5 * time.Second
	// failureAge is how long a failure is reported: attempts are at most a minute apart.
	failureAge = 2 * time.Minute
)

// noPolicies is why there are no policies on an old API server.
const noPolicies = "the API server does not serve ValidatingAdmissionPolicy of admissionregistration.k8s.io/v1 (Kubernetes 1.30 or later), so its limits are not enforced. The controller creates the policies once it does"

// policyWatch watches our policies and their bindings. Nothing else waits for it: if they cannot be
// read, all other work continues and an event reports it.
type policyWatch struct {
	cache   cache.Cache // of these two kinds alone, which nothing else needs
	clock   clock.PassiveClock
	changed func()

	mu       sync.Mutex
	synced   bool
	failures map[string]time.Time // when each was last seen
}

// newPolicyWatch adds the watch to a manager. It calls changed when policies or failures have
// changed.
func newPolicyWatch(mgr ctrl.Manager, clk clock.PassiveClock, changed func()) (*policyWatch, error) {
	w := &policyWatch{clock: clk, changed: changed, failures: map[string]time.Time{}}
	policies, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(),
		DefaultLabelSelector:         labels.SelectorFromSet(labels.Set{admission.LabelPartOf: admission.PartOf}),
		DefaultTransform:             cache.TransformStripManagedFields(),
		DefaultUnsafeDisableDeepCopy: new(true),
		DefaultWatchErrorHandler:     w.failed,
		NewInformer:                  watches.NewInformer(clock.RealClock{}),
	})
	if err != nil {
		return nil, fmt.Errorf("build the cache of admission policies: %w", err)
	}
	w.cache = policies
	if err := mgr.Add(policies); err != nil {
		return nil, fmt.Errorf("add the cache of admission policies: %w", err)
	}
	return w, mgr.Add(w)
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*policyWatch) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (w *policyWatch) Start(ctx context.Context) error {
	var synced []toolscache.InformerSynced
	for _, kind := range []client.Object{&admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}} {
		informer := w.follow(ctx, kind)
		if informer == nil {
			return nil // stopped
		}
		synced = append(synced, informer.HasSynced)
	}
	if toolscache.WaitForCacheSync(ctx.Done(), synced...) {
		w.mu.Lock()
		w.synced, w.failures = true, map[string]time.Time{}
		w.mu.Unlock()
		w.changed()
	}
	return nil
}

// follow tries to watch a kind until it can or ctx ends. Failures of discovery may be temporary.
func (w *policyWatch) follow(ctx context.Context, kind client.Object) (informer cache.Informer) {
	changed := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { w.changed() }, UpdateFunc: func(any, any) { w.changed() }, DeleteFunc: func(any) { w.changed() },
	}
	_ = wait.PollUntilContextCancel(ctx, followPause, true, func(ctx context.Context) (bool, error) { // fails only when ctx ends
		found, err := w.cache.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err == nil {
			_, err = found.AddEventHandler(changed)
		}
		switch {
		case ctx.Err() != nil:
			return false, nil
		case meta.IsNoMatchError(err):
			w.fail(noPolicies)
			return false, nil
		case err != nil:
			w.fail(fmt.Sprintf("the API server does not report how it serves admission policies, so none is created or restored; retrying every %s: %s", followPause, text.Clause(err.Error())))
			return false, nil
		}
		informer = found
		return true, nil
	})
	return informer
}

// failed is called by reflectors when a list or a watch has failed.
func (w *policyWatch) failed(ctx context.Context, r *toolscache.Reflector, err error) {
	toolscache.DefaultWatchErrorHandler(ctx, r, err)
	if apierrors.IsForbidden(err) {
		w.fail("the controller is not allowed to watch the admission policies, so they are created and restored late or not at all; retrying at least every minute: " +
			text.Clause(retry.Message(err)) + ". The permissions to list and watch are in the ClusterRole nodeproxy-controller-olm, which OLM creates from the clusterPermissions of the ClusterServiceVersion")
	}
}

// fail records a failure, and reports a new one.
func (w *policyWatch) fail(what string) {
	w.mu.Lock()
	_, known := w.failures[what]
	w.failures[what] = w.clock.Now()
	w.mu.Unlock()
	if !known {
		w.changed()
	}
}

// state returns whether all policies are in the cache, and the failures.
func (w *policyWatch) state() (synced bool, failures []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.failures, func(_ string, at time.Time) bool { return w.clock.Since(at) > failureAge })
	return w.synced, slices.Sorted(maps.Keys(w.failures))
}
