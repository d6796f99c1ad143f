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
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var here = checkpoint.Identity{BootID: "boot-1", Netns: 7}

// membersOfA puts the first endpoint of shop/a on the node.
func membersOfA(s *v1alpha1.NodeProxyRulesSpec) {
	s.Services = []v1alpha1.ServiceMembers{{Namespace: "shop", Name: "a",
		Ports: []v1alpha1.PortMembers{{Name: "http", Protocol: "TCP", Endpoints: []string{"10.244.1.1:8080"}}}}}
}

// good returns what a running store would keep: a, b and c, of which a has an
// endpoint on the node.
func good(r *rig, rebooted bool) *goodSet {
	set := &checkpoint.Set{
		Header: checkpoint.Header{Node: "node-1", Written: agenttest.Epoch.Add(-7 * time.Minute)}, Rules: r.Node(membersOfA),
		Services: []*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("b", 2), r.Service("c", 3)},
	}
	for _, o := range set.Services {
		o.Generation = 0
	}
	if rebooted {
		set = set.WithoutMembers()
	}
	return &goodSet{Set: set, rebooted: rebooted, why: "connection refused"}
}

func (r *rig) mustRestore(g *goodSet) {
	r.t.Helper()
	if used, err := r.restore(g); err != nil || !used {
		r.t.Fatalf("not restored: %v, %v", used, err)
	}
}

func (r *rig) clusterList(service string) string {
	r.t.Helper()
	svc := r.kernel.Service("shop", service)
	if svc == nil {
		return "none"
	}
	var out []string
	for _, e := range svc.Ports[0].Cluster {
		out = append(out, e.String())
	}
	return strings.Join(out, " ")
}

func TestRestoreInTheSameBoot(t *testing.T) {
	r := newRig(t)
	newer := &dataplane.Service{Name: agenttest.Name("b")} // what the kernel holds by now
	leftover := &dataplane.Service{Name: agenttest.Name("left")}
	r.kernel.Plant(newer)
	r.kernel.Plant(leftover)
	g := good(r, false)
	r.mustRestore(g)
	r.expectSync("full a b c")
	r.expectKernel("a", "b", "c", "left")
	if r.kernel.Service("shop", "b") != newer {
		t.Error("what may be newer in the kernel was replaced")
	}
	if got := r.clusterList("a"); got != "10.244.1.1:8080 10.244.9.9:8080" {
		t.Errorf("a: %s", got)
	}
	s := r.snapshot()
	if !r.health().Eligible || !s.restored.active() || s.own != nil || s.listed {
		t.Errorf("snapshot: restored %+v, health %+v", s.restored, r.health())
	}

	r.kernel.Remove("shop", "a")
	d, err := r.kernel.Verify(context.Background(), r.verifiable()[dataplane.IPv4])
	if err != nil || d.Count != 1 {
		t.Errorf("verification: %v, %v", d, err)
	}
	r.compared(r.epoch, map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{dataplane.IPv4: {Value: d}}, nil, false)
	r.expectSync("full")
	r.expectKernel("a", "b", "c", "left")

	// The API answers: a is as it was, b has changed, c has gone, d is new.
	writes := r.kernel.Writes()
	a := g.Services[0].DeepCopy()
	a.Generation = 1
	r.SetRules(r.Node(membersOfA))
	r.expectSync("nothing")
	r.SetServices([]*v1alpha1.ServiceProxyRules{a, r.Service("b", 22), r.Service("d", 4)})
	r.expectSync("full b d")
	r.expectKernel("a", "b", "c", "d", "left")
	if got := r.kernel.Writes() - writes; got != 2 {
		t.Errorf("%d Services written, want b and d", got)
	}
	if s := r.snapshot(); len(s.held) != 1 || s.restored.active() {
		t.Errorf("held %v, restored %+v", s.held, s.restored)
	}
	r.setInventory(agenttest.InventoryOf("shop.a", "shop.b", "shop.d"))
	r.expectSync("full, pruning c")
	r.expectKernel("a", "b", "d")
}

