package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
)

// TestNothingIsPendingBesideAnotherProxy, which maintains the rules. What the
// first set of a takeover brings waits since then only: load balancers need not
// leave a node whose rules are good.
func TestNothingIsPendingBesideAnotherProxy(t *testing.T) {
	runOwnership(t, func(t *testing.T, r ownershipRig) {
		pending := func(when string, want time.Duration) {
			t.Helper()
			s, h := r.store.Snapshot(), r.proxyState()
			age := func(since time.Time) time.Duration {
				if since.IsZero() {
					return 0
				}
				return s.Now.Sub(since)
			}
			if got := []time.Duration{age(s.OldestPending), age(h.Families["IPv4"].OldestPending)}; got[0] != want || got[1] != want {
				t.Errorf("%s: changes wait for %v, want %v", when, got, want)
			}
		}
		after(time.Second)
		r.ports.become("kube-proxy answers")
		r.spots.set(func(s *spots) { s.appears = "chain KUBE-PROXY-CANARY" })
		after(time.Second)
		pending("once another proxy is detected", 0)
		r.rig.SetService(r.rig.Service("b", 2))
		r.rig.SetInventory(agenttest.InventoryOf("shop.a", "shop.b"))
		r.changed()
		after(5 * time.Minute)
		pending("beside another proxy", 0)

		r.kernel.Fail(errors.New("the lock is held"))
		r.spots.set(func(s *spots) { s.stuck = errors.New("the lock is held") })
		r.ports.become("")
		for r.condition(); factsOf(r.Agent).Conflict() != ""; after(100 * time.Millisecond) {
			pending("while the other proxy may return", 0)
		}
		pending("at the takeover", 0)
		after(7 * time.Second)
		pending("while the takeover cannot begin", 7*time.Second)
		r.spots.set(func(s *spots) { s.stuck = nil })
		for !r.owner.MayWrite() {
			after(100 * time.Millisecond)
		}
		pending("as ownership begins", 0)
		after(50 * time.Second)
		pending("while the first set is late", 50*time.Second)
		r.kernel.Fail(nil)
		after(time.Minute)
		pending("with the first set", 0)
	})
}
