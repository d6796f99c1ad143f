package leader

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/nodeproxy-io/nodeproxy/controllers/retry"
)

var start = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// answer is a transport that always answers.
type answer struct{}

func (answer) RoundTrip(*http.Request) (*http.Response, error) { return &http.Response{}, nil }

// send reports whether the gate lets a request of that method pass.
func send(t *testing.T, g *Gate, method string) bool {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "https://192.0.2.1/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := g.Guard(answer{}).RoundTrip(request)
	if err != nil && !errors.Is(err, ErrNotLeading) {
		t.Fatal(err)
	}
	if response != nil && response.Body != nil {
		_ = response.Body.Close()
	}
	return err == nil
}

func TestGateFollowsRenewals(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	g := NewGate(clk)
	var notified []bool
	g.Notify(func(leading bool) { notified = append(notified, leading) })
	if _, _, ok := g.TryEnter(t.Context()); ok || send(t, g, http.MethodPut) || !send(t, g, http.MethodGet) {
		t.Error("a gate is open, or closed to reads, before the lease is held")
	}
	waiting := make(chan context.Context)
	go func() {
		term, leave, err := g.Enter(t.Context())
		if err == nil {
			defer leave()
		}
		waiting <- term
		<-term.Done()
		waiting <- nil
	}()
	g.extend(start.Add(5 * time.Second))
	term := <-waiting
	for range 10 { // renewed every 4 s
		clk.Step(4 * time.Second)
		g.extend(clk.Now().Add(5 * time.Second))
	}
	if term.Err() != nil || !send(t, g, http.MethodPatch) {
		t.Error("a lease that is renewed is not held")
	}
	clk.Step(5 * time.Second)
	<-waiting // the term has ended, so what was at work is cancelled
	if _, _, ok := g.TryEnter(t.Context()); ok || send(t, g, http.MethodDelete) {
		t.Error("the gate is open 5 s after the last renewal")
	}
	g.extend(clk.Now().Add(5 * time.Second))
	if _, leave, ok := g.TryEnter(t.Context()); !ok || !send(t, g, http.MethodPost) {
		t.Error("the gate stays closed when the lease is held again")
	} else {
		leave()
	}
	g.lose()
	if want := []bool{true, false, true, false}; len(notified) != len(want) {
		t.Errorf("notified %v, want %v", notified, want)
	}
}

// stalled is a clock whose timers do not fire, as those of a process that has
// just been let run again.
type stalled struct{ *clocktesting.FakeClock }

func (s stalled) Now() time.Time { return s.FakeClock.Now().Add(10 * time.Second) }

func TestGateIsClosedBeforeItsTimerFires(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	g := NewGate(clk)
	g.extend(start.Add(5 * time.Second))
	_, leave, ok := g.TryEnter(t.Context())
	if !ok {
		t.Fatal("closed")
	}
	defer leave()
	g.clock = stalled{clk}
	if send(t, g, http.MethodPut) {
		t.Error("what was at work when the process was stopped still writes")
	}
	if _, _, ok := g.TryEnter(t.Context()); ok {
		t.Error("others may enter")
	}
}

func TestGateStopsInOrder(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	g := NewGate(clk)
	g.extend(start.Add(5 * time.Second))
	term, leave, _ := g.TryEnter(t.Context())
	stopped := make(chan struct{})
	go func() { g.stop(time.Second); close(stopped) }()
	for !clk.HasWaiters() || func() bool {
		_, l, ok := g.TryEnter(t.Context())
		if ok {
			l()
		}
		return ok
	}() {
		if t.Context().Err() != nil {
			t.Fatal("it does not stop")
		}
	}
	if term.Err() != nil || !send(t, g, http.MethodPut) {
		t.Error("what was at work may not finish")
	}
	leave()
	<-stopped
	if send(t, g, http.MethodPut) {
		t.Error("open after it was stopped")
	}
	g.extend(clk.Now().Add(5 * time.Second))
	if _, _, ok := g.TryEnter(t.Context()); ok {
		t.Error("a late renewal opens it again")
	}
}

func TestGateDoesNotWaitForEver(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	g := NewGate(clk)
	g.extend(start.Add(time.Hour))
	term, _, _ := g.TryEnter(t.Context())
	stopped := make(chan struct{})
	go func() { g.stop(time.Second); close(stopped) }()
	for {
		select {
		case <-stopped:
			select {
			case <-term.Done(): // by a goroutine of its own
			case <-time.After(time.Minute):
				t.Error("what does not end is not cancelled")
			}
			return
		default:
			clk.Step(time.Second)
		}
	}
}

func TestEnterEndsWithItsContext(t *testing.T) {
	g := NewGate(clocktesting.NewFakeClock(start))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := g.Enter(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestNoWaiterSpinsAtAGateThatStops: work that arrives while work inside finishes waits for
// its own end, and takes no time from them.
func TestNoWaiterSpinsAtAGateThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(clock.RealClock{})
		g.extend(time.Now().Add(time.Minute))
		_, leave, err := g.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		stopped := make(chan struct{})
		go func() { defer close(stopped); g.stop(time.Second) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		late := make(chan error)
		go func() {
			_, _, err := g.Enter(ctx)
			late <- err
		}()
		synctest.Wait() // never ends while a goroutine spins
		leave()
		<-stopped
		cancel()
		if err := <-late; !errors.Is(err, context.Canceled) {
			t.Errorf("entered: %v", err)
		}
	})
}

// A standby keeps no requests for objects that tenants may create and delete.
func TestDropKeepsNothingOnAStandby(t *testing.T) {
	clk := clocktesting.NewFakeClock(start)
	g := NewGate(clk)
	var reconciled int
	lost := errors.New("the lease is lost")
	r := Drop(g, reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		if reconciled++; reconciled == 1 {
			return reconcile.Result{}, nil
		}
		g.lose()
		<-ctx.Done()
		return reconcile.Result{}, lost
	}))
	try := func(when string, want int, again time.Duration) {
		t.Helper()
		if result, err := r.Reconcile(t.Context(), reconcile.Request{}); err != nil || reconciled != want || result.RequeueAfter != again {
			t.Errorf("%s: reconciled %d times, again in %s (%v), want %d and %s", when, reconciled, result.RequeueAfter, err, want, again)
		}
	}
	try("on a standby", 0, 0)
	g.extend(start.Add(time.Minute))
	try("on the leader", 1, 0)
	try("when the lease is lost", 2, retry.Soon)
	try("on a standby again", 2, 0)
}
