package health

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	clocktesting "k8s.io/utils/clock/testing"
)

// lines gathers what is logged.
type lines struct {
	mu   sync.Mutex
	text []string
}

func (l *lines) add(_, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, args)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.text, "\n")
}

// await waits for a state with a deadline.
func await(t *testing.T, what string, state func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !state() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("not within 10 s: " + what)
		}
	}
}

func TestPortInUseIsLoggedAndRetried(t *testing.T) {
	holder := freePort(t)
	address := holder.Addr().String()
	clk := clocktesting.NewFakeClock(now)
	log := &lines{}
	server := &Server{Name: "metrics", Address: address, Flag: "--metrics-bind-address", Clock: clk, Log: funcr.New(log.add, funcr.Options{}),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "ours") })}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); server.Run(ctx) }()

	for range 3 {
		await(t, "a pause", clk.HasWaiters)
		clk.Step(bindPause)
	}
	await(t, "a pause", clk.HasWaiters)
	if reported := log.String(); strings.Count(reported, "Could not serve") != 1 || !strings.Contains(reported, "--metrics-bind-address") || !strings.Contains(reported, address) {
		t.Errorf("log: %s", reported)
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	clk.Step(bindPause)
	await(t, "an answer", func() bool {
		response, err := http.Get("http://" + address)
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }() // only read from
		body, err := io.ReadAll(response.Body)
		return err == nil && string(body) == "ours"
	})
	cancel()
	<-done
	if _, err := http.Get("http://" + address); err == nil {
		t.Error("it still answers after the end")
	}
}

// TestLoopbackIsServedInBothFamilies: no other program can answer at the other one.
func TestLoopbackIsServedInBothFamilies(t *testing.T) {
	for flag, want := range map[string][]string{
		"127.0.0.1:10249": {"127.0.0.1:10249", "[::1]:10249"},
		"[::1]:10249":     {"[::1]:10249", "127.0.0.1:10249"},
		"127.0.0.2:10249": {"127.0.0.2:10249"},
		"0.0.0.0:10256":   {"0.0.0.0:10256"}, // which Go binds in both families
		":19256":          {":19256"},
		"192.0.2.1:10249": {"192.0.2.1:10249"},
		"localhost:10249": {"localhost:10249"},
		"":                nil,
		"0":               nil,
	} {
		if got := addresses(flag); !slices.Equal(got, want) {
			t.Errorf("%q: got %q, want %q", flag, got, want)
		}
	}
}

// TestProblemsNameTheHolder, for the log and the status.
func TestProblemsNameTheHolder(t *testing.T) {
	holder := freePort(t)
	address := holder.Addr().String()
	clk := clocktesting.NewFakeClock(now)
	log, changed := &lines{}, make(chan struct{}, 100)
	server := &Server{
		Name: "probes", Address: address, Flag: "--health-probe-bind-address", Clock: clk, Log: funcr.New(log.add, funcr.Options{}),
		Handler: http.NotFoundHandler(),
		Holder:  func(at string) string { return "uid 1000 has " + at },
		Changed: func() { changed <- struct{}{} },
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); server.Run(ctx) }()
	await(t, "a problem", func() bool { return len(server.Problems()) > 0 })
	if got := server.Problems(); len(got) != 1 || !strings.Contains(got[0], "uid 1000 has "+address) || !strings.Contains(got[0], "--health-probe-bind-address") {
		t.Errorf("problems %q", got)
	}
	await(t, "a pause", clk.HasWaiters)
	if reported := log.String(); !strings.Contains(reported, "uid 1000 has "+address) {
		t.Errorf("log: %s", reported)
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	clk.Step(bindPause)
	await(t, "no problem", func() bool { return len(server.Problems()) == 0 })
	if len(changed) != 2 {
		t.Errorf("%d changes", len(changed))
	}
	cancel()
	<-done
	if got := server.Problems(); len(got) != 0 {
		t.Errorf("problems after the end: %q", got)
	}
}

func TestNoAddressServesNothing(t *testing.T) {
	for _, address := range []string{"", "0"} {
		(&Server{Address: address}).Run(context.Background()) // returns at once
	}
}
