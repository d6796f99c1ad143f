package desired

import (
	"errors"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Applied is what the kernel has by the last success.
type Applied struct {
	Version          string // newest resourceVersion of a ServiceProxyRules
	Generation       int64  // of the own object
	SettingsRevision string
	Mode             v1alpha1.ProxyMode
	LastSync         *v1alpha1.SyncReport
}

// Batch is what one sync takes from the store.
type Batch struct {
	Rulesets map[dataplane.Family]*dataplane.Ruleset
	applied  Applied // once all of it is
	Epoch    int     // see Forget
	// shown: nothing in it replaces what the API has not shown.
	shown bool
	// Partial: Services of the checkpoint lack this node's endpoints, to which flows may
	// go all the same.
	Partial bool
}

// PrepareWrite is takeBatch, unless enforcement is Audit or rules are to be removed: then
// nothing is to be written, and what is dirty stays so.
func (s *Store) PrepareWrite() (Batch, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own.audit() || s.removal.Wanted {
		return Batch{}, false
	}
	return s.takeBatch(), true
}

// takeBatch returns the rulesets of the families that need an Apply, as they were last
// combined. Only the sync loop calls it, and only when ready. The caller holds mu.
func (s *Store) takeBatch() Batch {
	now := s.clock.Now()
	b := Batch{
		Rulesets: map[dataplane.Family]*dataplane.Ruleset{}, Epoch: s.actual.epoch,
		shown: !s.restored.Active(), Partial: s.restored.Services && s.restored.Rebooted,
	}
	applied, came := s.ledger.take(s.newest())
	b.applied = applied
	b.applied.Mode = s.mode.Mode
	for family, f := range s.families {
		f.applyingSince = f.oldest()
		if !came {
			f.pendingSince = time.Time{}
		}
		switch {
		case f.omitted():
			f.applyingSince = time.Time{}
			clear(f.dirty) // once it is available, the kernel is read
		case f.due(now):
			b.Rulesets[family] = s.ruleset(family, f)
			f.taken()
		default:
			f.applyingSince = time.Time{}
		}
	}
	return b
}

// newest is what is applied once everything is that has come. The caller holds mu.
func (s *Store) newest() Applied {
	out := Applied{Version: s.catalog.newestVersion, Mode: s.mode.Mode}
	if s.own.current != nil {
		out.Generation, out.SettingsRevision = s.own.current.Generation, s.own.current.Spec.SettingsRevision
	}
	return out
}

// combineDirty updates the desired state of the families. The caller holds mu.
func (s *Store) combineDirty() {
	for name, force := range s.ledger.dirty {
		s.recombine(name, force)
	}
	s.ledger.combined()
}

// recombine updates a Service of every family. The caller holds mu.
func (s *Store) recombine(name dataplane.ServiceName, force bool) {
	e := s.catalog.services[name]
	var problems []string
	for family, f := range s.families {
		var svc *dataplane.Service
		if e != nil && e.rules != nil {
			var found []string
			svc, found = combine.Service(s.input(e, family))
			problems = append(problems, found...)
		}
		former := f.services[name]
		if combine.Equal(former, svc) && !force {
			continue
		}
		f.tally(name, former, svc)
		if svc == nil {
			delete(f.services, name)
		} else {
			f.services[name] = svc
		}
		f.dirty[name] = struct{}{}
	}
	s.reportProblems(e, problems)
}

func (s *Store) input(e *entry, family dataplane.Family) combine.Input {
	in := combine.Input{
		Name:   e.name,
		Rules:  &e.rules.Spec,
		Node:   combine.Node{Name: s.nodeName, Zone: s.own.current.Spec.Node.Zone},
		Family: family,
		Lost:   func(c combine.Claim) bool { return s.catalog.claims.Lost(e, c) },

		Precedence: e.precedence(),
	}
	if m := s.own.localEndpoints[e.name]; m != nil {
		in.Members = m.Ports
	}
	return in
}

// ruleset is everything that a family should have. The caller holds mu.
func (s *Store) ruleset(family dataplane.Family, f *familyState) *dataplane.Ruleset {
	var rest map[dataplane.ServiceName]struct{}
	if !f.tryAll {
		rest = f.rejected.resting(f.dirty, s.clock.Now())
	}
	return &dataplane.Ruleset{
		Mode:     s.mode.Mode,
		Node:     s.own.nodes[family],
		Services: f.services,
		Dirty:    f.dirty,
		Full:     f.full,
		Recheck:  f.recheck,
		Rest:     rest,
		Keep:     s.restored.keep(),
		Prune:    s.mayPrune(),
	}
}

// Commit takes the outcome of a batch. It reports whether that completes the first set.
func (s *Store) Commit(b Batch, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result], report *v1alpha1.SyncReport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Epoch != s.actual.epoch {
		return false // ownership has ended: what the kernel has is unknown
	}
	now := s.clock.Now()
	for family, f := range s.families {
		outcome, tried := outcomes[family]
		switch {
		case !tried:
			f.lastUpdated = now
		case outcome.Err != nil:
			f.fail(outcome.Err, b.Rulesets[family])
			if errors.Is(outcome.Err, dataplane.ErrUnsupported) {
				s.mode.settings = nil // what the node can run has changed
			}
		default:
			f.succeed(&outcome.Value, b.Rulesets[family], now)
			if report != nil && outcome.Value.Kind == v1alpha1.SyncFull {
				f.fullEnd, f.fullTook = now, time.Duration(report.DurationMilliseconds)*time.Millisecond
			}
		}
	}
	failed := false
	for family := range outcomes {
		if s.optional(family) {
			s.families[family].applyingSince = time.Time{}
		} else if outcomes[family].Err != nil {
			failed = true
		}
	}
	if report != nil {
		s.actual.applied.LastSync = report
	}
	if !failed {
		s.actual.ran = b.applied.Mode
	}
	return s.noteApplied(b, failed)
}

// noteApplied notes that a batch was applied, or compared. It reports whether that completes
// the first set. The caller holds mu.
func (s *Store) noteApplied(b Batch, failed bool) (first bool) {
	if !failed {
		b.applied.LastSync = s.actual.applied.LastSync
		s.actual.applied = b.applied
	}
	if b.shown && s.own.refusal == nil && s.inOrder() {
		s.actual.served = true
	}
	first = !s.actual.complete && s.allSettled()
	s.actual.complete = s.actual.complete || first
	return first
}

// inOrder reports whether no family that is needed has failed, or was not tried. The caller
// holds mu.
func (s *Store) inOrder() bool {
	for family, f := range s.families {
		if !s.settled(family) || f.err != nil && !s.optional(family) {
			return false
		}
	}
	return true
}

// ProgrammedChanges returns what the last commit has brought to the kernel.
func (s *Store) ProgrammedChanges() map[dataplane.Family]ProgrammedChanges {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[dataplane.Family]ProgrammedChanges{}
	now, failed := s.clock.Now(), false
	for family, f := range s.families {
		if f.err != nil {
			failed = failed || !s.optional(family)
			continue
		}
		if !f.done {
			continue
		}
		p := ProgrammedChanges{NoLocal: f.noLocal}
		for name, list := range f.triggers.applying {
			if f.services[name] == nil {
				continue
			}
			for _, at := range list {
				p.Latencies = append(p.Latencies, max(0, now.Sub(at)))
			}
		}
		f.triggers.done()
		out[family] = p
	}
	if !failed {
		s.ledger.metrics.endpoints.done()
		s.ledger.metrics.services.done()
	}
	return out
}
