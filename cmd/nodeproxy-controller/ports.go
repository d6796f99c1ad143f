package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nodeproxy-io/nodeproxy/agent/httpport"
)

const (
	// maxConnections is how many connections each port has.
	maxConnections = 256
	// maxScrapes is how many answers of /metrics are made at a time.
	maxScrapes = 4
)

// port is an address at which the program answers.
type port struct {
	flag, address string
	handler       http.Handler
	// failed is what it means that it answers no more, for the log.
	failed string
}

// serve answers until stop is called. At the address 0 or none nothing is served.
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
	return func() { _ = server.Close() }, nil // it serves no more, whatever this says
}

// metricsHandler answers /metrics. It takes the place of controller-runtime's
// server, which has no limit of connections and none of the time of an answer.
func metricsHandler(from prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(from, promhttp.HandlerOpts{
		ErrorHandling: promhttp.HTTPErrorOnError, MaxRequestsInFlight: maxScrapes,
	}))
	return mux
}
