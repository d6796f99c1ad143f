package desired

import (
	"maps"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
)

// Health is the store's part of the proxy's health. While the store is busy, such as with a
// Service at the limits, it is what was last known: no probe waits, and a change that waits
// for the kernel ages all the same.
func (s *Store) Health() health.State {
	if s.mu.TryLock() {
		defer s.mu.Unlock()
		now := s.currentHealth()
		s.lastHealth.Store(&now)
		return now
	}
	out := *s.lastHealth.Load()
	out.Now = s.clock.Now()
	return out
}

// currentHealth is Health. The caller holds mu.
func (s *Store) currentHealth() health.State {
	out := health.State{
		Now: s.clock.Now(), Families: make(map[string]health.FamilyState, len(s.families)),
		Eligible: s.own.eligible(s.restored.Rules), Withheld: s.restored.stale(),
	}
	for family, f := range s.families {
		if f.unsupported() && s.families.someDone() {
			continue // as with kube-proxy, the node serves the other one
		}
		out.Families[string(family)] = health.FamilyState{LastUpdated: f.lastUpdated, OldestPending: s.waits(f)}
	}
	return out
}

// someDone reports whether the node programs some family.
func (all families) someDone() bool {
	return some(maps.Values(all), func(f *familyState) bool { return f.done })
}

// waits returns when the oldest change came that the kernel lacks and that waits for us; zero:
// none. The caller holds mu.
func (s *Store) waits(f *familyState) time.Time {
	if s.removal.Requested || s.actual.otherProxy && !s.own.audit() {
		return time.Time{}
	}
	return f.oldest()
}

// eligible reports whether load balancers may send new connections to the node, by what is
// known of the Node.
func (o *ownObject) eligible(restored bool) bool {
	if o.rules != nil {
		return !o.rules.Spec.Node.Draining
	}
	return restored && !o.current.Spec.Node.Draining
}

// UpdateHealthChecks determines what a family's health checks answer after a success, and on which
// addresses.
func (s *Store) UpdateHealthChecks(family dataplane.Family) (map[dataplane.ServiceName]health.Check, dataplane.NodePorts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.families[family]
	if !f.done || s.own.current == nil {
		return map[dataplane.ServiceName]health.Check{}, dataplane.NodePorts{}, nil
	}
	node := s.own.nodes[family]
	nodePorts, err := dataplane.NodePortsOf(family, &node)
	return f.updateAnswers(s.ledger.deferred), nodePorts, err
}

// updateAnswers determines what the health checks answer from now on.
func (f *familyState) updateAnswers(deferred map[dataplane.ServiceName]deferral) map[dataplane.ServiceName]health.Check {
	out := make(map[dataplane.ServiceName]health.Check, len(f.checked))
	for name, svc := range f.checked {
		check := health.Check{Port: svc.HealthCheckNodePort, LocalEndpoints: svc.LocalReady}
		r, rejected := f.rejected[name]
		if _, waits := deferred[name]; waits || rejected && !r.reduced {
			// The kernel has former rules, if any, which may lead to fewer endpoints.
			check.LocalEndpoints = min(check.LocalEndpoints, f.answered[name].LocalEndpoints)
		}
		out[name] = check
	}
	f.answered = out
	return out
}
