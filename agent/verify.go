package agent

import (
	"context"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
)

// checkAgainPause is the time until a comparison that was not possible is tried again.
const checkAgainPause = time.Second

// verify compares the whole kernel with the desired state and repairs it. The sync loop calls
// it.
func (a *Agent) verify(ctx context.Context) error {
	if a.store.CurrentRemoval().Requested {
		return nil
	}
	if a.store.Auditing() {
		a.store.DoubtMode()
		a.loop.Trigger()
		return nil
	}
	if !a.owner.MayWrite() || !a.owner.Check(ctx, false) {
		return nil
	}
	if a.recheckMode(ctx) || a.tune() {
		return a.sync(ctx) // which compares everything
	}
	a.probeModes(ctx)
	epoch := a.store.CurrentEpoch()
	return a.compare(ctx, epoch, a.store.Verifiable(), false)
}

// noticed is called when another program may have changed a family's rules.
func (a *Agent) noticed(family dataplane.Family, c dataplane.Change) {
	a.log.V(2).Info("Another program may have changed rules; comparing", "ipFamily", family, "by", c.By)
	a.loop.CheckBy(a.drift.Noticed(family, c))
}

// checkRules compares the families whose rules another program may have changed. The sync
// loop calls it.
func (a *Agent) checkRules(ctx context.Context) error {
	families := a.drift.TakeDue()
	if a.store.Auditing() {
		a.loop.Trigger()
		return nil
	}
	if !a.owner.MayWrite() {
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
			a.checkAgain(family, a.options.Clock.Now().Add(checkAgainPause))
		}
	}
	return a.compare(ctx, epoch, rulesets, true)
}

func (a *Agent) checkAgain(family dataplane.Family, at time.Time) {
	a.drift.CheckAgain(family)
	a.loop.CheckBy(at)
}

// compare compares the kernel with rulesets of an epoch of the store and repairs what
// differs. With suspected, only changes by other programs count.
func (a *Agent) compare(ctx context.Context, epoch int, rulesets map[dataplane.Family]*dataplane.Ruleset, suspected bool) error {
	start := a.options.Clock.Now()
	outcomes := a.fanout.Verify(ctx, rulesets, dataplane.VerifyOptions{Suspected: suspected})
	now := a.options.Clock.Now()
	drifted := a.drift.Compared(outcomes, now, now.Sub(start))
	if a.store.CurrentEpoch() != epoch {
		a.drift.Forget() // ownership has ended: the differences are no drift
		return nil
	}
	a.metrics.Compared(outcomes)
	clear := len(drifted) == 0 || a.owner.Check(ctx, false) // the change may be the first indication of another proxy
	later := map[dataplane.Family]bool{}
	for family, at := range drifted {
		if retry := now.Add(checkAgainPause); !clear && retry.After(at) {
			at = retry
		}
		if later[family] = at.After(now); later[family] {
			a.checkAgain(family, at)
		}
	}
	again := a.store.Compared(epoch, outcomes, later, suspected)
	for family, outcome := range outcomes {
		if outcome.Value.Count == 0 {
			continue
		}
		message := "The kernel differs from the desired state; repairing"
		switch {
		case !clear:
			message = "Rules were modified externally; leaving them, because another proxy may be active"
		case later[family]:
			message = "Rules were modified externally again; repairing them after a pause"
		}
		a.log.Info(message, "ipFamily", family, "differences", outcome.Value.Count, "examples", wording.Examples(outcome.Value.Examples), "changedBy", a.drift.By(family))
	}
	if again { // also what could not be verified
		return a.sync(ctx) // before it is reported: most of it does not last
	}
	a.pokeStatus()
	return nil
}
