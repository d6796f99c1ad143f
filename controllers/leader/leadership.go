package leader

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

// Leadership says when this process may write. Everything else goes on without
// it: a standby follows all that happens, so that it can take over at once.
type Leadership interface {
	// Enter waits until this process may write. The context it returns ends when
	// that does; leave must be called afterwards. It fails only if ctx ends.
	Enter(ctx context.Context) (term context.Context, leave func(), err error)
	// TryEnter is Enter without waiting; ok tells whether this process may write.
	TryEnter(ctx context.Context) (term context.Context, leave func(), ok bool)
	// Notify has f called at every change.
	Notify(f func(leading bool))
}

// Always is the Leadership of a controller that is alone.
type Always struct{}

// Enter implements Leadership.
func (Always) Enter(ctx context.Context) (context.Context, func(), error) { return ctx, func() {}, nil }

// TryEnter implements Leadership.
func (Always) TryEnter(ctx context.Context) (context.Context, func(), bool) {
	return ctx, func() {}, true
}

// Notify implements Leadership.
func (Always) Notify(f func(bool)) { f(true) }

// Guard returns a reconciler whose work waits until this process leads. The
// workers of a standby hold an item each and the queue all others, each once
// however often it changes, so a takeover begins with nothing but looking at
// what the caches hold.
func Guard(l Leadership, r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		term, leave, err := l.Enter(ctx)
		if err != nil {
			return ctrl.Result{}, err
		}
		defer leave()
		result, err := r.Reconcile(term, req)
		if err != nil && term.Err() != nil && ctx.Err() == nil {
			// The lease was lost in the middle: again, when it is held again.
			return ctrl.Result{RequeueAfter: retry.Soon}, nil
		}
		return result, err
	})
}
