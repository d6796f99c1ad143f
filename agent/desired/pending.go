package desired

import "time"

// BesideOther notes whether another proxy maintains the rules of the node. What
// has changed meanwhile does not wait for us; what has by the time we take over,
// waits from then on.
func (s *Store) BesideOther(other bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.otherProxy && !other {
		s.waitAnew(s.clock.Now())
	}
	s.otherProxy = other
	if other {
		s.ran = "" // what stands there is the other one's
	}
}

// waitAnew has everything that waits wait from now on. The caller holds mu.
func (s *Store) waitAnew(now time.Time) {
	for _, f := range s.families {
		if !f.pendingSince.IsZero() {
			f.pendingSince = now
		}
		if !f.applyingSince.IsZero() {
			f.applyingSince = now
		}
	}
}

// waits returns when the oldest change came that the kernel does not hold and
// that waits for us; zero: none. The caller holds mu.
func (s *Store) waits(f *familyState) time.Time {
	if s.removal.Wanted || s.otherProxy && !s.inAudit() {
		return time.Time{}
	}
	return f.oldestPending()
}
