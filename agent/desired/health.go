package desired

import (
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
		Eligible: s.eligible(), Withheld: s.restored.stale(),
	}
	for family, f := range s.families {
		if f.unsupported() && s.someDone() {
			continue // as with kube-proxy, the node serves the other one
		}
		out.Families[string(family)] = health.FamilyState{LastUpdated: f.lastUpdated, OldestPending: s.waits(f)}
	}
	return out
}

// someDone reports whether the node programs some family. The caller holds mu.
func (s *Store) someDone() bool {
	for _, f := range s.families {
		if f.done {
			return true
		}
	}
	return false
}

// waits returns when the oldest change came that the kernel lacks and that waits for us; zero:
// none. The caller holds mu.
func (s *Store) waits(f *familyState) time.Time {
	if s.removal.Wanted || s.actual.otherProxy && !s.own.audit() {
		return time.Time{}
	}
	return f.oldest()
}

// eligible reports whether load balancers may send new connections to the node, by what is
// known of the Node. The caller holds mu.
func (s *Store) eligible() bool {
	if s.own.rules != nil {
		return !s.own.rules.Spec.Node.Draining
	}
	return s.restored.Rules && !s.own.current.Spec.Node.Draining
}

// HealthChecks returns what a family's health checks answer after a success, and on which
// addresses.
func (s *Store) HealthChecks(family dataplane.Family) (map[health.ServiceKey]health.Check, dataplane.NodePorts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.families[family]
	out := make(map[health.ServiceKey]health.Check, len(f.checked))
	if !f.done || s.own.current == nil {
		return out, dataplane.NodePorts{}, nil
	}
	for name, svc := range f.checked {
		key := health.ServiceKey(name)
		check := health.Check{Port: svc.HealthCheckNodePort, LocalEndpoints: svc.LocalReady}
		if r, rejected := f.rejected[name]; rejected && !r.reduced {
			// The kernel has the former rules, if any, which may lead to fewer endpoints.
			check.LocalEndpoints = min(check.LocalEndpoints, f.answered[key].LocalEndpoints)
		}
		out[key] = check
	}
	f.answered = out
	node := s.own.nodes[family]
	nodePorts, err := dataplane.NodePortsOf(family, &node)
	return out, nodePorts, err
}
