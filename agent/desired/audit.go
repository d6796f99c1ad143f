package desired

import (
	"maps"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

const (
	// AuditInterval is the least time between two comparisons with Audit, and how long a
	// difference must last to count: the proxy that maintains the rules needs a moment for
	// each change.
	AuditInterval = 2 * time.Second
	// followTime is the same for Services that have changed within this time. kube-proxy
	// waits for a second after each sync, and a sync of many rules takes long.
	followTime = 5 * time.Second
)

// auditor decides which differences of one IP family count. It knows no clock.
type auditor struct {
	// seen is since when each difference has been there.
	seen map[string]time.Time
	// changed is when the desired state of a Service last changed, lately when that of any
	// did; zero before the first comparison.
	changed map[dataplane.ServiceName]time.Time
	lately  time.Time
}

// change notes that the desired state of Services has changed.
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

// lasting returns the findings that have lasted, and whether there are others. A finding that
// was absent the last time begins anew.
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

// need is how long a finding must last to count.
func (a *auditor) need(f dataplane.Finding, now time.Time) time.Duration {
	changed := a.changed[f.Service]
	if f.Service == (dataplane.ServiceName{}) { // it may belong to any
		changed = a.lately
	}
	if !changed.IsZero() && now.Sub(changed) < followTime {
		return followTime
	}
	return AuditInterval
}

// PrepareAudit combines the dirty Services and returns the rulesets of all families, unless
// enforcement is no longer Audit: then what is compared would pass for written. Only the sync
// loop calls it, and only when ready.
func (s *Store) PrepareAudit(now time.Time) (Batch, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.own.audit() {
		return Batch{}, false
	}
	s.combineDirty()
	b := s.takeBatch()
	if !s.mode.known(s.own.settings) {
		b.applied.Mode = s.own.settings.Mode.Kernel()
	}
	for family, f := range s.families {
		f.audit.change(f.dirty, now)
		b.Rulesets[family] = s.ruleset(family, f)
		b.Rulesets[family].Mode = b.applied.Mode
	}
	return b, true
}

// Audited takes the outcome of a comparison. It reports whether it was the first complete one,
// and whether there are differences that may not last.
func (s *Store) Audited(b Batch, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference], now time.Time) (first, waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Epoch != s.actual.epoch {
		return false, true
	}
	failed := false
	for family, f := range s.families {
		outcome, tried := outcomes[family]
		switch {
		case !tried:
		case outcome.Err != nil:
			f.err, f.unavailable, failed = outcome.Err, nil, true
		default:
			waiting = f.compared(outcome.Value, now) || waiting
		}
	}
	return s.noteApplied(b, failed), waiting
}

// compared takes what a comparison has found. It reports whether there are differences that may
// not last.
func (f *familyState) compared(found dataplane.Difference, now time.Time) bool {
	f.err, f.unavailable, f.done = nil, nil, true
	f.lastUpdated, f.rejected = now, nil
	f.written()
	f.warnings, f.notes = slices.Clone(found.Warnings), nil
	f.count(found.Counts, now, found.Unread)
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
