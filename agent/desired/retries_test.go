package desired

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// verify does what the sync loop does at a verification, and returns what a sync
// that follows did; "nothing" if none did.
func (r *rig) verify() string {
	r.t.Helper()
	rulesets := r.Verifiable()
	outcomes := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: r.kernel}).Verify(context.Background(), rulesets, dataplane.VerifyOptions{})
	if outcome := outcomes[dataplane.IPv4]; outcome.Err != nil || outcome.Value.Count != 0 {
		r.t.Errorf("verify: %+v", outcome)
	}
	if !r.Compared(r.actual.epoch, outcomes, nil, false) {
		return "nothing"
	}
	return r.sync()
}

// TestRefusedIsTriedAgain by itself, at verifications, and less and less often,
// since an administrator may have repaired the node.
func TestRefusedIsTriedAgain(t *testing.T) {
	r := running(t)
	for _, name := range []string{"a", "b"} {
		r.kernel.Refuse("shop", name, "no such match")
	}
	r.SetService(r.Service("a", 9))
	r.SetService(r.Service("b", 8))
	r.expectSync("partial a b")
	before, full := r.kernel.Tries("shop", "a"), 0
	now := agenttest.Epoch
	for now.Before(agenttest.Epoch.Add(time.Hour)) {
		now = now.Add(time.Minute)
		r.clock.SetTime(now)
		switch did := r.verify(); did {
		case "nothing", "partial":
		default:
			full++
		}
	}
	// After 1, 2, 4, 8, 16, 16 minutes.
	if tries := r.kernel.Tries("shop", "a") - before; tries != 6 || full != 0 {
		t.Errorf("tried %d times in an hour, %d of them not alone", tries, full)
	}
	if s := r.Snapshot(); len(s.Rejected) != 2 || !s.OldestPending.IsZero() || s.Err != nil {
		t.Errorf("refused %v, pending since %v, error %v", s.Rejected, s.OldestPending, s.Err)
	}

	r.SetService(r.Service("a", 7)) // a change is tried at once, and starts anew
	r.expectSync("partial a")
	before = r.kernel.Tries("shop", "a")
	other := r.kernel.Tries("shop", "b")
	r.clock.SetTime(now.Add(FirstRetryPause))
	if r.verify(); r.kernel.Tries("shop", "a") != before+1 || r.kernel.Tries("shop", "b") != other {
		t.Error("a change does not start the pauses anew, or those of another Service")
	}
	r.kernel.Refuse("shop", "a", "")
	r.clock.SetTime(now.Add(FirstRetryPause + 2*FirstRetryPause))
	if did := r.verify(); did != "partial" {
		t.Errorf("the last try did %q", did)
	}
	if s := r.Snapshot(); len(s.Rejected) != 1 {
		t.Errorf("still refused: %v", s.Rejected)
	}
}

// TestOthersChangeBesideARefusedService by partial syncs that do not try it.
func TestOthersChangeBesideARefusedService(t *testing.T) {
	r := running(t)
	r.kernel.Refuse("shop", "a", "no such match")
	r.SetService(r.Service("a", 9))
	r.expectSync("partial a")
	tries, writes := r.kernel.Tries("shop", "a"), r.kernel.Writes()
	for i := range 20 {
		r.SetService(r.Service("b", 10+i))
		r.expectSync("partial b")
		if did := r.verify(); did != "nothing" {
			t.Errorf("a verification did %q", did)
		}
	}
	if n := r.kernel.Tries("shop", "a"); n != tries || r.kernel.Writes() != writes+20 {
		t.Errorf("the refused Service was tried %d times, %d writes", n-tries, r.kernel.Writes()-writes)
	}
}

// TestRepairsLeaveARefusedServiceAlone: what others undo is repaired beside it.
func TestRepairsLeaveARefusedServiceAlone(t *testing.T) {
	r := running(t)
	r.kernel.Refuse("shop", "a", "no such match")
	r.SetService(r.Service("a", 9))
	r.expectSync("partial a")
	tries := r.kernel.Tries("shop", "a")
	r.kernel.Remove("shop", "b")
	outcomes := dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: r.kernel}).Verify(context.Background(), r.Verifiable(), dataplane.VerifyOptions{})
	if found := outcomes[dataplane.IPv4].Value; found.Count != 1 || !found.Drifted {
		t.Fatalf("found %+v", found)
	}
	if !r.Compared(r.actual.epoch, outcomes, nil, true) {
		t.Fatal("nothing is repaired")
	}
	r.expectSync("full, pruning")
	if r.kernel.Service("shop", "b") == nil || r.kernel.Tries("shop", "a") != tries {
		t.Errorf("kernel %v, %d tries", r.kernel.Services(), r.kernel.Tries("shop", "a")-tries)
	}
}

