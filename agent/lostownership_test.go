package agent

import (
	"context"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// slowPlane is a data plane on which something happens before a call ends.
type slowPlane struct {
	*dataplanetest.Fake
	ending func()
}

func (p *slowPlane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	defer p.ending()
	return p.Fake.Apply(ctx, r)
}

func (p *slowPlane) Verify(ctx context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	defer p.ending()
	return p.Fake.Verify(ctx, r, o)
}

// losing has an agent lose ownership within each call of its data plane.
func losing(a *Agent, kernel *dataplanetest.Fake) {
	a.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: &slowPlane{kernel, func() {
		lose(a)
		a.store.Forget()
		a.drift.Forget()
	}}})
}

// TestComparisonAfterLostOwnershipIsIgnored.
func TestComparisonAfterLostOwnershipIsIgnored(t *testing.T) {
	a, _, kernel, _ := owningAgent(t)
	mustSync(t, a)
	losing(a, kernel)
	kernel.Remove("shop", "a")
	mustVerify(t, a)
	if s := a.store.Snapshot(); s.Difference != nil || s.Kernel != nil {
		t.Errorf("the status reports a kernel that others write: %+v", s.Difference)
	}
	full := map[dataplane.Family]dataplane.Outcome[dataplane.Result]{dataplane.IPv4: {Value: dataplane.Result{Kind: v1alpha1.SyncFull}}}
	if repaired := a.drift.Synced(full, false); len(repaired) > 0 {
		t.Error("what others have changed since is still to be repaired")
	}
}

// TestStoreIgnoresAnOldComparison is about one from before ownership was lost.
func TestStoreIgnoresAnOldComparison(t *testing.T) {
	a, _, kernel, _ := owningAgent(t)
	mustSync(t, a)
	epoch, rulesets := a.store.CurrentEpoch(), a.store.Verifiable()
	kernel.Remove("shop", "a")
	outcomes := a.fanout.Verify(t.Context(), rulesets, dataplane.VerifyOptions{})
	a.store.Forget()
	if a.store.Compared(epoch, outcomes, nil, false) || a.store.Snapshot().Difference != nil {
		t.Error("a comparison from before ownership was lost counts")
	}
}

// TestNothingIsTunedBesideAnotherProxy that came while rules were written.
func TestNothingIsTunedBesideAnotherProxy(t *testing.T) {
	for name, ending := range map[string]func(*Agent){
		"lost":                lose,
		"lost, and forgotten": func(a *Agent) { lose(a); a.store.Forget() },
	} {
		t.Run(name, func(t *testing.T) {
			a, _, kernel, _ := owningAgent(t)
			fake := tracked(a)
			fake.tuned = conntrack.Tuned{Untracked: true}
			a.fanout = dataplane.NewFanout(map[dataplane.Family]dataplane.Dataplane{dataplane.IPv4: &slowPlane{kernel, func() { ending(a) }}})
			mustSync(t, a)
			fake.expect(t, "before the rules alone", 0)
		})
	}
}

// TestLostOwnershipLeavesNoTrace of what a write that outlived it has reported.
func TestLostOwnershipLeavesNoTrace(t *testing.T) {
	a, _, kernel, _ := owningAgent(t)
	mustSync(t, a)
	losing(a, kernel)
	kernel.Lack("no nat table")
	a.store.Refresh()
	mustSync(t, a)
	if absent, err := a.store.Notices().Unavailable, a.store.Snapshot().Err; len(absent) > 0 || err != nil {
		t.Errorf("absent: %v, error: %v", absent, err)
	}
}

// TestAuditComesBetween the question whether we may write and the writing.
func TestAuditComesBetween(t *testing.T) {
	a, r, kernel, _ := owningAgent(t)
	fake := tracked(a)
	fake.onTune = func() { r.SetRules(r.Node(inAudit)) }
	mustSync(t, a)
	if kernel.Writes() != 0 {
		t.Error("written in Audit")
	}
	b, ok := a.store.PrepareAudit(agenttest.Epoch)
	if !ok || len(b.Rulesets[dataplane.IPv4].Services) != 1 {
		t.Errorf("there is nothing to compare: %+v", b.Rulesets)
	}
}
