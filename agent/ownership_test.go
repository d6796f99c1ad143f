package agent

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestAcquire(t *testing.T) {
	const never = -1
	tests := []struct {
		name    string
		answers []string
		former  bool          // the stored status shows ConflictingProxy
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

func TestOwnershipIsLostAndRegained(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		after(time.Second)
		if reason, message := r.condition(); reason != v1alpha1.ReasonProgrammed {
			t.Fatalf("initially: %s: %s", reason, message)
		}
		owned := r.owner.Context()

		r.spots.set(func(s *spots) { s.appears = "chain KUBE-PROXY-CANARY" })
		after(time.Second)
		if r.owner.MayWrite() || owned.Err() == nil {
			t.Fatal("the agent keeps ownership beside another proxy")
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
			t.Error("ownership is acquired before the other proxy has been silent for 10 s")
		}
		if reason, message := r.condition(); reason != v1alpha1.ReasonConflictingProxy || !strings.Contains(message, "has not been detected since") {
			t.Errorf("while waiting: %s: %s", reason, message)
		}
		after(2 * time.Second)
		if reason, message := r.condition(); reason != v1alpha1.ReasonProgrammed || len(r.kernel.Services()) != 2 {
			t.Errorf("again: %s: %s; the kernel has %q", reason, message, r.kernel.Services())
		}
	})
}

// TestNothingIsWrittenOnceAnotherProxyIsDetected: between two checks each write checks
// first.
func TestNothingIsWrittenOnceAnotherProxyIsDetected(t *testing.T) {
	for name, write := range map[string]func(*Agent) error{
		"a sync":         func(a *Agent) error { return a.sync(context.Background()) },
		"a verification": func(a *Agent) error { return a.verify(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			a, r, kernel, _ := owningAgent(t)
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

// TestAWriteIsAbortedWithoutOwnership, and has time to end where the agent stops.
func TestAWriteIsAbortedWithoutOwnership(t *testing.T) {
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

// TestAProxyThatOpensNoPort is not fought: ownership becomes rare.
func TestAProxyThatOpensNoPort(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		acquired, owns := 0, false
		for range 60 * 60 {
			after(time.Second)
			if r.owner.MayWrite() && !owns {
				acquired++
			}
			owns = r.owner.MayWrite()
			if owns { // it notices soon that its canary is gone
				r.spots.set(func(s *spots) { s.appears = "chain KUBE-PROXY-CANARY" })
			}
		}
		if acquired < 12 || acquired > 18 { // after 10, 20, 40, 80, 160 s, then every 5 minutes
			t.Errorf("acquired %d times within an hour", acquired)
		}
	})
}

func TestABeginningThatFailsIsTriedAgain(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
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
		if reason, message := r.condition(); reason != v1alpha1.ReasonProgrammed || !strings.Contains(message, "Restrictions: table ip kube-proxy is left") {
			t.Errorf("then: %s: %s", reason, message)
		}
	})
}

// TestPortsThatWeCouldNotOpen are asked on.
func TestPortsThatWeCouldNotOpen(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		after(time.Second)
		r.ports.become("kube-proxy answers")
		after(6 * time.Second)
		if r.owner.MayWrite() {
			t.Error("the agent writes beside a proxy that answers")
		}
	})
}

func TestPendingReportsASilentPort(t *testing.T) {
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
		c := status.ProgrammedCondition(a.refresh())
		if c.Reason != v1alpha1.ReasonPending || !strings.Contains(c.Message, "127.0.0.1:10249") || !strings.Contains(c.Message, "has not answered yet") {
			t.Errorf("condition %+v", c)
		}
		ports.become("")
		<-acquired
		c = status.ProgrammedCondition(a.refresh())
		if c.Message != "No complete state has been written to the kernel since the agent started or acquired ownership. If this lasts, see the agent's log on this node." {
			t.Errorf("once answered: %s", c.Message)
		}
	})
}
