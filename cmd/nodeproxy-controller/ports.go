package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodeproxy-io/nodeproxy/agent/httpport"
)

const (
	// maxConnections limits the connections of each port.
	maxConnections = 256
	// maxScrapes limits concurrent requests of /metrics.
	maxScrapes = 4
)

// port is an address that the program serves.
type port struct {
	flag, address string
	handler       http.Handler
	// failed is the log message when it is no longer served.
	failed string
}

// serve serves until stop is called. Address 0 or empty disables it.
func (p port) serve(ctx context.Context, logger logr.Logger) (stop func(), err error) {
	if p.address == "0" || p.address == "" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.address)
	if err != nil {
		return nil, fmt.Errorf("open --%s: %w", p.flag, err)
	}
	server := httpport.NewServer(httpport.NewLimit(maxConnections), p.handler)
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			logger.Error(err, p.failed, "flag", "--"+p.flag, "address", p.address)
		}
	}()
	return func() { _ = server.Close() }, nil // it stops serving in any case
}

// metricsHandler serves /metrics, instead of controller-runtime's server, which limits neither
// connections nor the time of a response.
func metricsHandler(from prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{
		ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: maxScrapes,
	}))
	return mux
}

// probes serve the kubelet from before the manager starts: a controller that waits for its
// requirements is alive, but not ready.
type probes struct {
	ready atomic.Pointer[func(context.Context) error]
}

func newProbes() *probes {
	p := &probes{}
	p.unready(errors.New("the controller has not checked its requirements yet"))
	return p
}

func (p *probes) unready(why error) { p.follow(func(context.Context) error { return why }) }

// follow makes the program ready while f returns nil, which may take a moment.
func (p *probes) follow(f func(context.Context) error) { p.ready.Store(&f) }

// ServeHTTP serves /healthz while the process runs, and /readyz with the reason if it is not ready.
func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	switch r.URL.Path {
	case "/healthz":
	case "/readyz":
		if err := (*p.ready.Load())(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	default:
		http.NotFound(w, r)
		return
	}
	_, _ = w.Write([]byte("ok")) // the client may be gone
}
