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

// WarnOfDisk has the status say what is wrong with the disk; empty: nothing.
func (s *Store) WarnOfDisk(problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.diskWarning = problem
}

// Restored is what is in force of a last good set.
type Restored struct {
	// Services: no list of ServiceProxyRules has come; rules: no own object.
	Services, Rules bool
	Rebooted        bool
	Written         time.Time
	Why             string
}

// Active reports whether something of the last good set stands in for what the
// API has not shown yet.
func (r Restored) Active() bool { return r.Services || r.Rules }

// stale reports whether the rules, though programmed, are not known to be those
// of today: after a reboot, until the API answers.
func (r Restored) stale() bool { return r.Active() && r.Rebooted }

// Restore takes what the API has not shown yet from the last good set. It
// reports whether there was something to take.
func (s *Store) Restore(g *checkpoint.Restorable) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.lacksSome() {
		return false, nil
	}
	now := s.clock.Now()
	if s.current == nil {
		if r := accept(g.Rules, s.Formats); r != nil {
			return false, errors.New("its NodeProxyRules cannot be used: " + r.Message)
		}
	}
	s.restored = Restored{Rebooted: g.Rebooted, Written: g.Written, Why: g.Why}
	if !s.inventory.listed {
		s.restored.Services = true
		s.restoreServices(g, now)
	}
	if s.current == nil {
		s.restored.Rules = true
		s.adoptRules(g.Rules, now)
	}
	s.pend(now)
	return true, nil
}

// Lacking reports whether the API has not shown all that is needed, and nothing
// stands in for it.
func (s *Store) Lacking() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lacksSome()
}

// lacksSome is lacking for a caller that holds mu. An own object that is
// refused is no lack: what it asks is not what was asked before.
func (s *Store) lacksSome() bool {
	if s.refusal != nil || s.removal.Wanted {
		return false
	}
	return s.current == nil || !s.inventory.listed && !s.restored.Services
}

// restoreServices takes the Services of a last good set as if they had been
// listed. A list that comes later holds those that it lacks. The caller holds
// mu.
func (s *Store) restoreServices(g *checkpoint.Restorable, now time.Time) {
	for _, object := range g.Services {
		if name, ok := combine.ServiceOf(object.Name); !ok || s.services[name] != nil || !s.Formats.know(object.Spec.FormatVersion) {
			continue
		}
		s.take(object, claimChange{}, now)
		if name, _ := combine.ServiceOf(object.Name); s.services[name] != nil && !g.Rebooted {
			s.old[name] = struct{}{}
		}
	}
}

// renew notes that the API has shown a Service, or that it has ended: the kernel
// may have been kept as it was, and is compared to what is wanted now. The
// caller holds mu.
func (s *Store) renew(name dataplane.ServiceName, now time.Time) {
	if _, old := s.old[name]; old {
		delete(s.old, name)
		s.markFull(now)
	}
}

// listArrived ends the use of Services of the last good set, but for those that
// are held. The caller holds mu.
func (s *Store) listArrived(now time.Time) {
	if s.restored.Services {
		s.restored.Services = false
		s.markFull(now) // flows were not compared to anything
	}
}

// keep names the Services that may be newer in the kernel; nil: none. The caller
// holds mu.
func (s *Store) keep() map[dataplane.ServiceName]struct{} {
	if len(s.old) == 0 {
		return nil
	}
	return maps.Clone(s.old) // s.old changes while the data planes read
}

// eligible reports whether load balancers may send new connections to the node,
// by what is known of the Node. The caller holds mu.
func (s *Store) eligible() bool {
	if s.rules != nil {
		return !s.rules.Spec.Node.Draining
	}
	return s.restored.Rules && !s.current.Spec.Node.Draining
}

// CompleteSet returns what is known complete, to be kept on disk; nil while the API
// has not shown it, or shows what this agent does not accept. Objects that are
// held are in it.
func (s *Store) CompleteSet() *checkpoint.Set {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.inventory.listed || s.current == nil || s.whyNot() != nil || s.removal.Wanted || s.restored.Active() {
		return nil
	}
	own := &v1alpha1.NodeProxyRules{ObjectMeta: s.current.ObjectMeta, Spec: s.current.Spec}
	set := &checkpoint.Set{Header: checkpoint.Header{Written: s.clock.Now()}, Rules: own}
	set.Services = make([]*v1alpha1.ServiceProxyRules, 0, len(s.services))
	for _, e := range s.services {
		if e.rules != nil {
			set.Services = append(set.Services, e.rules)
		}
	}
	return set
}

// InUse returns what was restored from the checkpoint and is still in use.
func (s *Store) InUse() Restored {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restored
}

// lackedBy returns the last good set if a first list does not hold the same
// names, so that what it lacks is held. It is nil where there is none.
func (s *Store) lackedBy(list []*v1alpha1.ServiceProxyRules) *checkpoint.Restorable {
	s.mu.Lock()
	first := !s.inventory.listed && !s.restored.Services && !s.removal.Wanted
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
