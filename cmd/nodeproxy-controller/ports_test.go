package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
)

// reservedAddress is one that nothing listens at.
func reservedAddress(t *testing.T) (address string, listener net.Listener) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener.Addr().String(), listener
}

func TestPortsAnswer(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "probe_size_bytes", Help: "Of the test."}))
	for _, c := range []struct {
		handler     http.Handler
		path, wants string
	}{
		{newProbes(), "/healthz", "ok"},
		{metricsHandler(registry), "/metrics", "probe_size_bytes 0"},
	} {
		address, taken := reservedAddress(t)
		p := port{flag: "some-bind-address", address: address, handler: c.handler}
		if _, err := p.serve(t.Context(), logr.Discard()); err == nil || !strings.Contains(err.Error(), "--some-bind-address") {
			t.Errorf("an address that is taken: %v", err)
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		stop, err := p.serve(t.Context(), logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.Get("http://" + address + c.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close() // only read from
		if err != nil || !strings.Contains(string(body), c.wants) {
			t.Errorf("%s: %q, %v", c.path, body, err)
		}
		stop()
		if _, err := http.Get("http://" + address + c.path); err == nil {
			t.Errorf("%s answers after the end", c.path)
		}
	}
	for _, none := range []string{"", "0"} {
		stop, err := port{address: none}.serve(t.Context(), logr.Discard())
		if err != nil {
			t.Errorf("%q: %v", none, err)
		}
		stop()
	}
}
