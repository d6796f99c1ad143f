package simulated

import (
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/nodeproxy-io/nodeproxy/controllers"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
)

// line is what is between a controller and the API server. It counts what is written,
// can delay the events of a watch, and can be cut, as when a process is killed.
type line struct {
	cut atomic.Bool
	// lag is how late the rules of nodes come.
	lag time.Duration

	mu     sync.Mutex
	writes map[string]int // by method and resource
}

var errCut = errors.New("the process was killed")

// roundTripper is a function as an http.RoundTripper.
type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// over sends by the next one what is not cut.
func (l *line) over(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) { return l.send(next, r) })
}

func (l *line) send(next http.RoundTripper, r *http.Request) (*http.Response, error) {
	if l.cut.Load() {
		return nil, errCut
	}
	if r.Method != http.MethodGet {
		l.mu.Lock()
		l.writes[r.Method+" "+resource(r.URL.Path)]++
		l.mu.Unlock()
	}
	response, err := next.RoundTrip(r)
	if err == nil && l.lag > 0 && r.URL.Query().Get("watch") != "" && resource(r.URL.Path) == "nodeproxyrules" {
		response.Body = newLate(response.Body, l.lag)
	}
	return response, err
}

// resource is what a path is about, such as nodeproxyrules/status.
func resource(path string) string {
	words := strings.Split(strings.Trim(path, "/"), "/") // apis, group, version, ...
	if len(words) > 3 && words[3] == "namespaces" && len(words) > 5 {
		words = append(words[:3:3], words[5:]...)
	}
	switch {
	case len(words) > 5:
		return words[3] + "/" + words[5]
	case len(words) > 3:
		return words[3]
	default:
		return path
	}
}

// count sums the writes to resources with a prefix.
func (l *line) count(prefix string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for what, times := range l.writes {
		if _, name, _ := strings.Cut(what, " "); strings.HasPrefix(name, prefix) {
			n += times
		}
	}
	return n
}

// late brings everything later, and nothing slower.
type late struct {
	body   io.ReadCloser
	lag    time.Duration
	chunks chan chunk
	rest   []byte
	err    error
}

type chunk struct {
	data []byte
	err  error
	due  time.Time
}

func newLate(body io.ReadCloser, lag time.Duration) *late {
	const enough = 10_000 // chunks on their way
	l := &late{body: body, lag: lag, chunks: make(chan chunk, enough)}
	go func() {
		defer close(l.chunks)
		for {
			data := make([]byte, 64<<10)
			n, err := body.Read(data)
			l.chunks <- chunk{data[:n], err, time.Now().Add(lag)}
			if err != nil {
				return
			}
		}
	}()
	return l
}

// Read implements io.Reader.
func (l *late) Read(into []byte) (int, error) {
	for len(l.rest) == 0 {
		if l.err != nil {
			return 0, l.err
		}
		next, more := <-l.chunks
		if !more {
			return 0, io.EOF
		}
		if next.err == nil {
			<-time.After(time.Until(next.due))
		}
		l.rest, l.err = next.data, next.err
	}
	n := copy(into, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (l *late) Close() error { return l.body.Close() }

// running is a controller at work.
type running struct {
	t    *testing.T
	line *line
	end  context.CancelFunc
	done chan error
	once sync.Once
}

// startController starts a controller, whose watch over rules of nodes is late.
func startController(t *testing.T, p *plane, lag time.Duration) *running {
	t.Helper()
	r := &running{t: t, line: &line{writes: map[string]int{}, lag: lag}, done: make(chan error, 1)}
	who := rest.CopyConfig(p.controller)
	who.Wrap(r.line.over)
	scheme, err := objects.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	cacheOptions, err := controllers.CacheOptions(namespace)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.end = cancel
	mgr, err := ctrl.NewManager(who, ctrl.Options{
		Scheme: scheme, Cache: cacheOptions, NewCache: controllers.NewCache(ctx), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}, // several in one process
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	if err := controllers.SetupWithManager(ctx, mgr, controllers.Options{
		Version: "v0.1.0", Clock: clock.RealClock{}, Namespace: namespace, Registerer: prometheus.NewRegistry(),
	}); err != nil {
		cancel()
		t.Fatal(err)
	}
	go func() { r.done <- mgr.Start(ctx) }()
	t.Cleanup(r.stop)
	return r
}

// stop ends the controller as a signal does.
func (r *running) stop() {
	r.once.Do(func() {
		r.end()
		timer := time.NewTimer(20 * time.Second) // the manager itself gives up after 30 s
		defer timer.Stop()
		select {
		case err := <-r.done:
			if err != nil && !r.line.cut.Load() {
				r.t.Errorf("the controller: %v", err)
			}
		case <-timer.C:
			stacks := make([]byte, 1<<20)
			r.t.Errorf("the controller does not stop:\n%s", stacks[:runtime.Stack(stacks, true)])
		}
	})
}

// kill ends it in the middle of whatever it does.
func (r *running) kill() {
	r.line.cut.Store(true)
	r.stop()
}
