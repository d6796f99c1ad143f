package ownership

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
)

// asRoots asks ports that are root's.
func asRoots(endpoints ...endpoint) ProbeFunc {
	return probe(agenttest.RootsSockets(), logr.Discard(), endpoints...)
}

// TestWhoseAnswersCount: only root's, of this network namespace.
func TestWhoseAnswersCount(t *testing.T) {
	ofRoot, another, ofUser := &sockets.Listener{Cookie: 1}, &sockets.Listener{Cookie: 2}, &sockets.Listener{UID: 1000, Cookie: 3}
	list := func(l ...*sockets.Listener) *agenttest.Sockets { return &agenttest.Sockets{Listeners: l} }
	for _, tt := range []struct {
		name     string
		Sockets  *agenttest.Sockets
		slow     bool // it accepts connections and never answers
		asked    bool
		evidence bool
		silent   bool   // the ProbeFunc returns an error
		log      string // empty: nothing is logged
	}{
		{name: "root", Sockets: list(ofRoot), asked: true, evidence: true},
		{name: "root, silent", Sockets: list(ofRoot), slow: true, asked: true, silent: true},
		{name: "no listener, but a rule leads elsewhere", Sockets: list(nil)},
		{name: "a user", Sockets: list(ofUser), log: `"uid"=1000`},
		{name: "a user, silent", Sockets: list(ofUser), slow: true, log: `"uid"=1000`},
		{name: "it is unknown", Sockets: &agenttest.Sockets{Listeners: []*sockets.Listener{nil}, Err: errors.New("no tcp_diag")}, log: "no tcp_diag"},
		{name: "a user has come meanwhile", Sockets: list(ofRoot, ofUser), asked: true, log: `"uid"=1000`},
		{name: "a user has come meanwhile, silent", Sockets: list(ofRoot, ofUser), slow: true, asked: true, log: `"uid"=1000`},
		{name: "root has gone meanwhile", Sockets: list(ofRoot, nil), asked: true},
		{name: "another one of root has come meanwhile", Sockets: list(ofRoot, another), asked: true, silent: true},
		{name: "a rule leads elsewhere", Sockets: &agenttest.Sockets{Listeners: []*sockets.Listener{ofRoot}, Elsewhere: true}, silent: true, log: "redirect connections"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := &agenttest.Log{}
			asked := make(chan struct{}, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			at := agenttest.Serve(t, func(w http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				if tt.slow {
					cancel() // the probe's time is up
					<-r.Context().Done()
					return
				}
				_, _ = w.Write([]byte("iptables"))
			})
			p := &prober{sockets: tt.Sockets, log: funcr.New(log.Add, funcr.Options{}), logged: map[netip.AddrPort]string{}}
			f := p.probe(ctx, modeAt(at), "me")
			for range 3 { // it is logged once
				p.note(t.Context(), at, f)
			}
			if (f.evidence != "") != tt.evidence || (f.silent != nil) != tt.silent || (len(asked) > 0) != tt.asked {
				t.Errorf("evidence %q, silent: %v, asked: %v", f.evidence, f.silent, len(asked) > 0)
			}
			switch lines := log.With(""); {
			case tt.log == "" && len(lines) > 0:
				t.Errorf("log %q", lines)
			case tt.log != "" && (len(lines) != 1 || !strings.Contains(lines[0], tt.log) || !strings.Contains(lines[0], at.String())):
				t.Errorf("log %q, want one line with %q", lines, tt.log)
			}
		})
	}
}

func TestProbeReadsAnswers(t *testing.T) {
	const health = `{"lastUpdated": "2026-11-20T09:00:00Z","currentTime": "2026-11-20T09:00:00Z"}`
	for _, tt := range []struct {
		name     string
		at       func(netip.AddrPort) endpoint
		code     int
		body     string
		evidence string // empty: no proxy
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
			address := agenttest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(tt.code)
				_, _ = w.Write([]byte(tt.body))
			})
			evidence, err := asRoots(tt.at(address))(t.Context(), "me")
			if err != nil || (evidence == "") != (tt.evidence == "") || !strings.Contains(evidence, tt.evidence) || len(evidence) > 200 {
				t.Errorf("evidence %q, error %v; want %q in it", evidence, err, tt.evidence)
			}
		})
	}
}

func TestProbeWithoutListener(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	e := modeAt(agenttest.AddressOf(gone.Listener))
	if evidence, err := probe(&agenttest.Sockets{Listeners: []*sockets.Listener{{}, nil}}, logr.Discard(), e)(t.Context(), "me"); evidence != "" || err != nil {
		t.Errorf("it has gone: %q, %v", evidence, err)
	}
	// A rule rejects connections although a server listens there.
	if evidence, err := asRoots(e)(t.Context(), "me"); evidence != "" || err == nil {
		t.Errorf("it has not been asked: %q, %v", evidence, err)
	}
}

// silent is the address of a port that accepts connections and never answers.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts for it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // nothing was written
	return agenttest.AddressOf(listener)
}

func TestProbeWithoutAnswerShowsNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if evidence, err := asRoots(modeAt(silent(t)))(ctx, "me"); err == nil || evidence != "" {
		t.Errorf("got %q, %v, want an error", evidence, err)
	}
}

func TestProbeAsksFurtherWhereOneIsSilent(t *testing.T) {
	answers := agenttest.Serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ipvs")) })
	ask := asRoots(modeAt(silent(t)), modeAt(answers))
	if evidence, err := ask(t.Context(), "me"); err != nil || !strings.Contains(evidence, `"ipvs"`) {
		t.Errorf("got %q, %v", evidence, err)
	}
}

// TestSilentPortsAreWaitedForOnce: a repair waits for the answers.
func TestSilentPortsAreWaitedForOnce(t *testing.T) {
	ask := asRoots(modeAt(silent(t)), modeAt(silent(t)), healthAt(silent(t)), healthAt(silent(t)))
	start := time.Now()
	if evidence, err := ask(t.Context(), "me"); err == nil || evidence != "" {
		t.Errorf("got %q, %v, want an error", evidence, err)
	}
	if took := time.Since(start); took < probeTimeout || took >= 2*probeTimeout {
		t.Errorf("it took %s, want one time-out of %s", took, probeTimeout)
	}
}

func TestFirstPortDecides(t *testing.T) {
	answered := make(chan struct{})
	late := agenttest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		<-answered
		_, _ = w.Write([]byte("first"))
	})
	soon := agenttest.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("second"))
		_ = http.NewResponseController(w).Flush()
		close(answered)
	})
	if evidence, err := asRoots(modeAt(late), modeAt(soon))(t.Context(), "me"); err != nil || !strings.Contains(evidence, `"first"`) {
		t.Errorf("got %q, %v", evidence, err)
	}
}
