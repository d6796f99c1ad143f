package desired

import (
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Verifiable returns the rulesets of the families that have nothing to apply,
// so that the kernel should hold exactly them. Only the sync loop calls it.
func (s *Store) Verifiable() map[dataplane.Family]*dataplane.Ruleset {
	s.mu.Lock()
	defer s.mu.Unlock()
	rulesets := map[dataplane.Family]*dataplane.Ruleset{}
	for family, f := range s.families {
		if f.done && !f.full && !f.recheck && len(f.dirty) == 0 {
			rulesets[family] = s.ruleset(family, f)
		}
	}
	return rulesets
}

// Recheck asks for an Apply of a family because facts of the node that its
// data plane follows have changed.
func (s *Store) Recheck(family dataplane.Family) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.families[family]
	f.recheck = true
	if f.pendingSince.IsZero() {
		f.pendingSince = s.clock.Now()
	}
}

// CurrentEpoch changes whenever what is known of the kernel is dropped; see forget.
func (s *Store) CurrentEpoch() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// Compared takes the outcome of a comparison that began in an epoch. It reports
// whether some family differs, could not be read, or was absent, and therefore
// needs a full pass; but for those in later, which will be compared again. Unless
// it was but a look at what others have changed, warnings are tried again, too, and
// refused Services whose time has come, these by themselves.
func (s *Store) Compared(epoch int, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference], later map[dataplane.Family]bool, look bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if epoch != s.epoch {
		return false // our turn has ended: it is about to be compared anew, if at all
	}
	now := s.clock.Now()
	again := false
	for _, f := range s.families {
		if f.absent != nil && !look { // somebody may have mended the node
			again, f.retry = true, true
		}
	}
	for family, outcome := range outcomes {
		f := s.families[family]
		if outcome.Err == nil {
			f.difference = &outcome.Value
			f.count(outcome.Value.Counts, now)
		}
		if outcome.Err != nil || outcome.Value.Count > 0 && !later[family] || !look && f.retriable(&outcome.Value, now) {
			again, f.full = true, true
			if f.pendingSince.IsZero() {
				f.pendingSince = now
			}
		}
		again = again || !look && f.rejected.due(now)
		if later[family] && f.pendingSince.IsZero() {
			f.pendingSince = now // the kernel does not hold what is wanted meanwhile
		}
	}
	return again
}

// retryShare bounds what it costs to try what was warned of again: a full pass that took a second is not followed by another on that account for as
// many seconds. One that took less than cheapPass is nothing to spare.
const (
	retryShare = 50
	cheapPass  = 100 * time.Millisecond
)

// retriable reports whether what was warned of may work by now, as where somebody
// has loaded a module, and is due to be tried again.
func (f *familyState) retriable(d *dataplane.Difference, now time.Time) bool {
	if len(f.warnings) == 0 && len(d.Warnings) == 0 {
		return false
	}
	return f.fullTook < cheapPass || !now.Before(f.fullEnd.Add(retryShare*f.fullTook))
}