func TestRestoreAfterAReboot(t *testing.T) {
	r := newRig(t)
	g := good(r, true)
	r.mustRestore(g)
	r.expectSync("full a b c")
	if got := r.clusterList("a"); got != "10.244.9.9:8080" {
		t.Errorf("a still has an endpoint on this node: %s", got)
	}
	if b := r.prepare(); !b.partial {
		t.Error("flows would be compared to lists without this node's endpoints")
	}
	// What boot scripts have put back is replaced: its pods are not there.
	r.kernel.Plant(&dataplane.Service{Name: agenttest.Name("a")})
	r.markFull(agenttest.Epoch)
	r.expectSync("full")
	if got := r.clusterList("a"); got != "10.244.9.9:8080" {
		t.Errorf("a: %s", got)
	}

	r.SetRules(r.Node(membersOfA))
	if r := r.inUse(); !r.active() || !r.rebooted {
		t.Errorf("half of what is needed has come, but: %+v", r)
	}
	again := r.Service("a", 1)
	again.UID = g.Services[0].UID
	r.SetServices([]*v1alpha1.ServiceProxyRules{again, r.Service("b", 2), r.Service("c", 3)})
	r.expectSync("full a")
	if got := r.clusterList("a"); got != "10.244.1.1:8080 10.244.9.9:8080" {
		t.Errorf("a, once the API has answered: %s", got)
	}
	if r.inUse().active() || !r.health().Eligible {
		t.Errorf("the API has answered, but: %+v, %+v", r.inUse(), r.health())
	}
}

func TestRestoreTakesOnlyWhatIsLacking(t *testing.T) {
	t.Run("the own object alone", func(t *testing.T) {
		r := newRig(t)
		r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 11)})
		r.MissRules()
		r.mustRestore(good(r, false))
		r.expectSync("full a")
		r.expectKernel("a")
		if len(r.old) > 0 || !r.snapshot().restored.rules || !r.health().Eligible {
			t.Errorf("old %v, restored %+v", r.old, r.restored)
		}
		r.SetService(r.Service("b", 2)) // Services go on
		r.expectSync("partial b")
		if r.goodSet() != nil {
			t.Error("an own object that the API has not shown is kept as fresh")
		}
	})
	t.Run("the Services alone", func(t *testing.T) {
		r := newRig(t)
		r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Node.Draining = true }))
		r.mustRestore(good(r, false))
		r.expectSync("full a b c")
		if r.health().Eligible || r.snapshot().own == nil {
			t.Error("the Node is drained")
		}
	})
	t.Run("nothing, if all has come", func(t *testing.T) {
		r := running(t)
		if used, err := r.restore(good(r, false)); used || err != nil || r.lacking() {
			t.Errorf("%v, %v", used, err)
		}
	})
	t.Run("nothing, if the own object is refused", func(t *testing.T) {
		r := newRig(t)
		r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 99 }))
		if used, _ := r.restore(good(r, false)); used || r.ready() {
			t.Error("rules that must stay as they are are written")
		}
	})
	t.Run("nothing of another format", func(t *testing.T) {
		r := newRig(t)
		g := good(r, false)
		g.Rules.Spec.FormatVersion = 99
		if used, err := r.restore(g); used || err == nil || r.ready() {
			t.Errorf("%v, %v", used, err)
		}
		g = good(r, false)
		g.Services[1].Spec.FormatVersion = 99
		r.mustRestore(g)
		r.expectSync("full a c")
	})
}

// TestFirstListHoldsWhatItLacks is a restart while somebody has deleted objects.
func TestFirstListHoldsWhatItLacks(t *testing.T) {
	r := newRig(t)
	newer := &dataplane.Service{Name: agenttest.Name("b")}
	r.kernel.Plant(newer)
	asked := 0
	r.former = func(int, uint64) *goodSet { asked++; return good(r, false) }
	r.SetRules(r.Node())
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("c", 3, agenttest.Released)})
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	r.expectSync("full a b c")
	r.expectKernel("a", "b") // c has ended
	if r.kernel.Service("shop", "b") != newer {
		t.Error("what may be newer in the kernel was replaced")
	}
	if s := r.snapshot(); len(s.held) != 1 || s.restored.active() {
		t.Errorf("held %v, restored %+v", s.held, s.restored)
	}
	r.SetService(r.Service("b", 2)) // it returns as it was
	r.expectSync("full")
	if got := r.clusterList("b"); got != "10.244.1.2:8080 10.244.9.9:8080" {
		t.Errorf("b: %s", got)
	}
	r.setInventory(agenttest.InventoryOf("shop.a", "shop.b"))
	r.expectSync("full, pruning")
}

