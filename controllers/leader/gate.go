package leader

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

// Leadership decides when this process may write. A standby keeps its caches filled, so that it can
// take over at once.
type Leadership interface {
	// Enter waits until this process may write. Term ends when it no longer may, or with ctx; leave
	// must be called when the work is done. Enter fails only if ctx ends.
	Enter(ctx context.Context) (term context.Context, leave func(), err error)
	// TryEnter is Enter without waiting. Unless this process may write, ok is false and leave nil.
	TryEnter(ctx context.Context) (term context.Context, leave func(), ok bool)
	// Notify sets what is called at every change with whether this process may write now.
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
		return within(ctx, term, r, req)
	})
}

// Drop is Guard for a reconciler of objects that tenants create and delete, whose names would fill a
// standby's queue: it drops requests there. A new term must reconcile everything.
func Drop(l Leadership, r reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
		term, leave, leads := l.TryEnter(ctx)
		if !leads {
			return ctrl.Result{}, nil
		}
		defer leave()
		return within(ctx, term, r, req)
	})
}

// within reconciles in a term.
func within(ctx, term context.Context, r reconcile.Reconciler, req ctrl.Request) (ctrl.Result, error) {
	result, err := r.Reconcile(term, req)
	if err != nil && term.Err() != nil && ctx.Err() == nil {
		// The lease was lost meanwhile: retry when this process leads again.
		return ctrl.Result{RequeueAfter: retry.Soon}, nil
	}
	return result, err
}

// ErrNotLeading is the error of a write while another controller may lead.
var ErrNotLeading = errors.New("this controller is not the leader, so it must not write")

// Gate lets work pass while this process holds the lease. It depends on the time of the last
// renewal, not on a notification of the loss: a process that was stopped for a while first finds
// the gate closed.
type Gate struct {
	clock clock.WithDelayedExecution

	mu       sync.Mutex // guards everything below
	until    time.Time
	term     context.Context // nil while not leading
	end      context.CancelFunc
	timer    clock.Timer
	opened   chan struct{} // closed while leading
	stopping bool
	inside   sync.WaitGroup // the work
	notify   func(leading bool)
}

// NewGate returns a gate that is closed.
func NewGate(clk clock.WithDelayedExecution) *Gate {
	return &Gate{clock: clk, opened: make(chan struct{}), notify: func(bool) {}}
}

// Notify implements Leadership. It must be called before the election begins, and f must not use the
// gate.
func (g *Gate) Notify(f func(leading bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.notify = f
}

// Enter implements Leadership.
func (g *Gate) Enter(ctx context.Context) (term context.Context, leave func(), err error) {
	for {
		term, leave, opened := g.enter(ctx)
		if leave != nil {
			return term, leave, nil
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("wait for the lease: %w", ctx.Err())
		case <-opened:
		}
	}
}

// TryEnter implements Leadership.
func (g *Gate) TryEnter(ctx context.Context) (term context.Context, leave func(), ok bool) {
	term, leave, _ = g.enter(ctx)
	return term, leave, leave != nil
}

func (g *Gate) enter(ctx context.Context) (term context.Context, leave func(), opened <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping {
		return nil, nil, nil // it never opens again, and may still be open for work inside
	}
	if !g.current() {
		return nil, nil, g.opened
	}
	g.inside.Add(1)
	term, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(g.term, cancel)
	return term, sync.OnceFunc(func() {
		unhook()
		cancel()
		g.inside.Done()
	}), nil
}

// Guard returns a transport that sends no write while this process does not lead. Work that has
// entered the gate may still run when it closes.
func (g *Gate) Guard(next http.RoundTripper) http.RoundTripper {
	return &guard{gate: g, next: next}
}

type guard struct {
	gate *Gate
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *guard) RoundTrip(request *http.Request) (*http.Response, error) {
	switch request.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		if !t.gate.leads() {
			return nil, ErrNotLeading
		}
	}
	return t.next.RoundTrip(request)
}

// leads reports whether work inside may still write; if not, the gate closes.
func (g *Gate) leads() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.current()
}

// current is leads for callers that hold mu.
func (g *Gate) current() bool {
	if g.term != nil && !g.clock.Now().Before(g.until) {
		g.close()
	}
	return g.term != nil
}

// extend opens the gate, or leaves it open, until then.
func (g *Gate) extend(until time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := until.Sub(g.clock.Now())
	if g.stopping || left <= 0 {
		return
	}
	g.until = until
	if g.term != nil {
		g.timer.Reset(left)
		return
	}
	g.term, g.end = context.WithCancel(context.Background())
	g.timer = g.clock.AfterFunc(left, func() { go g.leads() })
	close(g.opened)
	g.notify(true)
}

// lose closes the gate and ends the work inside.
func (g *Gate) lose() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.close()
}

// close closes the gate. The caller holds mu.
func (g *Gate) close() {
	if g.term == nil {
		return
	}
	g.timer.Stop()
	g.end()
	g.term, g.end = nil, nil
	g.opened = make(chan struct{})
	g.notify(false)
}

// stop lets no more work enter, lets work inside finish within grace, and closes the gate for good.
func (g *Gate) stop(grace time.Duration) {
	g.mu.Lock()
	g.stopping = true // no more work is added
	g.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		g.inside.Wait()
	}()
	timer := g.clock.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C():
	}
	g.lose()
}
