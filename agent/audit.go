package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// auditInterval is the least time between two comparisons with Audit, and for
	// how long a difference must last to count: who maintains the rules needs a
	// moment for each change.
	auditInterval = 2 * time.Second
	// followTime is the same for what belongs to a Service that has changed within
	// this time. kube-proxy waits for a second after each sync, and a sync takes
	// long where there are many rules.
	followTime = 5 * time.Second
	// auditRest is how many times as long as a comparison took none is made
	// after it, up to longestAuditRest, so that a processor is busy with them for a
	// small part of the time however often rules change.
	auditRest        = 10
	longestAuditRest = 5 * time.Second
	// auditPatience is how long a change may wait to be compared before the
	// conditions say so: two comparisons of several seconds, and their rests.
	auditPatience = 30 * time.Second
)

// audit compares the kernel to what is wanted and writes nothing. The sync loop
// calls it in place of sync and verify while enforcement is Audit.
func (a *Agent) audit(ctx context.Context) error {
	if !a.store.ready() {
		return nil
	}
	start := a.options.Clock.Now()
	b, ok := a.store.prepareAudit(start)
	if !ok {
		return nil // Enforce, since we have asked: the settings have triggered what follows
	}
	outcomes := a.fanout.Audit(ctx, b.rulesets)
	if a.auditMode(ctx, b, outcomes) {
		if b, ok = a.store.prepareAudit(start); !ok {
			return nil
		}
		outcomes = a.fanout.Audit(ctx, b.rulesets)
	}
	end := a.options.Clock.Now()
	if ctx.Err() != nil {
		return nil
	}
	if a.store.currentEpoch() != b.epoch { // it tells of a kernel as it was
		a.loop.Trigger()
		return nil
	}
	a.noteVersion()
	a.excuseAudit(outcomes)
	first, waiting := a.store.audited(b, outcomes, end)
	a.pace(end.Sub(start))
	if waiting { // to see whether it lasts
		a.loop.Trigger()
	}
	err := dataplane.JoinErrors(outcomes)
	a.log.V(2).Info("Compared the kernel to what is wanted", "duration", end.Sub(start))
	a.logAudit(err)
	a.logAbsent(a.store.absences())
	a.logWarnings(a.store.warnings())
	if first {
		a.log.Info("The kernel is compared to what is wanted for the first time; enforcement is Audit, nothing is written", "duration", end.Sub(start))
	}
	a.noteReady()
	a.pokeStatus()
	return err
}

