package agent

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// After a comparison none is made for auditRest times as long as it took, up to
// longestAuditRest: however often rules change, it costs a small part of a
// processor.
const (
	auditRest        = 10
	longestAuditRest = 5 * time.Second
)

// audit compares the kernel to what is wanted and writes nothing. The sync loop
// calls it in place of sync and verify while enforcement is Audit.
func (a *Agent) audit(ctx context.Context) error {
	if !a.store.Ready() {
		return nil
	}
	start := a.options.Clock.Now()
	b, ok := a.store.PrepareAudit(start)
	if !ok {
		return nil // Enforce, since we have asked: the settings have triggered what follows
	}
	outcomes := a.fanout.Verify(ctx, b.Rulesets, dataplane.VerifyOptions{Audit: true})
	if a.auditMode(ctx, b, outcomes) {
		if b, ok = a.store.PrepareAudit(start); !ok {
			return nil
		}
		outcomes = a.fanout.Verify(ctx, b.Rulesets, dataplane.VerifyOptions{Audit: true})
	}
	end := a.options.Clock.Now()
	if ctx.Err() != nil {
		return nil
	}
	if a.store.CurrentEpoch() != b.Epoch { // it tells of a kernel as it was
		a.loop.Trigger()
		return nil
	}
	a.noteVersion()
	a.excuseAudit(outcomes)
	first, waiting := a.store.Audited(b, outcomes, end)
	a.pace(end.Sub(start))
	if waiting { // to see whether it lasts
		a.loop.Trigger()
	}
	err := dataplane.JoinErrors(outcomes)
	a.log.V(2).Info("Compared the kernel to what is wanted", "duration", end.Sub(start))
	a.logAudit(err)
	a.logAbsent(a.store.Absences())
	a.logWarnings(a.store.Warnings())
	if first {
		a.log.Info("The kernel is compared to what is wanted for the first time; enforcement is Audit, nothing is written", "duration", end.Sub(start))
	}
	a.noteReady()
	a.pokeStatus()
	return err
}

// excuseAudit takes the families out of the outcomes that the node lacks and
// nothing needs, as after an Apply.
func (a *Agent) excuseAudit(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference]) {
	results := map[dataplane.Family]dataplane.Outcome[dataplane.Result]{}
	for family, outcome := range outcomes {
		results[family] = dataplane.Outcome[dataplane.Result]{Err: outcome.Err}
	}
	a.store.Excuse(results)
	maps.DeleteFunc(outcomes, func(family dataplane.Family, _ dataplane.Outcome[dataplane.Difference]) bool {
		_, kept := results[family]
		return !kept
	})
}

// pace sets the time to the next comparison, given how long the last one took.
func (a *Agent) pace(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.settings == nil || *a.settings.Enforcement != v1alpha1.Audit {
		return // noteObject has set what is to be from now on
	}
	minimum, verify := intervals(a.settings)
	a.loop.SetIntervals(max(minimum, desired.AuditInterval, min(auditRest*took, longestAuditRest)), verify)
}

func (a *Agent) logAudit(err error) {
	switch former, changed := a.news(failures, wording.OfError(err)); {
	case err != nil && changed:
		a.log.Error(err, "Could not compare the kernel to what is wanted; trying again with growing pauses")
	case err == nil && former != "":
		a.log.Info("Comparing the kernel to what is wanted works again")
	}
	d := a.store.Snapshot().Difference
	if d == nil {
		return
	}
	text := ""
	if d.Count > 0 {
		text = strings.Join(wording.Examples(d.Examples), "; ")
	}
	switch former, changed := a.news(differences, text); {
	case text != "" && changed:
		a.log.Info("The kernel differs from what is wanted; enforcement is Audit, so it stays", "differences", d.Count, "examples", wording.Examples(d.Examples))
	case text == "" && former != "":
		a.log.Info("The kernel holds what is wanted again")
	}
}
