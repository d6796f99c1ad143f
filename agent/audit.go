package agent

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
)

// After a comparison none is made for auditRest times as long as it took, up to
// longestAuditRest: however often rules change, it costs a small part of a processor.
const (
	auditRest        = 10
	longestAuditRest = 5 * time.Second
)

// audit compares the kernel with the desired state and writes nothing. The sync loop calls it
// instead of sync and verify while enforcement is Audit.
func (a *Agent) audit(ctx context.Context) error {
	if !a.store.Ready() {
		return nil
	}
	start := a.options.Clock.Now()
	b, ok := a.store.PrepareAudit(start)
	if !ok {
		return nil // enforcement is Enforce now: the settings have triggered what follows
	}
	a.probeModes(ctx)
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
	if a.store.CurrentEpoch() != b.Epoch { // the result is about a former kernel
		a.loop.Trigger()
		return nil
	}
	a.noteVersion()
	a.excuseAudit(outcomes)
	first, waiting := a.store.Audited(b, outcomes, end)
	took := end.Sub(start)
	a.pace(took)
	if waiting { // to see whether it lasts
		a.loop.Trigger()
	}
	err := dataplane.JoinErrors(outcomes)
	a.log.V(2).Info("Compared the kernel with the desired state", "duration", took)
	a.logAudit(err)
	notices := a.store.Notices()
	a.logUnavailable(notices.Unavailable)
	a.logWarnings(notices.Warnings)
	if first {
		a.log.Info("Compared the kernel with the desired state for the first time; enforcement is Audit, nothing is written", "duration", took)
	}
	a.noteReady()
	a.pokeStatus()
	return err
}

// excuseAudit removes from the outcomes the families that the node lacks and nothing needs,
// as after an Apply.
func (a *Agent) excuseAudit(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference]) {
	results := map[dataplane.Family]dataplane.Outcome[dataplane.Result]{}
	for family, outcome := range outcomes {
		results[family] = dataplane.Outcome[dataplane.Result]{Err: outcome.Err}
	}
	a.store.Excuse(results)
	maps.DeleteFunc(outcomes, func(family dataplane.Family, _ dataplane.Outcome[dataplane.Difference]) bool {
		_, remains := results[family]
		return !remains
	})
}

// pace sets the time to the next comparison, given how long the last one took.
func (a *Agent) pace(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.settings == nil || !a.settings.Audit {
		return // noteObject has set the intervals
	}
	a.loop.SetIntervals(max(a.settings.MinInterval, desired.AuditInterval, min(auditRest*took, longestAuditRest)), a.settings.VerifyInterval)
}

func (a *Agent) logAudit(err error) {
	a.logFailure(failures, err, "Could not compare the kernel with the desired state; retrying", "Comparing the kernel with the desired state works again")
	d := a.store.Snapshot().Difference
	if d == nil {
		return
	}
	examples := wording.Examples(d.Examples)
	text := ""
	if d.Count > 0 {
		text = strings.Join(examples, "; ")
	}
	switch former, changed := a.noteChange(differences, text); {
	case text != "" && changed:
		a.log.Info("The kernel differs from the desired state; enforcement is Audit, so nothing is written", "differences", d.Count, "examples", examples)
	case text == "" && former != "":
		a.log.Info("The kernel no longer differs from the desired state")
	}
}
