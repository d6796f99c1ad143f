package leader

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

// Leadership decides when this process may write. A standby does everything else, so that it can
// take over at once.
type Leadership interface {
	// Enter waits until this process may write. Term ends when it may no longer; leave must be
	// called afterwards. Enter fails only if ctx ends.
	Enter(ctx context.Context) (term context.Context, leave func(), err error)
	// TryEnter is Enter without waiting; ok: this process may write.
	TryEnter(ctx context.Context) (term context.Context, leave func(), ok bool)
	// Notify calls f at every change.
	Notify(f func(leading bool))
}

// Always is the Leadership of the only controller.
type Always struct{}

// Enter implements Leadership.
func (Always) Enter(ctx context.Context) (context.Context, func(), error) { return ctx, func() {}, nil }

// TryEnter implements Leadership.
func (Always) TryEnter(ctx context.Context) (context.Context, func(), bool) {
	return ctx, func() {}, true
}

// Notify implements Leadership.
func (Always) Notify(f func(bool)) { f(true) }

// Guard returns a reconciler that waits until this process leads. On a standby each worker has one
// item and the queue all others, each once however often it changes, so a takeover only has
// to reconcile what is in the caches.
func Guard(l Leadership, r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		term, leave, err := l.Enter(ctx)
		if err != nil {
			return ctrl.Result{}, err
		}
		defer leave()
		result, err := r.Reconcile(term, req)
		if err != nil && term.Err() != nil && ctx.Err() == nil {
			// The lease was lost meanwhile: retry when this process leads again.
			return ctrl.Result{RequeueAfter: retry.Soon}, nil
		}
		return result, err
	})
}