// excuseAudit takes the families out of the outcomes that the node lacks and
// nothing needs, as after an Apply.
func (a *Agent) excuseAudit(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Audit]) {
	results := map[dataplane.Family]dataplane.Outcome[dataplane.Result]{}
	for family, outcome := range outcomes {
		results[family] = dataplane.Outcome[dataplane.Result]{Err: outcome.Err}
	}
	a.store.excuse(results)
	maps.DeleteFunc(outcomes, func(family dataplane.Family, _ dataplane.Outcome[dataplane.Audit]) bool {
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
	a.loop.SetIntervals(max(minimum, auditInterval, min(auditRest*took, longestAuditRest)), verify)
}

func (a *Agent) logAudit(err error) {
	switch former, changed := a.news(failures, wording.OfError(err)); {
	case err != nil && changed:
		a.log.Error(err, "Could not compare the kernel to what is wanted; trying again with growing pauses")
	case err == nil && former != "":
		a.log.Info("Comparing the kernel to what is wanted works again")
	}
	d := a.store.snapshot().difference
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

// auditor decides which differences of one IP family count. It knows no clock.
type auditor struct {
	// seen is since when each difference has been there.
	seen map[string]time.Time
	// changed is when what is wanted of a Service last changed, lately when that
	// of any did; a zero time before the first comparison.
	changed map[dataplane.ServiceName]time.Time
	lately  time.Time
}

// change notes that what is wanted of Services has changed.
func (a *auditor) change(names map[dataplane.ServiceName]struct{}, now time.Time) {
	maps.DeleteFunc(a.changed, func(_ dataplane.ServiceName, at time.Time) bool { return now.Sub(at) > followTime })
	if a.seen == nil || len(names) == 0 { // nothing has been compared yet
		return
	}
	if a.changed == nil {
		a.changed = map[dataplane.ServiceName]time.Time{}
	}
	for name := range names {
		a.changed[name] = now
	}
	a.lately = now
}

// lasting returns those findings that have lasted, and whether there are others.
// A finding that was not there the last time begins anew.
func (a *auditor) lasting(findings []dataplane.Finding, now time.Time) (lasting []dataplane.Finding, others bool) {
	seen := make(map[string]time.Time, len(findings))
	for _, f := range findings {
		since, known := a.seen[f.Key]
		if !known {
			since = now
		}
		seen[f.Key] = since
		if known && now.Sub(since) >= a.need(f, now) {
			lasting = append(lasting, f)
		} else {
			others = true
		}
	}
	a.seen = seen
	return lasting, others
}

// need is for how long a finding must last to count.
func (a *auditor) need(f dataplane.Finding, now time.Time) time.Duration {
	changed := a.changed[f.Service]
	if f.Service == (dataplane.ServiceName{}) { // it may belong to any
		changed = a.lately
	}
	if !changed.IsZero() && now.Sub(changed) < followTime {
		return followTime
	}
	return auditInterval
}

// prepareAudit combines the dirty Services and returns the rulesets of all
// families, unless enforcement is not Audit any more: then what is compared would
// pass for written. Only the sync loop calls it, and only when ready.
func (s *store) prepareAudit(now time.Time) (batch, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inAudit() {
		return batch{}, false
	}
	s.combineDirty()
	b := s.takeBatch()
	b.applied.mode = s.auditedMode()
	for family, f := range s.families {
		f.audit.change(f.dirty, now)
		b.rulesets[family] = s.ruleset(family, f)
		b.rulesets[family].Mode = b.applied.mode
	}
	return b, true
}

// audited takes the outcome of a comparison. It reports whether it was the first
// complete one, and whether there are differences of which it is not known yet
// whether they last.
func (s *store) audited(b batch, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Audit], now time.Time) (first, waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.epoch != s.epoch {
		return false, true
	}
	failed := false
	for family, f := range s.families {
		outcome, tried := outcomes[family]
		switch {
		case !tried:
		case outcome.Err != nil:
			f.err, f.absent, failed = outcome.Err, nil, true
		default:
			waiting = f.compared(outcome.Value, now) || waiting
		}
	}
	if !failed {
		b.applied.lastSync = s.applied.lastSync
		s.applied = b.applied
	}
	s.noteServed(&b)
	first = !s.complete && s.allSettled()
	s.complete = s.complete || first
	return first, waiting
}

// compared takes what a comparison has found. It reports whether there are
// differences of which it is not known yet whether they last.
func (f *familyState) compared(found dataplane.Audit, now time.Time) bool {
	f.err, f.absent, f.done = nil, nil, true
	f.lastUpdated, f.applyingSince = now, time.Time{}
	f.refused = nil
	f.warnings, f.notes = slices.Clone(found.Warnings), nil
	f.dirty = map[dataplane.ServiceName]struct{}{}
	f.count(found.Counts, now)
	lasting, others := f.audit.lasting(found.Findings, now)
	f.difference = &dataplane.Difference{Count: len(lasting)}
	texts := make([]string, 0, len(lasting))
	for _, finding := range lasting {
		texts = append(texts, finding.Text)
	}
	slices.Sort(texts) // so that the same differences give the same examples
	f.difference.Examples = slices.Clone(texts[:min(len(texts), dataplane.MaxExamples)])
	return others
}

// auditCondition is the condition Programmed with Audit, once the kernel has
// been compared. What differs is in status.difference alone: where rules come and
// go, a message that told it would have the status written time and again.
func auditCondition(s snapshot, f facts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAuditInSync,
		Message: "the kernel holds what is wanted; enforcement is Audit: " + maintainer(f)}
	if d := s.difference; d != nil && d.Count > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonAuditDiffers
		c.Message = "the kernel differs from what is wanted: status.difference says where; enforcement is Audit: " + maintainer(f)
	}
	return c
}

// maintainer says who maintains the rules with Audit.
func maintainer(f facts) string {
	switch {
	case f.otherProxy != "" && f.otherGone.IsZero():
		return fmt.Sprintf("this agent writes nothing; another proxy runs on this node (%s)", f.otherProxy)
	case f.otherProxy != "":
		return fmt.Sprintf("this agent writes nothing; another proxy ran on this node (%s) and has shown no sign since %s", f.otherProxy, f.otherGone.UTC().Format(time.RFC3339))
	case f.unanswered:
		return "this agent writes nothing, and it cannot be told yet whether another proxy runs on this node"
	default:
		return "nobody maintains the rules, because this agent writes nothing and no other proxy shows on this node; start kube-proxy on it, or set spec.settings.enforcement to Enforce"
	}
}
