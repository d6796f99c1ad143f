package desired

import (
	"errors"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
)

// Health is the store's part of what the health of the proxy depends on. While the store is
// busy, such as with a Service at the limits, it is what was last known: nobody who asks
// waits, and a change that waits for the kernel ages all the same.
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

// currentHealth is health. The caller holds mu.
func (s *Store) currentHealth() health.State {
	out := health.State{
		Now: s.clock.Now(), Families: make(map[string]health.FamilyState, len(s.families)),
		Eligible: s.eligible(), Withheld: s.restored.stale(),
	}
	for family, f := range s.families {
		if f.lacking() && s.someDone() {
			continue // as with kube-proxy, the node serves the other one
		}
		out.Families[string(family)] = health.FamilyState{LastUpdated: f.lastUpdated, OldestPending: s.waits(f)}
	}
	return out
}

// lacking reports whether the node cannot program the family, as far as is known
// for good.
func (f *familyState) lacking() bool { return errors.Is(f.err, dataplane.ErrUnsupported) }

// someDone reports whether the node programs some family. The caller holds mu.
func (s *Store) someDone() bool {
	for _, f := range s.families {
		if f.done {
			return true
		}
	}
	return false
}

// noteCheck notes whether a Service has a health-check node port.
func (f *familyState) noteCheck(name dataplane.ServiceName, svc *dataplane.Service) {
	if svc != nil && svc.HealthCheckNodePort != 0 {
		f.checked[name] = svc
	} else {
		delete(f.checked, name)
	}
}

// HealthChecks returns what a family's health checks answer after a success, and
// on which addresses.
func (s *Store) HealthChecks(family dataplane.Family) (map[health.ServiceKey]health.Check, dataplane.NodePorts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.families[family]
	out := make(map[health.ServiceKey]health.Check, len(f.checked))
	if !f.done || s.current == nil {
		return out, dataplane.NodePorts{}, nil
	}
	for name, svc := range f.checked {
		key := health.ServiceKey(name)
		check := health.Check{Port: svc.HealthCheckNodePort, LocalEndpoints: svc.LocalReady}
		if r, refused := f.rejected[name]; refused && !r.reduced {
			// The kernel holds the former rules: connections go where those lead, if
			// it holds any, and that is worth no more than the fewer endpoints.
			check.LocalEndpoints = min(check.LocalEndpoints, f.answered[key].LocalEndpoints)
		}
		out[key] = check
	}
	f.answered = out
	node := s.node(family)
	nodePorts, err := dataplane.NodePortsOf(family, &node)
	return out, nodePorts, err
}
