package agent

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
)

// server answers at any path and returns its address.
func server(t *testing.T, handler http.HandlerFunc) netip.AddrPort {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return addressOf(s.Listener)
}

func addressOf(l net.Listener) netip.AddrPort { return netip.MustParseAddrPort(l.Addr().String()) }

// owned are sockets that the test makes up. The last entry stays.
type owned struct {
	mu        sync.Mutex
	listeners []*sockets.Listener // as one look after the other finds them
	elsewhere bool                // the server's end of connections
	err       error
}

// root has every port be root's, whoever runs the tests.
func root() *owned { return &owned{listeners: []*sockets.Listener{{Cookie: 1}}} }

func (o *owned) Listening(netip.AddrPort) (*sockets.Listener, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.listeners[0]
	if len(o.listeners) > 1 {
		o.listeners = o.listeners[1:]
	}
	return l, o.err
}

func (o *owned) Here(_, _ netip.AddrPort) (bool, error) { return !o.elsewhere, nil }

func (o *owned) Holder(at netip.AddrPort) (*sockets.Listener, error) { return o.Listening(at) }

// asRoots asks ports that are root's.
func asRoots(endpoints ...endpoint) ProbeFunc { return probe(root(), logr.Discard(), endpoints...) }

// TestWhoseAnswersCount: only root's, of this network namespace.
func TestWhoseAnswersCount(t *testing.T) {
	ofRoot, another, ofUser := &sockets.Listener{Cookie: 1}, &sockets.Listener{Cookie: 2}, &sockets.Listener{UID: 1000, Cookie: 3}
	list := func(l ...*sockets.Listener) *owned { return &owned{listeners: l} }
	for _, tt := range []struct {
		name   string
		owned  *owned
		slow   bool // it accepts connections and never answers
		asked  bool
		sign   bool
		silent bool   // the ProbeFunc returns an error
		log    string // empty: nothing is logged
	}{
		{name: "root", owned: list(ofRoot), asked: true, sign: true},
		{name: "root, silent", owned: list(ofRoot), slow: true, asked: true, silent: true},
		{name: "nobody, but a rule leads elsewhere", owned: list(nil)},
		{name: "a user", owned: list(ofUser), log: `"uid"=1000`},
		{name: "a user, silent", owned: list(ofUser), slow: true, log: `"uid"=1000`},
		{name: "it cannot be told", owned: &owned{listeners: []*sockets.Listener{nil}, err: errors.New("no tcp_diag")}, log: "no tcp_diag"},
		{name: "a user has come meanwhile", owned: list(ofRoot, ofUser), asked: true, log: `"uid"=1000`},
		{name: "a user has come meanwhile, silent", owned: list(ofRoot, ofUser), slow: true, asked: true, log: `"uid"=1000`},
		{name: "root has gone meanwhile", owned: list(ofRoot, nil), asked: true},
		{name: "another one of root has come meanwhile", owned: list(ofRoot, another), asked: true, silent: true},
		{name: "a rule leads elsewhere", owned: &owned{listeners: []*sockets.Listener{ofRoot}, elsewhere: true}, silent: true, log: "hostPort"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := &agenttest.Log{}
			asked := make(chan struct{}, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			at := server(t, func(w http.ResponseWriter, r *http.Request) {
				asked <- struct{}{}
				if tt.slow {
					cancel() // the probe's time is up
					<-r.Context().Done()
					return
				}
				_, _ = w.Write([]byte("iptables"))
			})
			p := &prober{sockets: tt.owned, log: funcr.New(log.Add, funcr.Options{}), said: map[netip.AddrPort]string{}}
			f := p.look(ctx, modeAt(at), "me")
			for range 3 { // it is logged once
				p.note(t.Context(), at, f)
			}
			if (f.sign != "") != tt.sign || (f.silent != nil) != tt.silent || (len(asked) > 0) != tt.asked {
				t.Errorf("sign %q, silent: %v, asked: %v", f.sign, f.silent, len(asked) > 0)
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
		name string
		at   func(netip.AddrPort) endpoint
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
			sign, err := asRoots(tt.at(address))(t.Context(), "me")
			if err != nil || (sign == "") != (tt.sign == "") || !strings.Contains(sign, tt.sign) || len(sign) > 200 {
				t.Errorf("sign %q, error %v; want %q in it", sign, err, tt.sign)
			}
		})
	}
}

func TestProbeTellsAgentsApart(t *testing.T) {
	a, _, _ := newAgent(t, func(context.Context, string) (string, error) { return "", nil })
	ask := ProbeProxyMode(server(t, a.servers.metrics.Handler.ServeHTTP), root(), logr.Discard())
	if sign, err := ask(t.Context(), a.instance); sign != "" || err != nil {
		t.Errorf("its own port: %q, %v", sign, err)
	}
	if sign, _ := ask(t.Context(), "another"); !strings.Contains(sign, `answers "iptables", by another nodeproxy-agent`) {
		t.Errorf("the port of another agent: %q", sign)
	}
	address := server(t, a.servers.health.Handler.ServeHTTP)
	if sign, err := asRoots(healthAt(address))(t.Context(), a.instance); sign != "" || err != nil {
		t.Errorf("its own health port: %q, %v", sign, err)
	}
	if sign, _ := asRoots(healthAt(address))(t.Context(), "another"); sign == "" {
		t.Error("the health port of another agent tells nothing")
	}
}

func TestProbeOfNobody(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	e := modeAt(addressOf(gone.Listener))
	if sign, err := probe(&owned{listeners: []*sockets.Listener{{}, nil}}, logr.Discard(), e)(t.Context(), "me"); sign != "" || err != nil {
		t.Errorf("it has gone: %q, %v", sign, err)
	}
	// A rule refuses connections for what listens there.
	if sign, err := asRoots(e)(t.Context(), "me"); sign != "" || err == nil {
		t.Errorf("it has not been asked: %q, %v", sign, err)
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
	return addressOf(listener)
}

func TestProbeWithoutAnswerTellsNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if sign, err := asRoots(modeAt(silent(t)))(ctx, "me"); err == nil || sign != "" {
		t.Errorf("got %q, %v, want an error", sign, err)
	}
}

func TestProbeAsksFurtherWhereOneIsSilent(t *testing.T) {
	answers := server(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ipvs")) })
	ask := asRoots(modeAt(silent(t)), modeAt(answers))
	if sign, err := ask(t.Context(), "me"); err != nil || !strings.Contains(sign, `"ipvs"`) {
		t.Errorf("got %q, %v", sign, err)
	}
}

// TestSilentPortsAreWaitedForOnce: a repair waits for the answers.
func TestSilentPortsAreWaitedForOnce(t *testing.T) {
	ask := asRoots(modeAt(silent(t)), modeAt(silent(t)), healthAt(silent(t)), healthAt(silent(t)))
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
	if sign, err := asRoots(modeAt(late), modeAt(soon))(t.Context(), "me"); err != nil || !strings.Contains(sign, `"first"`) {
		t.Errorf("got %q, %v", sign, err)
	}
}
