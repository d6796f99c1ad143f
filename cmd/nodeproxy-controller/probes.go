package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// probes answer the kubelet, from before the manager starts: a controller that
// waits for what it needs is alive, and not ready.
type probes struct {
	mu    sync.Mutex // guards ready
	ready func(context.Context) error
}

// newProbes returns probes of a program that is not ready yet.
func newProbes() *probes {
	p := &probes{}
	p.unready(errors.New("the controller has not looked yet whether all that it needs is there"))
	return p
}

// unready has the program be not ready for a reason.
func (p *probes) unready(why error) { p.follow(func(context.Context) error { return why }) }

// follow has the program be ready when f returns nil, which may take a moment.
func (p *probes) follow(f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = f
}

// ServeHTTP answers /healthz while the process runs, and /readyz with why it is
// not ready.
func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	switch r.URL.Path {
	case "/healthz":
	case "/readyz":
		p.mu.Lock()
		ready := p.ready
		p.mu.Unlock()
		if err := ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	default:
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write([]byte("ok")) // who asked has gone: nobody to tell
}

// serve answers at an address until stop is called; 0: nowhere.
func (p *probes) serve(ctx context.Context, address string, logger logr.Logger) (stop func(), err error) {
	if address == "0" || address == "" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("open --health-probe-bind-address: %w", err)
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 20 * time.Second, WriteTimeout: 20 * time.Second, IdleTimeout: 90 * time.Second}
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error(err, "The probes at --health-probe-bind-address are not answered any more; the kubelet will start the controller again")
		}
	}()
	return func() { _ = server.Close() }, nil // it serves no more, whatever this says
}
