package agent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
)

// Limits of package health.
const (
	pendingLimit = time.Minute
	stuckLimit   = 5 * time.Minute
)

// livez returns the answers that the kubelet and load balancers get.
func livez(a *Agent) (kubelet, proxy int) {
	get := func(h http.Handler) int {
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/livez", nil))
		return recorder.Code
	}
	return get(health.KubeletHandler(a.loop.Overdue, a.unready, http.NotFoundHandler())), get(health.ProxyHandler(a.proxyState, func(string, int) {}))
}

func expectLivez(t *testing.T, a *Agent, when string, kubelet, proxy int) {
	t.Helper()
	if k, p := livez(a); k != kubelet || p != proxy {
		t.Errorf("%s: /livez for the kubelet %d, of the proxy %d, want %d and %d", when, k, p, kubelet, proxy)
	}
}

// tardy is a data plane whose Apply ends when the test decides.
type tardy struct {
	dataplane.Dataplane
	step, end chan struct{}
}

func (d *tardy) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	for {
		select {
		case <-d.step:
			dataplane.Progress(ctx)
		case <-d.end:
			return d.Dataplane.Apply(ctx, r)
		}
	}
}

func TestLivezOfTheKubelet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, r, kernel, _ := owningAgent(t)
		ctx, stop := context.WithCancel(t.Context())
		defer func() { stop(); synctest.Wait() }()
		go a.loop.Run(ctx)
		a.loop.Trigger()
		time.Sleep(time.Hour)
		expectLivez(t, a, "idle", 200, 200)

		kernel.Fail(errors.New("another process holds the lock"))
		r.SetService(r.Service("b", 2))
		a.changed()
		time.Sleep(pendingLimit - time.Second)
		expectLivez(t, a, "failing for less than a minute", 200, 200)
		time.Sleep(time.Hour)
		expectLivez(t, a, "failing for an hour", 200, 503)
		kernel.Fail(nil)
		time.Sleep(time.Minute)
		expectLivez(t, a, "repaired", 200, 200)
	})
}

func TestLivezOfASlowAndAStuckWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, kernel, _ := owningAgent(t)
		slow := &tardy{Dataplane: kernel, step: make(chan struct{}), end: make(chan struct{})}
		a.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: slow})
		ctx, stop := context.WithCancel(t.Context())
		defer func() { stop(); synctest.Wait() }()
		go a.loop.Run(ctx)
		a.loop.Trigger()
		for range 5 {
			time.Sleep(stuckLimit - time.Second)
			expectLivez(t, a, "slow", 200, 503)
			slow.step <- struct{}{}
			synctest.Wait()
		}
		time.Sleep(stuckLimit)
		expectLivez(t, a, "without a step", 503, 503)
		slow.end <- struct{}{}
		synctest.Wait()
		expectLivez(t, a, "after it", 200, 200)
	})
}

func TestLivezWithoutALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, r, _, _ := owningAgent(t)
		r.SetService(r.Service("b", 2))
		a.changed()
		time.Sleep(stuckLimit)
		expectLivez(t, a, "nothing takes up the change", 503, 503)
	})
}

// TestProbesDoNotWait holds the store as a large change does.
func TestProbesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, r, _, _ := owningAgent(t)
		a.becomeReady()
		r.SetService(r.Service("b", 2)) // nothing runs that would write it
		expectLivez(t, a, "a change waits", 200, 200)
		busy, release, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		a.unusable.log = funcr.New(func(string, string) { close(busy); <-release }, funcr.Options{})
		go func() { // which logs that the name is odd, while it has the lock
			defer close(done)
			odd := r.Service("odd", 3)
			odd.Name = "odd"
			a.store.SetService(odd)
		}()
		<-busy
		defer func() { close(release); <-done }()
		expectLivez(t, a, "the store is busy", 200, 200)
		time.Sleep(pendingLimit)
		if got := a.proxyState().Now; !got.Equal(a.options.Clock.Now()) {
			t.Errorf("the state is one of %s", got)
		}
		if proxy := health.ServesTraffic(a.proxyState()); proxy {
			t.Error("a change that has waited for a minute while the store was busy is not noticed")
		}
	})
}
