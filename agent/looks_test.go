package agent

import (
	"errors"
	"testing"
	"time"
)

// looksDuringEvents returns how often other proxies are looked for in 10 s in
// which a watch brings 100 events a second.
func (r turning) looksDuringEvents() int {
	r.ports.become("")
	for range 1000 {
		r.changed()
		after(10 * time.Millisecond)
	}
	r.ports.mu.Lock()
	defer r.ports.mu.Unlock()
	return r.ports.looks
}

// TestEventsCauseNoLooks: what a watch brings tells nothing of other proxies.
func TestEventsCauseNoLooks(t *testing.T) {
	t.Run("with Audit", func(t *testing.T) {
		takingTurns(t, func(t *testing.T, r turning) {
			r.rig.SetRules(r.rig.Node(inAudit))
			r.changed()
			after(time.Second)
			if got := r.looksDuringEvents(); got > 3 {
				t.Errorf("%d looks in 10 s", got)
			}
			r.rig.SetRules(r.rig.Node())
			r.changed()
			after(100 * time.Millisecond)
			if !r.owner.MayWrite() {
				t.Error("the turn is not taken once enforcement is Enforce")
			}
		})
	})
	t.Run("where a turn cannot begin", func(t *testing.T) {
		takingTurns(t, func(t *testing.T, r turning) {
			r.rig.SetRules(r.rig.Node(inAudit))
			r.changed()
			after(time.Second)
			r.spots.set(func(s *spots) { s.stuck = errors.New("the lock is held") })
			r.rig.SetRules(r.rig.Node())
			r.changed()
			after(time.Second)
			if got := r.looksDuringEvents(); got > 12 {
				t.Errorf("%d looks in 10 s", got)
			}
			r.spots.set(func(s *spots) { s.stuck = nil })
			after(time.Second)
			if !r.owner.MayWrite() {
				t.Error("the turn is not taken once it can begin")
			}
		})
	})
}
