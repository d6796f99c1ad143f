package agent

import (
	"context"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
)

// lookAgainPause is the time until a look that could not be taken is tried
// again.
const lookAgainPause = time.Second

// verify compares the whole kernel to what is wanted and repairs it. The sync
// loop calls it.
func (a *Agent) verify(ctx context.Context) error {
	if a.store.Removing() {
		return nil
	}
	if a.store.Auditing() {
		a.store.DoubtMode()
		a.loop.Trigger()
		return nil
	}
	if !a.mayWrite() || !a.stillOurTurn(ctx, false) {
		return nil
	}
	if a.lookAtMode(ctx) || a.retuneTracking() {
		return a.sync(ctx) // which compares everything
	}
	epoch := a.store.CurrentEpoch()
	return a.compare(ctx, epoch, a.store.Verifiable(), false)
}

// noticed is called when somebody else may have changed a family's rules.
func (a *Agent) noticed(family dataplane.Family, c dataplane.Change) {
	a.log.V(2).Info("Somebody else may have changed rules of ours; looking", "ipFamily", family, "by", c.By)
	a.loop.LookBy(a.drift.Noticed(family, c))
}

// lookAtRules compares the families of which somebody else may have changed
// rules. The sync loop calls it.
func (a *Agent) lookAtRules(ctx context.Context) error {
	families := a.drift.TakeLooks()
	if a.store.Auditing() {
		a.loop.Trigger()
		return nil
	}
	if !a.mayWrite() {
		return nil // before the first write after that everything is compared
	}
	epoch := a.store.CurrentEpoch()
	rulesets := a.store.Verifiable()
	for family := range rulesets {
		if !slices.Contains(families, family) {
			delete(rulesets, family)
		}
	}
	for _, family := range families {
		if rulesets[family] == nil { // it is about to be written
			a.lookAgain(family, a.options.Clock.Now().Add(lookAgainPause))
		}
	}
	return a.compare(ctx, epoch, rulesets, true)
}

func (a *Agent) lookAgain(family dataplane.Family, at time.Time) {
	a.drift.LookAgain(family)
	a.loop.LookBy(at)
}

// compare compares the kernel to rulesets, which are of an epoch of the store, and
// repairs what differs. A look is at changes by others alone.
func (a *Agent) compare(ctx context.Context, epoch int, rulesets map[dataplane.Family]*dataplane.Ruleset, look bool) error {
	start := a.options.Clock.Now()
	outcomes := a.fanout.Verify(ctx, rulesets, dataplane.VerifyOptions{})
	now := a.options.Clock.Now()
	drifted := a.drift.Compared(outcomes, now, now.Sub(start))
	if a.store.CurrentEpoch() != epoch {
		a.drift.Forget() // our turn has ended meanwhile: what was found is others' now
		return nil
	}
	a.metrics.Compared(outcomes)
	clear := len(drifted) == 0 || a.stillOurTurn(ctx, false) // the change may be the first sign of another proxy
	later := map[dataplane.Family]bool{}
	for family, at := range drifted {
		if !clear {
			if retry := now.Add(lookAgainPause); retry.After(at) {
				at = retry
			}
		}
		if later[family] = at.After(now); later[family] {
			a.lookAgain(family, at)
		}
	}
	again := a.store.Compared(epoch, outcomes, later, look)
	for family, outcome := range outcomes {
		if outcome.Value.Count == 0 {
			continue
		}
		message := "The kernel differed from what is wanted; repairing"
		if later[family] {
			message = "Somebody else has undone rules again; repairing them after a pause"
		}
		if !clear {
			message = "Rules have been changed; leaving them, because another proxy may be active"
		}
		a.log.Info(message, "ipFamily", family, "differences", outcome.Value.Count, "examples", wording.Examples(outcome.Value.Examples), "changedBy", a.drift.By(family))
	}
	if again { // also what could not be verified
		return a.sync(ctx) // before it is told: most of it does not last
	}
	a.pokeStatus()
	return nil
}
