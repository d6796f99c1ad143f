package desired

import (
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Verifiable returns the rulesets of the families that have nothing to apply, so that the
// kernel should have exactly them. Only the sync loop calls it.
func (s *Store) Verifiable() map[dataplane.Family]*dataplane.Ruleset {
	s.mu.Lock()
	defer s.mu.Unlock()
	rulesets := map[dataplane.Family]*dataplane.Ruleset{}
	for family, f := range s.families {
		if f.done && f.need == nothing && !f.recheck && len(f.dirty) == 0 {
			rulesets[family] = s.ruleset(family, f)
		}
	}
	return rulesets
}

// Compared takes the outcome of a comparison that began in an epoch. It reports whether some
// family differs, could not be read, or was unavailable, and therefore needs a full pass; but
// for those in later, which will be compared again. Unless it only looked for changes by other
// programs, what caused warnings is also tried again, and so are rejected Services that are due.
func (s *Store) Compared(epoch int, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference], later map[dataplane.Family]bool, suspected bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.actual.epoch {
		return false // ownership has ended: everything is about to be compared anew, if at all
	}
	now := s.clock.Now()
	again := false
	for _, f := range s.families {
		if f.unavailable != nil && !suspected { // an administrator may have repaired the node
			again, f.retry = true, true
		}
	}
	for family, outcome := range outcomes {
		f := s.families[family]
		if outcome.Err == nil {
			f.difference = &outcome.Value
			f.count(outcome.Value.Counts, now, outcome.Value.Unread)
		}
		takes := nothing
		switch differs := outcome.Value.Count > 0 && !later[family]; {
		case outcome.Err != nil, !suspected && f.retriable(&outcome.Value, now), differs && !outcome.Value.Drifted:
			takes = fullPass
		case differs:
			takes = repair
		}
		if takes != nothing {
			again, f.need = true, max(f.need, takes)
			f.wait(now)
		}
		again = again || !suspected && f.rejected.due(now)
		if later[family] {
			f.wait(now) // the kernel lacks the desired state meanwhile
		}
	}
	return again
}

// retryShare limits the cost of retries of what caused warnings: a full pass that took a second
// is not repeated because of them for as many seconds. One that took less than cheapPass is
// always repeated.
const (
	retryShare = 50
	cheapPass  = 100 * time.Millisecond
)

// retriable reports whether what caused warnings may work by now, for example because a module
// was loaded, and is due to be tried again.
func (f *familyState) retriable(d *dataplane.Difference, now time.Time) bool {
	if len(f.warnings) == 0 && len(d.Warnings) == 0 {
		return false
	}
	return f.fullTook < cheapPass || !now.Before(f.fullEnd.Add(retryShare*f.fullTook))
}
