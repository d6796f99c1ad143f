package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/apiclient"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// answers is what the ports tell, one entry a look; the last one stays. "slow"
// is no answer in time, "" no proxy, anything else a sign.
type answers struct {
	mu    sync.Mutex
	list  []string
	looks int
}

func (a *answers) probe(context.Context, string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	answer := a.list[min(a.looks, len(a.list)-1)]
	a.looks++
	if answer == "slow" {
		return "", errors.New("timeout")
	}
	return answer, nil
}

// become makes the ports tell something else from now on.
func (a *answers) become(answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list, a.looks = []string{answer}, 0
}

// spots are the signs in a kernel.
type spots struct {
	mu sync.Mutex
	// standing shows always, appears only between Begin and End. Begin removes
	// it, as the canaries.
	standing, appears string
	leftovers         []string
	stuck             error // of Begin
	begun             bool
}

func (s *spots) OtherProxy(context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.standing == "" && s.begun {
		return s.appears, nil
	}
	return s.standing, nil
}

func (s *spots) Begin(context.Context) ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stuck != nil {
		return nil, s.stuck
	}
	s.begun, s.appears = true, ""
	return s.leftovers, nil
}

func (s *spots) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = false
}

func (s *spots) set(f func(*spots)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// newAgent returns an agent over a kernel in memory that does not run, and its
// log.
func newAgent(t *testing.T, probe ownership.ProbeFunc) (*Agent, *dataplanetest.Fake, *agenttest.Log) {
	t.Helper()
	return newAgentAt(t, probe, clock.RealClock{})
}

func newAgentAt(t *testing.T, probe ownership.ProbeFunc, clk clock.Clock) (*Agent, *dataplanetest.Fake, *agenttest.Log) {
	t.Helper()
	client, err := apiclient.New(&rest.Config{Host: "https://192.0.2.10:6443"})
	if err != nil {
		t.Fatal(err)
	}
	kernel, log := dataplanetest.NewFake(), &agenttest.Log{}
	a, err := New(Options{
		NodeName: "node-1", Client: client, Probe: probe, Clock: clk,
		Dataplanes: map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: kernel},
		Spotter:    &spots{},
		Log:        funcr.New(log.Add, funcr.Options{Verbosity: 2}),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, kernel, log
}

func spotsOf(a *Agent) *spots { return a.options.Spotter.(*spots) }

// lose has another proxy show for a moment.
func lose(a *Agent) {
	spotsOf(a).set(func(s *spots) { s.standing = "kube-proxy answers" })
	a.owner.Check(context.Background(), false)
	spotsOf(a).set(func(s *spots) { s.standing = "" })
}

// hold gives the agent the ownership.
func hold(t *testing.T, a *Agent) {
	t.Helper()
	if !a.owner.Acquire(t.Context()) {
		t.Fatal("ownership cannot be acquired")
	}
}

// fill gives the agent a complete set of one Service.
func fill(t *testing.T, a *Agent) *rig {
	r := &rig{Store: a.store, t: t, Objects: agenttest.Objects{Version: 10}}
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
	r.SetInventory(agenttest.InventoryOf("shop.a"))
	r.SetRules(r.Node())
	return r
}

func TestAwaitTurn(t *testing.T) {
	const never = -1
	tests := []struct {
		name    string
		answers []string
		former  bool          // the stored status says ConflictingProxy
		after   time.Duration // that it goes on
		log     string        // that must be there
	}{
		{"no proxy", []string{""}, false, 0, ""},
		{"a proxy that stops", []string{"p", "p", ""}, false, 12 * time.Second, "Another proxy is active"},
		{"a proxy that comes back for a moment", []string{"p", "", "", "p", ""}, false, 14 * time.Second, ""},
		{"a proxy that answers late, then runs", []string{"slow", "slow", "p"}, false, never, "has not answered yet"},
		{"late, then closed", []string{"slow", ""}, false, time.Second, "has not answered yet"},
		{"never answers", []string{"slow"}, false, 4 * time.Second, "assuming that it is no proxy"},
		{"the row is broken by an answer", []string{"slow", "slow", "slow", "slow", "p", "slow", "slow", "slow", "slow", ""}, false, 19 * time.Second, ""},
		{"has answered before", []string{"p", "slow"}, false, never, "Another proxy is active"},
		{"one was active before the start", []string{""}, true, 60 * time.Second, "reported before"},
		{"one was active before the start, comes late and stops", []string{"", "", "", "", "", "p", ""}, true, 16 * time.Second, `"p"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, _, log := newAgent(t, (&answers{list: tt.answers}).probe)
				if tt.former {
					reported := (&agenttest.Objects{}).Node()
					reported.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionTrue}}
					a.store.SetRules(reported)
				}
				fill(t, a)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute) // the bubble's
				defer cancel()
				start := time.Now()
				went := a.owner.Acquire(ctx)
				if took := time.Since(start); went != (tt.after != never) || went && took != tt.after {
					t.Fatalf("goes on: %v, after %s; want after %s", went, took, tt.after)
				}
				if went != a.owner.MayWrite() {
					t.Errorf("may write: %v", a.owner.MayWrite())
				}
				if tt.log != "" && len(log.With(tt.log)) == 0 {
					t.Errorf("log %q lacks %q", log.With(""), tt.log)
				}
			})
		})
	}
}

// TestStoredConflictIsKnownBeforeTheSetIsReady: what an agent stored before a
// reboot must be known before the first write.
func TestStoredConflictIsKnownBeforeTheSetIsReady(t *testing.T) {
	r := newRig(t)
	object := r.Node()
	object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionTrue}}
	r.SetRules(object)
	if !r.FoundConflict() {
		t.Error("the stored condition is not noted")
	}
	object = r.Node()
	r.SetRules(object)
	if !r.FoundConflict() {
		t.Error("what was first seen does not stay")
	}
	r = newRig(t)
	r.SetRules(r.Node())
	object = r.Node()
	object.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionTrue}}
	r.SetRules(object)
	if r.FoundConflict() {
		t.Error("what this agent stores itself counts")
	}
}

func TestKeptConflictCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _ := newAgent(t, (&answers{list: []string{""}}).probe)
		a.owner.FormerConflict = func() bool { return true }
		fill(t, a)
		start := time.Now()
		if !a.owner.Acquire(t.Context()) || time.Since(start) != 60*time.Second {
			t.Errorf("ownership is acquired after %s", time.Since(start))
		}
	})
}

// turning is an agent whose turns and sync loop run.
type turning struct {
	*Agent
	ports  *answers
	spots  *spots
	kernel *dataplanetest.Fake
	log    *agenttest.Log
	rig    *rig
}

// takingTurns runs a test with an agent whose turns and sync loop run, in a
// bubble with a clock of its own.
func takingTurns(t *testing.T, test func(t *testing.T, r turning)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := turning{ports: &answers{list: []string{""}}}
		r.Agent, r.kernel, r.log = newAgent(t, r.ports.probe)
		r.spots = spotsOf(r.Agent)
		r.rig = fill(t, r.Agent)
		r.changed()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { r.own(ctx) })
		wg.Go(func() { r.loop.Run(ctx) })
		test(t, r)
		cancel()
		wg.Wait()
	})
}

// after lets the bubble's time go on.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// statusOf is the status that the agent would write now.
func statusOf(a *Agent, former []metav1.Condition) v1alpha1.NodeProxyRulesStatus {
	s, f := a.known()
	return status.Build(s, f, former)
}

func factsOf(a *Agent) status.Facts {
	_, f := a.known()
	return f
}

// condition returns reason and message of Programmed.
func (r turning) condition() (string, string) {
	c := status.ProgrammedCondition(r.known())
	return c.Reason, c.Message
}

func TestTurnIsLostAndRegained(t *testing.T) {
	takingTurns(t, func(t *testing.T, r turning) {
		after(time.Second)
		if reason, message := r.condition(); reason != v1alpha1.ReasonProgrammed {
			t.Fatalf("at first: %s: %s", reason, message)
		}
		turn := r.owner.Context()

		r.spots.set(func(s *spots) { s.appears = "chain KUBE-PROXY-CANARY" })
		after(time.Second)
		if r.owner.MayWrite() || turn.Err() == nil {
			t.Fatal("the agent keeps its turn beside another proxy")
		}
		if reason, message := r.condition(); reason != v1alpha1.ReasonConflictingProxy || !strings.Contains(message, "chain KUBE-PROXY-CANARY") {
			t.Errorf("while another proxy runs: %s: %s", reason, message)
		}
		writes := r.kernel.Writes()
		r.kernel.Remove("shop", "a")
		r.rig.SetService(r.rig.Service("b", 2))
		r.rig.SetInventory(agenttest.InventoryOf("shop.a", "shop.b"))
		r.changed()
		r.ports.become("kube-proxy answers")
		after(5 * time.Minute)
		if got := r.kernel.Writes(); got != writes {
			t.Errorf("%d writes beside another proxy", got-writes)
		}

		r.ports.become("")
		after(9 * time.Second)
		if r.owner.MayWrite() {
			t.Error("the turn is taken before the other proxy has been silent for 10 s")
		}
		if reason, message := r.condition(); reason != v1alpha1.ReasonConflictingProxy || !strings.Contains(message, "has not been detected since") {
			t.Errorf("while waiting: %s: %s", reason, message)
		}
		after(2 * time.Second)
		if reason, message := r.condition(); reason != v1alpha1.ReasonProgrammed || len(r.kernel.Services()) != 2 {
			t.Errorf("again: %s: %s; the kernel holds %q", reason, message, r.kernel.Services())
		}
	})
}

// TestNothingIsWrittenOnceASignIsThere: between two looks each write looks
// first.
func TestNothingIsWrittenOnceASignIsThere(t *testing.T) {
	for name, write := range map[string]func(*Agent) error{
		"a sync":         func(a *Agent) error { return a.sync(context.Background()) },
		"a verification": func(a *Agent) error { return a.verify(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			a, r, kernel, _ := inTurn(t)
			s := spotsOf(a)
			mustSync(t, a)
			writes := kernel.Writes()
			kernel.Remove("shop", "a")
			r.SetService(r.Service("b", 2))
			s.appears = "device kube-ipvs0"
			if err := write(a); err != nil {
				t.Fatal(err)
			}
			if kernel.Writes() != writes || a.owner.MayWrite() {
				t.Errorf("%d writes beside another proxy; may write: %v", kernel.Writes()-writes, a.owner.MayWrite())
			}
		})
	}
}

// TestAWriteIsCutOffWithTheTurn, and has time to end where the agent stops.
func TestAWriteIsCutOffWithTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, _ := newAgent(t, (&answers{list: []string{""}}).probe)
		fill(t, a)
		ctx, stop := context.WithCancel(t.Context())
		if !a.owner.Acquire(ctx) {
			t.Fatal("no ownership")
		}
		writing, end := a.writing(ctx)
		defer end()
		lose(a)
		synctest.Wait()
		if writing.Err() == nil {
			t.Error("a write goes on beside another proxy")
		}
		if !a.owner.Acquire(ctx) {
			t.Fatal("no ownership")
		}
		writing, end = a.writing(ctx)
		defer end()
		stop()
		after(stopGrace - time.Second)
		if writing.Err() != nil {
			t.Error("a write is cut off where the agent stops")
		}
		after(2 * time.Second)
		if writing.Err() == nil {
			t.Error("a write goes on for ever")
		}
	})
}

// TestAProxyThatOpensNoPort is not fought: the turns become rare.
func TestAProxyThatOpensNoPort(t *testing.T) {
	takingTurns(t, func(t *testing.T, r turning) {
		turns, held := 0, false
		for range 60 * 60 {
			after(time.Second)
			if r.owner.MayWrite() && !held {
				turns++
			}
			held = r.owner.MayWrite()
			if held { // it notices soon that its canary is gone
				r.spots.set(func(s *spots) { s.appears = "chain KUBE-PROXY-CANARY" })
			}
		}
		if turns < 12 || turns > 18 { // after 10, 20, 40, 80, 160 s, then every 5 minutes
			t.Errorf("%d turns within an hour", turns)
		}
	})
}

func TestABeginningThatFailsIsTriedAgain(t *testing.T) {
	takingTurns(t, func(t *testing.T, r turning) {
		after(time.Second)
		r.spots.set(func(s *spots) { s.standing = "device kube-dummy-if" })
		after(2 * time.Second)
		r.spots.set(func(s *spots) { s.standing, s.stuck = "", errors.New("the lock is held") })
		after(time.Minute)
		if r.owner.MayWrite() || len(r.log.With("the lock is held")) != 1 {
			t.Errorf("may write: %v; log %q", r.owner.MayWrite(), r.log.With("the lock"))
		}
		r.spots.set(func(s *spots) { s.stuck, s.leftovers = nil, []string{"table ip kube-proxy is left"} })
		after(2 * time.Second)
		if reason, message := r.condition(); reason != v1alpha1.ReasonProgrammed || !strings.Contains(message, "but: table ip kube-proxy is left") {
			t.Errorf("then: %s: %s", reason, message)
		}
	})
}

// TestPortsThatWeCouldNotOpen are asked on.
func TestPortsThatWeCouldNotOpen(t *testing.T) {
	takingTurns(t, func(t *testing.T, r turning) {
		after(time.Second)
		r.ports.become("kube-proxy answers")
		after(6 * time.Second)
		if r.owner.MayWrite() {
			t.Error("the agent writes beside a proxy that answers")
		}
	})
}

func TestPendingSaysThatAPortDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ports := &answers{list: []string{"slow"}}
		a, _, _ := newAgent(t, ports.probe)
		fill(t, a)
		acquired := make(chan bool, 1)
		go func() { acquired <- a.owner.Acquire(t.Context()) }()
		synctest.Wait()
		if len(acquired) > 0 {
			t.Fatal("one probe without an answer is taken for no proxy")
		}
		c := status.ProgrammedCondition(a.known())
		if c.Reason != v1alpha1.ReasonPending || !strings.Contains(c.Message, "127.0.0.1:10249") || !strings.Contains(c.Message, "has not answered yet") {
			t.Errorf("condition %+v", c)
		}
		ports.become("")
		<-acquired
		c = status.ProgrammedCondition(a.known())
		if c.Message != "No complete state has been written to the kernel since the agent started or acquired ownership." {
			t.Errorf("once answered: %s", c.Message)
		}
	})
}
