package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var here = checkpoint.Identity{BootID: "boot-1", Netns: 7}

func TestMessagesOfRestored(t *testing.T) {
	for _, rebooted := range []bool{false, true} {
		r := newRig(t)
		r.SetRules(r.Node())
		g := r.Checkpoint(rebooted)
		g.Why = `serviceproxyrules.nodeproxy.io is forbidden`
		r.mustRestore(g)
		r.sync()
		r.clock.SetTime(agenttest.Epoch.Add(11 * time.Second))
		c := status.ProgrammedCondition(r.Snapshot(), status.Facts{})
		if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonRetained {
			t.Errorf("condition %+v", c)
		}
		for _, want := range []string{"The ServiceProxyRules could not be read", "is forbidden", "written 2026-11-20T07:53:00Z"} {
			if !strings.Contains(c.Message, want) {
				t.Errorf("%q lacks %q", c.Message, want)
			}
		}
		if strings.Contains(c.Message, "503") != rebooted || strings.Contains(c.Message, "inventory") {
			t.Errorf("rebooted %v: %q", rebooted, c.Message)
		}
	}
}

// restartable makes agents on one kernel and one disk. None of them can reach
// an API server.
type restartable struct {
	*testing.T
	kernel    *dataplanetest.Fake
	directory string
	log       *agenttest.Log
}

func newRestartable(t *testing.T) *restartable {
	return &restartable{T: t, kernel: dataplanetest.NewFake(), directory: filepath.Join(t.TempDir(), "state"), log: &agenttest.Log{}}
}

func (e *restartable) agent(id checkpoint.Identity) (*Agent, *rig) {
	e.Helper()
	client, err := apiclient.New(&rest.Config{Host: "https://192.0.2.10:6443"})
	if err != nil {
		e.Fatal(err)
	}
	a, err := New(Options{
		NodeName: "node-1", Client: client, Probe: (&answers{list: []string{""}}).probe, Clock: clock.RealClock{}, Spotter: &spots{},
		Dataplanes: map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: e.kernel},
		StateDir:   e.directory, Identity: id,
		Log: funcr.New(e.log.Add, funcr.Options{Verbosity: 2}),
	})
	if err != nil {
		e.Fatal(err)
	}
	return a, &rig{Store: a.store, t: e.T, kernel: e.kernel, Objects: agenttest.Objects{Version: 10}}
}

func (e *restartable) fill(r *rig) {
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("b", 2)})
	r.SetInventory(agenttest.InventoryOf("shop.a", "shop.b"))
	r.SetRules(r.Node(agenttest.EndpointOfA))
}

func (e *restartable) file() string { return filepath.Join(e.directory, "node-1.checkpoint") }

// write writes the checkpoint as an agent does that stops.
func write(a *Agent) {
	stopped, stop := context.WithCancel(context.Background())
	stop()
	a.recovery.Write(stopped)
}

// loops runs the agent's loops around the checkpoint in a bubble.
func loops(t *testing.T, a *Agent) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { a.recovery.Restore(ctx); done <- struct{}{} }()
	go func() { a.recovery.Write(ctx); done <- struct{}{} }()
	return func() { cancel(); <-done; <-done }
}

func TestWriteAndRestore(t *testing.T) {
	for name, id := range map[string]checkpoint.Identity{
		"same boot": here, "another boot": {BootID: "boot-2", Netns: 7}, "another network namespace": {BootID: "boot-1", Netns: 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newRestartable(t)
				a, r := e.agent(here)
				stop := loops(t, a)
				e.fill(r)
				after(9 * time.Second)
				if _, err := os.Stat(e.file()); err == nil {
					t.Error("written at once, while everything starts")
				}
				after(8 * time.Second)
				first, err := os.Stat(e.file())
				if err != nil {
					t.Fatal(err)
				}
				after(9 * time.Minute)
				if again, err := os.Stat(e.file()); err != nil || !os.SameFile(first, again) {
					t.Errorf("written before it is due: %v", err)
				}
				after(time.Minute)
				if again, err := os.Stat(e.file()); err != nil || os.SameFile(first, again) {
					t.Errorf("not written after 10 minutes: %v", err)
				}
				stop()

				after(time.Hour)
				a, r = e.agent(id)
				stop = loops(t, a)
				defer stop()
				after(5*time.Second - time.Millisecond)
				r.expectSync("not ready")
				after(time.Millisecond)
				r.expectSync("full a b")
				want := "10.244.1.1:8080 10.244.9.9:8080"
				if id != here {
					want = "10.244.9.9:8080"
				}
				if got := clusterList(e.kernel.Service("shop", "a")); got != want {
					t.Errorf("a: %s, want %s", got, want)
				}
				if got := a.proxyState().Eligible && !a.proxyState().Withheld; got != (id == here) {
					t.Errorf("load balancers may send connections: %v", got)
				}
				if lines := e.log.With("using the checkpoint until it does"); len(lines) != 1 || !strings.Contains(lines[0], "no answer within 5s") || !strings.Contains(lines[0], `"age"="1h`) {
					t.Errorf("log %q", lines)
				}
				before, err := os.Stat(e.file())
				after(time.Hour)
				if now, err2 := os.Stat(e.file()); err != nil || err2 != nil || !os.SameFile(before, now) {
					t.Errorf("what is not fresh is written as if it were: %v, %v", err, err2)
				}
				e.fill(r)
				a.changed()
				if lines := e.log.With("is no longer used"); len(lines) != 1 {
					t.Errorf("log %q", lines)
				}
				if s := a.proxyState(); !s.Eligible || s.Withheld {
					t.Errorf("load balancers are kept away: %+v", s)
				}
				after(time.Minute)
				if now, err := os.Stat(e.file()); err != nil || os.SameFile(before, now) {
					t.Errorf("not written once the API answers: %v", err)
				}
			})
		})
	}
}

