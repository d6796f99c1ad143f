package agent

import (
	"errors"
	"testing"
	"time"
)

// probesDuringEvents returns how often other proxies are probed for in 10 s in
// which a watch brings 100 events a second.
func (r ownershipRig) probesDuringEvents() int {
	r.ports.become("")
	for range 1000 {
		r.changed()
		after(10 * time.Millisecond)
	}
	r.ports.mu.Lock()
	defer r.ports.mu.Unlock()
	return r.ports.probes
}

// TestEventsCauseNoProbes: what a watch brings shows nothing about other proxies.
func TestEventsCauseNoProbes(t *testing.T) {
	t.Run("with Audit", func(t *testing.T) {
		runAudit(t, func(t *testing.T, r ownershipRig) {
			after(time.Second)
			if got := r.probesDuringEvents(); got > 3 {
				t.Errorf("%d probes in 10 s", got)
			}
			r.rig.SetRules(r.rig.Node())
			r.changed()
			after(100 * time.Millisecond)
			if !r.owner.MayWrite() {
				t.Error("ownership is not acquired once enforcement is Enforce")
			}
		})
	})
	t.Run("where ownership cannot begin", func(t *testing.T) {
		runAudit(t, func(t *testing.T, r ownershipRig) {
			after(time.Second)
			r.spots.set(func(s *spots) { s.stuck = errors.New("the lock is held") })
			r.rig.SetRules(r.rig.Node())
			r.changed()
			after(time.Second)
			if got := r.probesDuringEvents(); got > 12 {
				t.Errorf("%d probes in 10 s", got)
			}
			r.spots.set(func(s *spots) { s.stuck = nil })
			after(time.Second)
			if !r.owner.MayWrite() {
				t.Error("ownership is not acquired once it can begin")
			}
		})
	})
}
