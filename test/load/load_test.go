package load

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// TestLoad makes connections to a server that answers, to one that ends, and to a
// port without a listener, and checks that each failure is reported, and no other.
func TestLoad(t *testing.T) {
	if err := cluster.Check(); err != nil {
		t.Skip(err)
	}
	c, err := cluster.Start(t.Context(), cluster.Options{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	var pods []*cluster.Pod
	for _, name := range []string{"stays", "ends", "client"} {
		pod, err := c.Node(0).RunPod(t.Context(), cluster.PodSpec{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
	}
	client := pods[2].Place
	ends := Target{Name: "ends", From: client, Network: "tcp", Address: pods[1].Address(8080)}
	l, err := Start(t.Context(), 100, []Target{
		{Name: "stays", From: client, Network: "tcp", Address: pods[0].Address(8080), Servers: []string{"stays"}},
		{Name: "stays", From: client, Network: "udp", Address: pods[0].Address(8080), Servers: []string{"stays"}},
		ends,
		{Name: "other server", From: client, Network: "tcp", Address: pods[0].Address(8080), Servers: []string{"other"}, NotHeld: true},
		{Name: "no listener", From: client, Network: "tcp", Address: pods[0].IP() + ":1", NotHeld: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.End)
	failed := func(held bool) map[string]int {
		counts := map[string]int{}
		for _, f := range l.Failures() {
			if f.Held == held {
				counts[f.Target.Name]++
			}
		}
		return counts
	}
	until(t, func() bool {
		return l.Answered("tcp") >= 10 && l.Answered("udp") >= 10 && failed(false)["no listener"] > 0
	})
	if counts := failed(false); counts["stays"]+counts["ends"] > 0 || counts["other server"] == 0 || len(failed(true)) > 0 {
		t.Errorf("new connections failed: %v, held ones: %v", counts, failed(true))
	}
	if held, questions := l.Held(); held != 3 || questions == 0 {
		t.Errorf("%d connections are held, with %d questions, want 3", held, questions)
	}
	if err := l.WellSince(l.Begun()); err == nil || !strings.HasPrefix(err.Error(), "other server") {
		t.Errorf("first that does not answer: %v, want other server", err)
	}
	if err := pods[1].Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return failed(true)["ends"] == 1 && failed(false)["ends"] > 0 })
	l.End()
	if counts := failed(false); counts["stays"] > 0 || len(failed(true)) != 1 {
		t.Errorf("new connections failed: %v, held ones: %v", counts, failed(true))
	}
	if tried := l.Tried(l.Begun(), time.Now()); tried != l.Total() {
		t.Errorf("%d connections tried in all the time, %d in all", tried, l.Total())
	}
	if err := ends.Try(context.Background()); err == nil {
		t.Error("a server that has ended answers")
	}
}

// until waits until f is true.
func until(t *testing.T, f func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for begin := time.Now(); !f(); <-tick.C {
		if time.Since(begin) > 30*time.Second {
			t.Fatal("not within 30 s")
		}
	}
}
