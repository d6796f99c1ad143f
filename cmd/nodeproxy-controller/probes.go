package main

import (
	"context"
	"errors"
	"net/http"
	"sync"
)

// probes serve the kubelet from before the manager starts: a controller that waits for its
// requirements is alive, but not ready.
type probes struct {
	mu    sync.Mutex // guards ready
	ready func(context.Context) error
}

// newProbes returns the probes of a program that is not ready yet.
func newProbes() *probes {
	p := &probes{}
	p.unready(errors.New("the controller has not checked its requirements yet"))
	return p
}

// unready makes the program not ready for a reason.
func (p *probes) unready(why error) { p.follow(func(context.Context) error { return why }) }

// follow makes the program ready while f returns nil, which may take a moment.
func (p *probes) follow(f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = f
}

// ServeHTTP serves /healthz while the process runs, and /readyz with the reason if it is not ready.
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
	_, _ = w.Write([]byte("ok")) // the client may be gone
}
