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
	// shown: nothing in it replaces what the API has not delivered.
	shown bool
	// Partial: Services of the checkpoint lack this node's endpoints, to which flows may
	// go all the same.
	Partial bool
}

// PrepareWrite is takeBatch, unless enforcement is Audit or rules are to be removed: then
// nothing is to be written, and what is dirty stays so. For pause see dataplane.Ruleset.
func (s *Store) PrepareWrite(pause func() bool) (Batch, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.own.audit() || s.removal.Requested {
		return Batch{}, false
	}
	b := s.takeBatch()
	for _, r := range b.Rulesets {
		r.Pause = pause
	}
	return b, true
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
		since := f.oldest()
		f.applyingSince = time.Time{}
		if !came {
			f.pendingSince = time.Time{}
		}
		if f.omitted() {
			clear(f.dirty) // once it is available, the kernel is read
		} else if f.due(now) {
			f.applyingSince = since
			b.Rulesets[family] = s.ruleset(family, f)
			f.taken()
		}
	}
	return b
}

// newest returns the versions that count as applied after the next complete write. The caller holds mu.
func (s *Store) newest() Applied {
	out := Applied{Version: s.catalog.newestVersion, Mode: s.mode.Mode}
	if s.own.current != nil {
		out.Generation, out.SettingsRevision = s.own.current.Generation, s.own.current.Spec.SettingsRevision
	}
	return out
}

// combineDirty updates the desired state of the families. The caller holds mu.
func (s *Store) combineDirty() {
	node := combine.Node{Name: s.nodeName, Zone: s.own.current.Spec.Node.Zone}
	for name, force := range s.ledger.dirty {
		e := s.catalog.services[name]
		var problems []string
		for family, f := range s.families {
			svc, found := s.catalog.combine(e, family, node, s.own.localEndpoints[name])
			problems = append(problems, found...)
			f.set(name, svc, force)
		}
		s.catalog.reportProblems(e, problems)
	}
	s.ledger.combined()
}

// ruleset is everything that a family should have. The caller holds mu.
func (s *Store) ruleset(family dataplane.Family, f *familyState) *dataplane.Ruleset {
	var rest map[dataplane.ServiceName]struct{}
	if !f.tryAll {
		rest = f.rejected.resting(f.dirty, s.clock.Now())
		for name := range s.ledger.deferred { // the rest of one is written in its turn
			if _, rejected := f.rejected[name]; rejected {
				rest[name] = struct{}{}
			}
		}
	}
	return &dataplane.Ruleset{
		Mode:     s.mode.Mode,
		Node:     s.own.nodes[family],
		Services: f.services,
		Dirty:    f.dirty,
		Full:     f.need != nothing,
		Repair:   f.need == repair,
		Recheck:  f.recheck,
		Rest:     rest,
		Preserve: s.catalog.preserved(),
		Prune:    s.catalog.mayPrune(),
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
			s.ledger.leave(outcome.Value.Unfinished, b.Rulesets[family].Dirty, s.actual.applied)
			if report != nil && outcome.Value.Kind == v1alpha1.SyncFull {
				f.fullEnd, f.fullTook = now, time.Duration(report.DurationMilliseconds)*time.Millisecond
			}
		}
	}
	failed := false
	for family := range outcomes {
		if s.families.optional(family) {
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
	b.applied = s.ledger.reached(b.applied)
	return s.noteApplied(b, failed)
}

// noteApplied notes that a batch was applied, or compared. It reports whether that completes
// the first set. The caller holds mu.
func (s *Store) noteApplied(b Batch, failed bool) (first bool) {
	if !failed {
		b.applied.LastSync = s.actual.applied.LastSync
		s.actual.applied = b.applied
	}
	if b.shown && s.own.rejection == nil && s.families.inOrder() {
		s.actual.served = true
	}
	first = !s.actual.complete && s.families.allSettled()
	s.actual.complete = s.actual.complete || first
	return first
}

// TakeProgrammedChanges returns what the last commit has brought to the kernel, and no longer counts
// it as pending: each change is returned once.
func (s *Store) TakeProgrammedChanges() map[dataplane.Family]ProgrammedChanges {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[dataplane.Family]ProgrammedChanges{}
	now, failed := s.clock.Now(), false
	for family, f := range s.families {
		if f.err != nil {
			failed = failed || !s.families.optional(family)
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
