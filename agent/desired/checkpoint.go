package desired

import (
	"errors"
	"maps"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/checkpoint"
	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Restored is what is used of a checkpoint.
type Restored struct {
	// Services: no list of ServiceProxyRules has come; Rules: no own object.
	Services, Rules bool
	Rebooted        bool
	Written         time.Time
	Why             string
}

// Active reports whether some of the checkpoint replaces what the API has not delivered yet.
func (r Restored) Active() bool { return r.Services || r.Rules }

// stale reports whether the rules, though programmed, may be outdated: after a reboot, until
// the API answers.
func (r Restored) stale() bool { return r.Active() && r.Rebooted }

// WarnOfDisk sets what the status reports of the disk; empty: nothing.
func (s *Store) WarnOfDisk(problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.diskWarning = problem
}

// Restore takes what the API has not delivered yet from a checkpoint. It reports whether there was
// something to take.
func (s *Store) Restore(g *checkpoint.Restorable) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lacking() {
		return false, nil
	}
	if s.own.current == nil {
		if r := accept(g.Rules, s.Formats); r != nil {
			return false, errors.New("its NodeProxyRules cannot be used: " + r.Message)
		}
	}
	s.restored = Restored{Rebooted: g.Rebooted, Written: g.Written, Why: g.Why}
	if !s.catalog.inventory.listed {
		s.restored.Services = true
		s.catalog.restore(g)
	}
	if s.own.current == nil {
		s.restored.Rules = true
		s.adoptRules(g.Rules)
	}
	s.ledger.pend()
	return true, nil
}

// Lacking reports whether the API has not delivered all that is needed, and nothing replaces it.
func (s *Store) Lacking() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lacking()
}

// lacking is Lacking. An own object that is not accepted is not lacking: it asks for something
// else than before. The caller holds mu.
func (s *Store) lacking() bool {
	if s.own.rejection != nil || s.removal.Requested {
		return false
	}
	return s.own.current == nil || !s.catalog.inventory.listed && !s.restored.Services
}

// restore takes the Services of a checkpoint as if they were listed. A later list retains those
// that it lacks.
func (c *catalog) restore(g *checkpoint.Restorable) {
	for _, object := range g.Services {
		name, ok := combine.ServiceOf(object.Name)
		if !ok || c.services[name] != nil || !c.formats.know(object.Spec.FormatVersion) {
			continue
		}
		c.take(object, claimChange{})
		if c.services[name] != nil && !g.Rebooted {
			c.older[name] = struct{}{}
		}
	}
}

// shown notes that the API has shown a Service, or that it has ended: its rules in the kernel
// may have been preserved, and are compared with the desired ones now.
func (c *catalog) shown(name dataplane.ServiceName) {
	if _, older := c.older[name]; older {
		delete(c.older, name)
		c.ledger.markFull()
	}
}

// preserved returns the Services that may be newer in the kernel; nil: none. It is a copy, as older
// changes while the data planes read.
func (c *catalog) preserved() map[dataplane.ServiceName]struct{} {
	if len(c.older) == 0 {
		return nil
	}
	return maps.Clone(c.older)
}

// CompleteSet returns the complete state, for the checkpoint; nil while the API has not delivered
// it, or shows what this agent does not accept. It includes retained objects.
func (s *Store) CompleteSet() *checkpoint.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := s.own.current
	if !s.catalog.inventory.listed || current == nil || s.own.rejection != nil || s.mode.Rejection != nil || s.removal.Requested || s.restored.Active() {
		return nil
	}
	set := &checkpoint.Set{
		Header: checkpoint.Header{Written: s.clock.Now()},
		Rules:  &v1alpha1.NodeProxyRules{ObjectMeta: current.ObjectMeta, Spec: current.Spec},
	}
	set.Services = make([]*v1alpha1.ServiceProxyRules, 0, len(s.catalog.services))
	for _, e := range s.catalog.services {
		if e.rules != nil {
			set.Services = append(set.Services, e.rules)
		}
	}
	return set
}

// InUse returns what is used of the checkpoint.
func (s *Store) InUse() Restored {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restored
}

// lackedBy returns the checkpoint if a first list does not have the same names, so that what
// it lacks is retained; nil: there is none.
func (s *Store) lackedBy(list []*v1alpha1.ServiceProxyRules) *checkpoint.Restorable {
	s.mu.Lock()
	first := !s.catalog.inventory.listed && !s.restored.Services && !s.removal.Requested
	s.mu.Unlock()
	if !first || s.former == nil {
		return nil
	}
	var hash uint64
	names := 0
	for _, object := range list {
		if !object.Spec.Released {
			names++
			hash += v1alpha1.NameHash(object.Name)
		}
	}
	return s.former(names, hash)
}