// TestSettingsHaveTheRefusedTried at once: they may be what was wrong.
func TestSettingsHaveTheRefusedTried(t *testing.T) {
	r := running(t)
	r.kernel.Refuse("shop", "a", "no such match")
	r.SetService(r.Service("a", 9))
	r.expectSync("partial a")
	r.kernel.Refuse("shop", "a", "")
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Masquerade.Bit = new(int32(15)) }))
	r.expectSync("full, pruning")
	if s := r.Snapshot(); len(s.Rejected) != 0 {
		t.Errorf("refused %v", s.Rejected)
	}
}

// TestSuspectedIsTriedSoon, however often it was: it may not be at fault.
func TestSuspectedIsTriedSoon(t *testing.T) {
	at := func(s string) dataplane.ServiceName { return dataplane.ServiceName{Namespace: "shop", Name: s} }
	result := &dataplane.Result{
		Rejected:  map[dataplane.ServiceName]string{at("bad"): "x", at("suspected"): "x"},
		Suspected: map[dataplane.ServiceName]struct{}{at("suspected"): {}},
	}
	tried := &dataplane.Ruleset{Services: map[dataplane.ServiceName]*dataplane.Service{at("bad"): {}, at("suspected"): {}}}
	var r retries
	now := agenttest.Epoch
	for range 10 {
		r = r.noted(result, tried, now)
	}
	if got := fmt.Sprint(r[at("bad")].at.Sub(now), r[at("suspected")].at.Sub(now)); got != "16m0s 1m0s" {
		t.Errorf("next tries after %s", got)
	}
}

// TestSuspectedIsTriedBesideOthers: an Apply that does not try it puts nothing off.
func TestSuspectedIsTriedBesideOthers(t *testing.T) {
	name := dataplane.ServiceName{Namespace: "shop", Name: "suspected"}
	result := &dataplane.Result{Rejected: map[dataplane.ServiceName]string{name: "x"}, Suspected: map[dataplane.ServiceName]struct{}{name: {}}}
	tried := &dataplane.Ruleset{Services: map[dataplane.ServiceName]*dataplane.Service{name: {}}}
	r := retries(nil).noted(result, tried, agenttest.Epoch)
	now := agenttest.Epoch
	for !r.due(now) {
		if now = now.Add(time.Second); now.Sub(agenttest.Epoch) > time.Minute {
			t.Fatal("it is not due after a minute")
		}
		tried.Rest = r.resting(nil, now)
		if len(tried.Rest) > 0 {
			r = r.noted(result, tried, now)
		}
	}
}

// TestAMarkDuringAnApplyIsNotLost: the Apply that runs began before the cause went.
func TestAMarkDuringAnApplyIsNotLost(t *testing.T) {
	for name, err := range map[string]error{"it succeeds": nil, "it fails": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			r := running(t)
			r.kernel.Refuse("shop", "a", "no such match")
			r.SetService(r.Service("a", 9))
			r.expectSync("partial a")
			begun := func() Batch {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.ledger.markFull()
				r.combineDirty()
				return r.takeBatch()
			}
			outcome := func(err error) map[dataplane.Family]dataplane.Outcome[dataplane.Result] {
				of := dataplane.Outcome[dataplane.Result]{Err: err}
				of.Value.Rejected = map[dataplane.ServiceName]string{{Namespace: "shop", Name: "a"}: "no such match"}
				return map[dataplane.Family]dataplane.Outcome[dataplane.Result]{dataplane.IPv4: of}
			}
			first := begun()
			second := begun() // marked while the first is applied
			r.Commit(first, outcome(err), nil)
			if rest := second.Rulesets[dataplane.IPv4].Rest; rest != nil {
				t.Errorf("%v are not tried", rest)
			}
			r.mu.Lock()
			r.ledger.markFull()
			r.mu.Unlock()
			r.Commit(second, outcome(err), nil)
			tries := r.kernel.Tries("shop", "a")
			r.expectSync("full, pruning")
			if r.kernel.Tries("shop", "a") == tries {
				t.Error("the mark is lost")
			}
		})
	}
}
