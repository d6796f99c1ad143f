package agent

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// server answers at any path and returns its address.
func server(t *testing.T, handler http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestProbeReadsAnswers(t *testing.T) {
	const health = `{"lastUpdated": "2026-11-20T09:00:00Z","currentTime": "2026-11-20T09:00:00Z"}`
	for _, tt := range []struct {
		name string
		at   func(string) endpoint
		code int
		body string
		sign string // empty: no proxy
	}{
		{"a mode", modeAt, 200, "iptables\n", `/proxyMode answers "iptables"`},
		{"no mode", modeAt, 200, "", `/proxyMode answers "unknown"`},
		{"a very long mode", modeAt, 200, strings.Repeat("x", 100_000), `xxx..."`},
		{"something else at the port of the mode", modeAt, 404, "not found", ""},
		{"it sends elsewhere", modeAt, 302, "iptables", ""},
		{"health", healthAt, 200, health, "/healthz answers as a proxy does"},
		{"bad health is a proxy's, too", healthAt, 503, health, "/healthz answers as a proxy does"},
		{"another program's health", healthAt, 200, "ok", ""},
		{"another program's JSON", healthAt, 200, `{"status":"ok"}`, ""},
		{"JSON of another form", healthAt, 200, `[1]`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			address := server(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.code)
				_, _ = w.Write([]byte(tt.body))
			})
			sign, err := probe(tt.at(address))(t.Context(), "me")
			if err != nil || (sign == "") != (tt.sign == "") || !strings.Contains(sign, tt.sign) || len(sign) > 200 {
				t.Errorf("sign %q, error %v; want %q in it", sign, err, tt.sign)
			}
		})
	}
}

func TestProbeTellsAgentsApart(t *testing.T) {
	a, _, _ := newAgent(t, func(context.Context, string) (string, error) { return "", nil })
	served := a.server("metrics", "unused", "--metrics-bind-address").Handler
	ask := ProbeProxyMode(server(t, served.ServeHTTP))
	if sign, err := ask(t.Context(), a.instance); sign != "" || err != nil {
		t.Errorf("its own port: %q, %v", sign, err)
	}
	if sign, _ := ask(t.Context(), "another"); !strings.Contains(sign, `answers "iptables", by another nodeproxy-agent`) {
		t.Errorf("the port of another agent: %q", sign)
	}
	served = a.server("health", "unused", "--proxy-health-bind-address").Handler
	address := server(t, served.ServeHTTP)
	if sign, err := probe(healthAt(address))(t.Context(), a.instance); sign != "" || err != nil {
		t.Errorf("its own health port: %q, %v", sign, err)
	}
	if sign, _ := probe(healthAt(address))(t.Context(), "another"); sign == "" {
		t.Error("the health port of another agent tells nothing")
	}
}

func TestProbeOfNobody(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	if sign, err := ProbeProxyMode(strings.TrimPrefix(gone.URL, "http://"))(t.Context(), "me"); sign != "" || err != nil {
		t.Errorf("got %q, %v", sign, err)
	}
}

// silent is the address of a port that accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts for it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // nothing was written
	return listener.Addr().String()
}

func TestProbeWithoutAnswerTellsNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if sign, err := ProbeProxyMode(silent(t))(ctx, "me"); err == nil || sign != "" {
		t.Errorf("got %q, %v, want an error", sign, err)
	}
}

func TestProbeAsksFurtherWhereOneIsSilent(t *testing.T) {
	answers := server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ipvs")) })
	ask := probe(modeAt(silent(t)), modeAt(answers))
	if sign, err := ask(t.Context(), "me"); err != nil || !strings.Contains(sign, `"ipvs"`) {
		t.Errorf("got %q, %v", sign, err)
	}
}

// TestSilentPortsAreWaitedForOnce: a repair waits for the answers.
func TestSilentPortsAreWaitedForOnce(t *testing.T) {
	ask := probe(modeAt(silent(t)), modeAt(silent(t)), healthAt(silent(t)), healthAt(silent(t)))
	start := time.Now()
	if sign, err := ask(t.Context(), "me"); err == nil || sign != "" {
		t.Errorf("got %q, %v, want an error", sign, err)
	}
	if took := time.Since(start); took < probeTimeout || took >= 2*probeTimeout {
		t.Errorf("it took %s, want one time-out of %s", took, probeTimeout)
	}
}

func TestTheFirstPortTells(t *testing.T) {
	answered := make(chan struct{})
	late := server(t, func(w http.ResponseWriter, _ *http.Request) {
		<-answered
		_, _ = w.Write([]byte("first"))
	})
	soon := server(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("second"))
		_ = http.NewResponseController(w).Flush()
		close(answered)
	})
	if sign, err := probe(modeAt(late), modeAt(soon))(t.Context(), "me"); err != nil || !strings.Contains(sign, `"first"`) {
		t.Errorf("got %q, %v", sign, err)
	}
}