func TestGoodSet(t *testing.T) {
	r := newRig(t)
	if r.goodSet() != nil {
		t.Error("there is a good set before the first list")
	}
	r = running(t)
	r.DeleteService(r.Service("a", 1)) // held
	set := sorted(r.goodSet())
	var names []string
	for _, o := range set.Services {
		names = append(names, o.Name)
	}
	if diff := cmp.Diff([]string{"shop.a", "shop.b", "shop.c"}, names); diff != "" || set.Rules.Name != "node-1" {
		t.Error(diff, set.Rules)
	}
	r.MissRules() // the last known one stays in force
	if r.goodSet() == nil {
		t.Error("none without the own object")
	}
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 99 }))
	if r.goodSet() != nil {
		t.Error("there is a good set while the own object is refused")
	}
}

func TestMessagesOfRestored(t *testing.T) {
	for _, rebooted := range []bool{false, true} {
		r := newRig(t)
		r.SetRules(r.Node())
		g := good(r, rebooted)
		g.why = `serviceproxyrules.nodeproxy.io is forbidden`
		r.mustRestore(g)
		r.sync()
		r.clock.SetTime(agenttest.Epoch.Add(11 * time.Second))
		c := programmedCondition(r.snapshot(), facts{})
		if c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonHeld {
			t.Errorf("condition %+v", c)
		}
		for _, want := range []string{"the ServiceProxyRules could not be read", "is forbidden", "written 2026-11-20T07:53:00Z"} {
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
	kernel *dataplanetest.Fake
	folder string
	log    *agenttest.Log
}

func newRestartable(t *testing.T) *restartable {
	return &restartable{T: t, kernel: dataplanetest.NewFake(), folder: filepath.Join(t.TempDir(), "state"), log: &agenttest.Log{}}
}

func (e *restartable) agent(id checkpoint.Identity) (*Agent, *rig) {
	e.Helper()
	client, err := apiclient.New(&rest.Config{Host: "https://192.0.2.10:6443"})
	if err != nil {
		e.Fatal(err)
	}
	a, err := New(Options{
		NodeName: "node-1", Client: client, Probe: (&answers{list: []string{""}}).probe, Clock: clock.RealClock{},
		Dataplanes: map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: e.kernel},
		StateDir:   e.folder, Identity: id,
		Log: funcr.New(e.log.Add, funcr.Options{Verbosity: 2}),
	})
	if err != nil {
		e.Fatal(err)
	}
	a.turn.held = true
	a.keeper.look()
	return a, &rig{store: a.store, t: e.T, kernel: e.kernel, Objects: agenttest.Objects{Version: 10}}
}

func (e *restartable) fill(r *rig) {
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("b", 2)})
	r.setInventory(agenttest.InventoryOf("shop.a", "shop.b"))
	r.SetRules(r.Node(membersOfA))
}

func (e *restartable) file() string { return filepath.Join(e.folder, "node-1.checkpoint") }

// loops runs the agent's loops around the last good set in a bubble.
func loops(t *testing.T, a *Agent) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{}, 2)
	go func() { a.restoreLoop(ctx); done <- struct{}{} }()
	go func() { a.keepLoop(ctx); done <- struct{}{} }()
	return func() { cancel(); <-done; <-done }
}

func TestKeepAndRestore(t *testing.T) {
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
				after(restoreDelay - time.Millisecond)
				r.expectSync("not ready")
				after(time.Millisecond)
				r.expectSync("full a b")
				want := "10.244.1.1:8080 10.244.9.9:8080"
				if id != here {
					want = "10.244.9.9:8080"
				}
				if got := r.clusterList("a"); got != want {
					t.Errorf("a: %s, want %s", got, want)
				}
				if got := a.proxyState().Eligible && !a.proxyState().Withheld; got != (id == here) {
					t.Errorf("load balancers may send connections: %v", got)
				}
				if lines := e.log.With("going by the last good set"); len(lines) != 1 || !strings.Contains(lines[0], "no answer within 5s") || !strings.Contains(lines[0], `"age"="1h`) {
					t.Errorf("log %q", lines)
				}
				kept, err := os.Stat(e.file())
				after(time.Hour)
				if now, err2 := os.Stat(e.file()); err != nil || err2 != nil || !os.SameFile(kept, now) {
					t.Errorf("what is not fresh is written as if it were: %v, %v", err, err2)
				}
				e.fill(r)
				a.changed()
				if lines := e.log.With("is not used any more"); len(lines) != 1 {
					t.Errorf("log %q", lines)
				}
				if s := a.proxyState(); !s.Eligible || s.Withheld {
					t.Errorf("load balancers are kept away: %+v", s)
				}
				after(time.Minute)
				if now, err := os.Stat(e.file()); err != nil || os.SameFile(kept, now) {
					t.Errorf("not written once the API answers: %v", err)
				}
			})
		})
	}
}

