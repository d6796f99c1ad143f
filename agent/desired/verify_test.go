package desired

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestDriftChecksDoNotRetry: what is rejected or warned of is tried again by
// verifications, and not more often than a full pass is worth.
func TestDriftChecksDoNotRetry(t *testing.T) {
	r := running(t)
	clk := clocktesting.NewFakePassiveClock(agenttest.Epoch)
	r.Store.clock = clk
	full := func(warnings []string, took int64) {
		b := r.prepare()
		b.Rulesets = map[dataplane.Family]*dataplane.Ruleset{dataplane.IPv4: {}}
		r.Commit(b, map[dataplane.Family]dataplane.Outcome[dataplane.Result]{
			dataplane.IPv4: {Value: dataplane.Result{Kind: v1alpha1.SyncFull, Warnings: warnings}},
		}, &v1alpha1.SyncReport{DurationMilliseconds: took})
	}
	same := map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{dataplane.IPv4: {}}
	full([]string{"a sysctl"}, 3000)
	if r.Compared(r.actual.epoch, same, nil, true) {
		t.Error("a check retries")
	}
	if r.Compared(r.actual.epoch, same, nil, false) {
		t.Error("tried again at once although a pass takes 3 s")
	}
	clk.SetTime(agenttest.Epoch.Add(149 * time.Second))
	if r.Compared(r.actual.epoch, same, nil, false) {
		t.Error("tried again after 149 s although a pass takes 3 s")
	}
	clk.SetTime(agenttest.Epoch.Add(150 * time.Second))
	if !r.Compared(r.actual.epoch, same, nil, false) {
		t.Error("not tried again")
	}
	full(nil, 3000)
	clk.SetTime(agenttest.Epoch.Add(time.Hour))
	if r.Compared(r.actual.epoch, same, nil, false) {
		t.Error("tried again with nothing to try")
	}
}

// TestVerifiedTimeIsThatOfAReading: a verification that reads nothing does not change it.
func TestVerifiedTimeIsThatOfAReading(t *testing.T) {
	r := running(t)
	clk := clocktesting.NewFakePassiveClock(agenttest.Epoch)
	r.Store.clock = clk
	for i, unread := range []bool{false, true, true, false} {
		clk.SetTime(agenttest.Epoch.Add(time.Duration(i) * time.Minute))
		r.Compared(r.actual.epoch, map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{
			dataplane.IPv4: {Value: dataplane.Difference{Unread: unread, Counts: dataplane.Counts{dataplane.Chains: 10 + i}}},
		}, nil, false)
		want := agenttest.Epoch.Add(time.Duration(i) * time.Minute)
		if unread {
			want = agenttest.Epoch
		}
		if k := r.Snapshot().Kernel; k == nil || !k.At.Equal(want) || k.Counts[dataplane.Chains] != 10+i {
			t.Errorf("verification %d: %+v, want that of %v", i, k, want)
		}
	}
}

// TestRepair: only what another program has changed is repaired as such; anything else that takes a full
// pass comes first.
func TestRepair(t *testing.T) {
	const ipv4 = dataplane.IPv4
	differs, drifted := dataplane.Difference{Count: 1}, dataplane.Difference{Count: 1, Drifted: true}
	for name, c := range map[string]struct {
		found  dataplane.Difference
		before func(r *rig)
		after  func(r *rig)
		repair bool
	}{
		"another program":               {found: drifted, repair: true},
		"no other program":              {found: differs},
		"a full pass was needed before": {found: drifted, before: func(r *rig) { r.ledger.markFull() }},
		"a full pass is needed now":     {found: drifted, after: func(r *rig) { r.ledger.markFull() }},
		"it failed before":              {found: drifted, before: func(r *rig) { r.families[ipv4].need = fullPass }},
	} {
		r := running(t)
		if c.before != nil {
			c.before(r)
		}
		if !r.Compared(r.actual.epoch, map[dataplane.Family]dataplane.Outcome[dataplane.Difference]{ipv4: {Value: c.found}}, nil, true) {
			t.Errorf("%s: nothing follows", name)
		}
		if c.after != nil {
			c.after(r)
		}
		if set := r.prepare().Rulesets[ipv4]; !set.Full || set.Repair != c.repair {
			t.Errorf("%s: full %v, repair %v", name, set.Full, set.Repair)
		}
		if set := r.ruleset(ipv4, r.families[ipv4]); set.Full || set.Repair {
			t.Errorf("%s: needed again", name)
		}
	}
}