// TestListsArriveWhileTheCheckpointIsTaken: it was not noted yet that it is in
// use when it ceases to be.
func TestListsArriveWhileTheCheckpointIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newRestartable(t)
		a, r := e.agent(here)
		e.fill(r)
		write(a)
		for _, arrive := range []bool{false, true} {
			a, r = e.agent(checkpoint.Identity{BootID: "boot-2", Netns: 7})
			restored := false
			a.recovery.Log = a.log.WithSink(duringLog{a.log.GetSink(), "using the checkpoint until it does", func() {
				restored = true
				if arrive {
					e.fill(r)
				}
			}})
			ctx, stop := context.WithCancel(t.Context())
			go a.recovery.Restore(ctx)
			after(6 * time.Second)
			stop()
			synctest.Wait()
			if got := a.proxyState().Withheld; !restored || got == arrive {
				t.Errorf("restored: %v; the API has answered: %v; load balancers are kept away: %v", restored, arrive, got)
			}
		}
	})
}

// duringLog does something when a text is logged.
type duringLog struct {
	logr.LogSink
	text string
	do   func()
}

func (m duringLog) Info(level int, message string, keysAndValues ...any) {
	if strings.Contains(message, m.text) {
		m.do()
	}
	m.LogSink.Info(level, message, keysAndValues...)
}

func TestUselessCheckpoint(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(e *restartable) error
		later time.Duration
		want  string
	}{
		"damaged":     {func(e *restartable) error { return os.Truncate(e.file(), 100) }, 0, "checksum is wrong"},
		"no file":     {func(e *restartable) error { return os.Remove(e.file()) }, 0, "there is no checkpoint on this node"},
		"too old":     {nil, checkpoint.MaxAge + time.Minute, "too old"},
		"a directory": {func(e *restartable) error { return errors.Join(os.Remove(e.file()), os.Mkdir(e.file(), 0o700)) }, 0, "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newRestartable(t)
				a, r := e.agent(here)
				e.fill(r)
				write(a)
				if tt.spoil != nil {
					if err := tt.spoil(e); err != nil {
						t.Fatal(err)
					}
				}
				after(tt.later)
				a, r = e.agent(here)
				stop := loops(t, a)
				defer stop()
				after(time.Minute)
				r.expectSync("not ready")
				if lines := e.log.With("there is no usable checkpoint"); len(lines) != 1 || !strings.Contains(lines[0], tt.want) || !strings.Contains(lines[0], e.file()) {
					t.Errorf("log %q", e.log.With(""))
				}
				e.fill(r) // the API answers
				r.expectSync("full, pruning a b")
			})
		})
	}
}

func TestDiskThatCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newRestartable(t)
		if err := os.WriteFile(e.directory, nil, 0o600); err != nil { // where the directory should be
			t.Fatal(err)
		}
		a, r := e.agent(here)
		stop := loops(t, a)
		e.fill(r)
		after(10 * time.Minute)
		r.expectSync("full, pruning a b")
		if lines := e.log.With("Could not write the checkpoint"); len(lines) != 1 {
			t.Errorf("reported %d times: %q", len(lines), lines)
		}
		c := status.ProgrammedCondition(a.refresh())
		if c.Reason != v1alpha1.ReasonProgrammed || !strings.Contains(c.Message, "Restrictions: the checkpoint cannot be written") || !strings.Contains(c.Message, "not a directory") {
			t.Errorf("condition %+v", c)
		}
		if err := os.Remove(e.directory); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Minute)
		if _, err := os.Stat(e.file()); err != nil || len(e.log.With("can be written again")) != 1 {
			t.Errorf("%v, log %q", err, e.log.With(""))
		}
		if c := status.ProgrammedCondition(a.refresh()); strings.Contains(c.Message, "but:") {
			t.Errorf("condition %+v", c)
		}
		stop()
	})
}

func TestWhatIsWrittenWhen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newRestartable(t)
		a, r := e.agent(here)
		stop := loops(t, a)
		e.fill(r)
		a.errors.Failed(t.Context(), "serviceproxyrules", errors.New("connection refused"))
		after(time.Hour)
		if _, err := os.Stat(e.file()); err == nil {
			t.Error("written while the API does not answer: it would seem fresh")
		}
		a.errors.Watching("serviceproxyrules")
		after(15 * time.Second)
		hold(t, a)
		lose(a)
		after(5 * time.Second)
		if next, _ := e.agent(here); !next.owner.FormerConflict() {
			t.Error("the checkpoint does not record that another proxy is active")
		}
		hold(t, a)
		stop() // writes once more
		if next, _ := e.agent(here); next.owner.FormerConflict() || len(e.log.With("checkpoint cannot be used")) > 0 {
			t.Error("the last state is not written on stop")
		}
	})
}

// TestFirstListWithTheSameNames does not read the file again.
func TestFirstListWithTheSameNames(t *testing.T) {
	e := newRestartable(t)
	a, r := e.agent(here)
	e.fill(r)
	write(a)
	a, r = e.agent(here)
	if err := os.Remove(e.file()); err != nil {
		t.Fatal(err)
	}
	e.fill(r)
	if len(e.log.With("cannot be used")) > 0 {
		t.Errorf("log %q", e.log.With(""))
	}
	write(a)
	_, r = e.agent(here)
	r.SetRules(r.Node())
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("b", 2)})
	if s := r.Snapshot(); len(s.Retained) != 1 || s.Retained[0] != agenttest.Name("a") {
		t.Errorf("retained %v", s.Retained)
	}
}
