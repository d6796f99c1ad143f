package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/command"
	"github.com/nodeproxy-io/nodeproxy/test/recorded"
)

// following runs a command on a cluster that has the first state, and after two pauses the second. It is
// interrupted in the fifth pause.
func following(t *testing.T, width int, args ...string) (out, errs string, status int) {
	t.Helper()
	var now time.Time
	var servers []*httputil.ReverseProxy
	for _, name := range []string{"mode-fallback", "doctor-healthy"} {
		state, err := recorded.Load(filepath.Join(states, name))
		if err != nil {
			t.Fatal(err)
		}
		target, err := url.Parse(state.Serve(t))
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, httputil.NewSingleHostReverseProxy(target))
		now = state.Now
	}
	var current atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { servers[current.Load()].ServeHTTP(w, r) }))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var toOut, toErr bytes.Buffer
	o := options(&toOut, &toErr, now, width)
	pauses := 0
	o.After = func(d time.Duration) <-chan time.Time {
		if d > time.Minute {
			return nil // the limit of --wait
		}
		switch pauses++; pauses {
		case 2:
			current.Store(1)
		case 5:
			cancel()
			return nil
		}
		return atOnce(d)
	}
	status = command.Run(ctx, append(args, "--kubeconfig="+writeKubeconfig(t, server.URL)), o)
	return toOut.String(), toErr.String(), status
}

func TestWatchPrintsChanges(t *testing.T) {
	t.Parallel()
	out, errs, status := following(t, 0, "status", "--watch")
	if strings.Count(out, "NODEPROXY ") != 2 || !strings.Contains(out, "\n\nNODEPROXY ") || errs != "" || status != command.ExitOK {
		t.Errorf("exit code %d, %s\n%s", status, errs, out)
	}
	out, _, _ = following(t, columns, "status", "-w")
	if strings.Count(out, "\x1b[H\x1b[2J") != 2 {
		t.Errorf("on a terminal:\n%q", out)
	}
	out, _, _ = following(t, 0, "status", "-w", "-o", "yaml")
	if strings.Count(out, "---\n") != 2 || strings.Count(out, "kind: ClusterStatus") != 2 {
		t.Errorf("as YAML:\n%s", out)
	}
}

func TestWait(t *testing.T) {
	t.Parallel()
	for _, goal := range []string{"--wait", "--wait=healthy", "--wait=rolled-out", "--wait=programmed"} {
		out, errs, status := following(t, 0, "status", goal)
		if strings.Count(out, "NODEPROXY ") != 1 || errs != "" || status != command.ExitOK {
			t.Errorf("%s: exit code %d, %s\n%s", goal, status, errs, out)
		}
		if waited := !strings.Contains(out, "INCOMPLETE"); waited != (goal != "--wait=programmed") {
			t.Errorf("%s prints\n%s", goal, out)
		}
	}
}