// TestListsArriveWhileTheLastGoodSetIsTaken: nobody has noted yet that it is in
// use when it ceases to be.
func TestListsArriveWhileTheLastGoodSetIsTaken(t *testing.T) {
	e := newRestartable(t)
	a, r := e.agent(here)
	e.fill(r)
	a.keep(true)
	for _, arrive := range []bool{false, true} {
		a, r = e.agent(checkpoint.Identity{BootID: "boot-2", Netns: 7})
		a.log = a.log.WithSink(duringLog{a.log.GetSink(), "going by the last good set", func() {
			if arrive {
				e.fill(r)
			}
		}})
		if problem := a.restore(); problem != "" {
			t.Fatal(problem)
		}
		if got := a.proxyState().Withheld; got == arrive {
			t.Errorf("the API has answered: %v; load balancers are kept away: %v", arrive, got)
		}
	}
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

func TestUselessLastGoodSet(t *testing.T) {
	for name, tt := range map[string]struct {
		spoil func(e *restartable) error
		later time.Duration
		want  string
	}{
		"damaged":  {func(e *restartable) error { return os.Truncate(e.file(), 100) }, 0, "checksum is wrong"},
		"no file":  {func(e *restartable) error { return os.Remove(e.file()) }, 0, "there is no last good set on this node"},
		"too old":  {nil, checkpoint.MaxAge + time.Minute, "too old"},
		"a folder": {func(e *restartable) error { return errors.Join(os.Remove(e.file()), os.Mkdir(e.file(), 0o700)) }, 0, "no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newRestartable(t)
				a, r := e.agent(here)
				e.fill(r)
				a.keep(true)
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
				if lines := e.log.With("there is no last good set on this node's disk to go by"); len(lines) != 1 || !strings.Contains(lines[0], tt.want) || !strings.Contains(lines[0], e.file()) {
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
		if err := os.WriteFile(e.folder, nil, 0o600); err != nil { // where the folder should be
			t.Fatal(err)
		}
		a, r := e.agent(here)
		stop := loops(t, a)
		e.fill(r)
		after(10 * time.Minute)
		r.expectSync("full, pruning a b")
		if lines := e.log.With("Could not keep the last good set"); len(lines) != 1 {
			t.Errorf("said %d times: %q", len(lines), lines)
		}
		c := programmedCondition(a.known())
		if c.Reason != v1alpha1.ReasonProgrammed || !strings.Contains(c.Message, "but: the last good set cannot be kept on this node's disk") || !strings.Contains(c.Message, "not a directory") {
			t.Errorf("condition %+v", c)
		}
		if err := os.Remove(e.folder); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Minute)
		if _, err := os.Stat(e.file()); err != nil || len(e.log.With("can be written to this node's disk again")) != 1 {
			t.Errorf("%v, log %q", err, e.log.With(""))
		}
		if c := programmedCondition(a.known()); strings.Contains(c.Message, "but:") {
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
		a.mu.Lock()
		a.turn.other = "kube-proxy answers"
		a.mu.Unlock()
		after(keepTick)
		if next, _ := e.agent(here); !next.formerConflict() {
			t.Error("it is not kept that another proxy is active")
		}
		a.mu.Lock()
		a.turn.other = ""
		a.mu.Unlock()
		stop() // writes once more
		if next, _ := e.agent(here); next.keeper.conflicted() || next.keeper.header == nil {
			t.Error("the last state is not written on stop")
		}
	})
}

// TestFirstListWithTheSameNames does not read the file again.
func TestFirstListWithTheSameNames(t *testing.T) {
	e := newRestartable(t)
	a, r := e.agent(here)
	e.fill(r)
	a.keep(true)
	a, r = e.agent(here)
	if err := os.Remove(e.file()); err != nil {
		t.Fatal(err)
	}
	e.fill(r)
	if len(e.log.With("cannot be used")) > 0 {
		t.Errorf("log %q", e.log.With(""))
	}
	a.keep(true)
	_, r = e.agent(here)
	r.SetRules(r.Node())
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("b", 2)})
	if s := r.snapshot(); len(s.held) != 1 || s.held[0] != agenttest.Name("a") {
		t.Errorf("held %v", s.held)
	}
}
