package addresses

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

const (
	// rangesAbsentPause is the time between checks for the kind ServiceCIDR, which an upgrade adds.
	rangesAbsentPause = 5 * time.Minute
	// rangesRetryPause is the time between attempts to list or watch them.
	rangesRetryPause = 5 * time.Second
)

// RangeWatcher watches the ServiceCIDRs. The kind is part of Kubernetes since 1.33 and can be
// disabled, so the cache does not wait for it before anything is rendered.
type RangeWatcher struct {
	cached cache.Cache
	live   client.Reader
	clock  clock.Clock
	// Changed receives each version of a ServiceCIDR that was added or removed, and one of all
	// addresses once the ranges are known, if anything waits for that.
	Changed chan event.GenericEvent

	mu      sync.Mutex
	known   bool                 // guarded by mu
	awaited bool                 // requested before they were known; guarded by mu
	ranges  render.ServiceRanges // guarded by mu
}

// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list;watch

// NewRangeWatcher returns a watcher.
func NewRangeWatcher(cached cache.Cache, live client.Reader, clk clock.Clock) *RangeWatcher {
	return &RangeWatcher{cached: cached, live: live, clock: clk, Changed: make(chan event.GenericEvent)}
}

// Request returns the ranges; false: they are not known yet, and Changed reports when they are.
func (r *RangeWatcher) Request() (render.ServiceRanges, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.awaited = r.awaited || !r.known
	return r.ranges, r.known
}

// Start implements manager.Runnable.
func (r *RangeWatcher) Start(ctx context.Context) error {
	logged := ""
	for {
		found, err := r.list(ctx)
		if found {
			if err = r.follow(ctx); err == nil {
				return nil
			}
		}
		pause := rangesAbsentPause
		if err != nil {
			pause = rangesRetryPause
			if text := err.Error(); text != logged && ctx.Err() == nil {
				logged = text
				log.FromContext(ctx).Error(err, "ServiceCIDRs cannot be watched; retrying")
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.clock.After(pause):
		}
	}
}

// list lists the ranges at the API server; false: it lacks the kind, or does not answer. Without the
// kind or the permission there are no ranges to wait for.
func (r *RangeWatcher) list(ctx context.Context) (bool, error) {
	var list networkingv1.ServiceCIDRList
	err := r.live.List(ctx, &list)
	switch {
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		r.take(ctx, nil)
		return false, nil
	case apierrors.IsForbidden(err):
		r.take(ctx, nil)
		return false, fmt.Errorf("list ServiceCIDRs, without which external and load-balancer IPs inside service ranges are programmed; apply the ClusterRole of this release (config/rbac): %w", err)
	case err != nil:
		return false, fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	r.take(ctx, list.Items)
	return true, nil
}

// take stores the ranges, and reports them if anything waits for them.
func (r *RangeWatcher) take(ctx context.Context, list []networkingv1.ServiceCIDR) {
	var cidrs []string
	for i := range list {
		cidrs = append(cidrs, list[i].Spec.CIDRs...)
	}
	ranges := render.NewServiceRanges(cidrs)
	r.mu.Lock()
	awaited := r.awaited
	r.known, r.awaited, r.ranges = true, false, ranges
	r.mu.Unlock()
	if awaited {
		r.announce(ctx, &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"0.0.0.0/0", "::/0"}}})
	}
}

// announce has the Services rendered again that name an address in a range.
func (r *RangeWatcher) announce(ctx context.Context, one *networkingv1.ServiceCIDR) {
	select {
	case r.Changed <- event.GenericEvent{Object: one}:
	case <-ctx.Done():
	}
}

// follow follows changes by the cache until ctx is done.
func (r *RangeWatcher) follow(ctx context.Context) error {
	informer, err := r.cached.GetInformer(ctx, &networkingv1.ServiceCIDR{}) // waits for its first list
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("watch ServiceCIDRs: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { r.update(ctx, o) },
		UpdateFunc: func(before, after any) {
			if !slices.Equal(before.(*networkingv1.ServiceCIDR).Spec.CIDRs, after.(*networkingv1.ServiceCIDR).Spec.CIDRs) {
				r.update(ctx, before, after)
			}
		},
		DeleteFunc: func(o any) {
			if last, unknown := o.(toolscache.DeletedFinalStateUnknown); unknown {
				o = last.Obj
			}
			r.update(ctx, o)
		},
	})
	if err != nil {
		return fmt.Errorf("watch ServiceCIDRs: %w", err)
	}
	<-ctx.Done()
	return nil
}

// update stores the current ranges, and has the Services rendered again that the versions concern.
func (r *RangeWatcher) update(ctx context.Context, versions ...any) {
	var list networkingv1.ServiceCIDRList
	if err := r.cached.List(ctx, &list); err != nil {
		log.FromContext(ctx).Error(err, "ServiceCIDRs could not be listed, so the former ranges still apply")
		return
	}
	r.take(ctx, list.Items)
	for _, version := range versions {
		if one, ok := version.(*networkingv1.ServiceCIDR); ok {
			r.announce(ctx, one)
		}
	}
}
