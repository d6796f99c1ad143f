package desired

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// familyState is what one IP family of the node should hold, and how far that
// has come.
type familyState struct {
	// services is what is wanted. Only combineDirty changes it, so the sync loop may
	// read it without the store's lock.
	services  map[dataplane.ServiceName]*dataplane.Service
	endpoints endpointCount
	// checked are those of services with a health-check node port; answered is
	// what is answered there.
	checked   map[dataplane.ServiceName]*dataplane.Service
	answered  map[health.ServiceKey]health.Check
	nodePorts int // ports of services with a node port
	noLocal   noLocal
	triggers  triggers
	// dirty, full and recheck are what the next Apply must do.
	dirty   map[dataplane.ServiceName]struct{}
	full    bool
	recheck bool
	// pendingSince is when the oldest change came that waits for takeBatch;
	// applyingSince that of those that it has taken and no Apply has
	// brought to the kernel. Zero: none.
	pendingSince, applyingSince time.Time
	lastUpdated                 time.Time // of the last success
	done                        bool      // a first success
	err                         error     // of the last Apply
	// absent is why the node cannot program the family, which nothing needs; see
	// needed. It is tried again at each verification (retry), and when it is
	// needed.
	absent   error
	retry    bool
	rejected retries
	// isolated: the last Apply found out which Services the kernel rejects, which takes long.
	isolated bool
	// tryAll: the next Apply tries all of refused, as their cause may be gone.
	tryAll   bool
	warnings []string
	notes    []string // see Result
	// retiring is what of another mode the kernel still holds; see Result.
	retiring string
	kernel   *KernelCount
	// counts are those of the last Apply or comparison.
	counts     dataplane.Counts
	difference *dataplane.Difference
	audit      auditor
	// fullEnd is when the last full pass ended, fullTook how long it took.
	fullEnd  time.Time
	fullTook time.Duration
}

// KernelCount is what the kernel held of ours when that was last verified.
type KernelCount struct {
	dataplane.Counts
	At time.Time
}

func newFamilyState() *familyState {
	return &familyState{
		services:  map[dataplane.ServiceName]*dataplane.Service{},
		checked:   map[dataplane.ServiceName]*dataplane.Service{},
		triggers:  newTriggers(),
		endpoints: endpointCount{uses: map[netip.AddrPort]uses{}},
		dirty:     map[dataplane.ServiceName]struct{}{},
		full:      true,
	}
}

// needed reports whether a Service has an address of the family. A family that
// no Service needs is programmed where the node can, as kube-proxy does it, and
// is no reason to complain where it cannot.
func (f *familyState) needed() bool { return len(f.services) > 0 }

// omitted reports whether the next Apply leaves the family out, which the node cannot program
// and nothing needs.
func (f *familyState) omitted() bool { return f.absent != nil && !f.needed() && !f.retry }

// settled reports whether a family has had a first success, or none was needed
// when that was last tried. The caller holds mu.
func (s *Store) settled(family dataplane.Family) bool {
	f := s.families[family]
	return f.done || f.absent != nil || s.spared(family)
}

// spared reports whether a family has failed that nothing needs, so that its
// failure is not that of the node. It is tried again as any other. The caller
// holds mu.
func (s *Store) spared(family dataplane.Family) bool {
	f := s.families[family]
	return f.err != nil && !f.needed() && s.others(family, nil)
}

// oldestPending is when the oldest change came that the kernel does not hold;
// zero: none.
func (f *familyState) oldestPending() time.Time {
	if f.applyingSince.IsZero() {
		return f.pendingSince
	}
	return f.applyingSince
}

// Applied is what the kernel holds by the last success.
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
	applied  Applied // what holds once all of it is applied
	Epoch    int     // see forget
	// shown: nothing in it stands in for what the API has not shown.
	shown bool
	// Partial: Services of the last good set lack this node's endpoints, to
	// which flows may go all the same.
	Partial bool
}

// AppliedVersion is the newest resourceVersion of a ServiceProxyRules that the
// kernel has; empty before the first.
func (s *Store) AppliedVersion() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied.Version
}

// Ready reports whether there is a complete set that this agent may apply.
func (s *Store) Ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (s.inventory.listed || s.restored.Services) && s.current != nil && s.refusal == nil
}

// PrepareWrite is takeBatch, unless enforcement is Audit or rules are to be removed:
// then nothing is to be written, and what is dirty stays so.
func (s *Store) PrepareWrite() (Batch, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inAudit() || s.removal.Wanted {
		return Batch{}, false
	}
	return s.takeBatch(), true
}

// takeBatch returns the rulesets of the families that need an Apply, as they were last
// combined. Only the sync loop calls it, and only when ready. The caller holds mu.
func (s *Store) takeBatch() Batch {
	s.takeChanges()
	now := s.clock.Now()
	b := Batch{Epoch: s.epoch, Rulesets: map[dataplane.Family]*dataplane.Ruleset{}, shown: !s.restored.Active(), Partial: s.restored.Services && s.restored.Rebooted, applied: s.newest()}
	came := len(s.dirty) > 0 // since that was chosen; it is for the next batch
	if came {
		b.applied = s.chosen
	} else {
		s.chosen = b.applied
	}
	var since time.Time
	for _, change := range s.aside {
		if since.IsZero() || change.since.Before(since) {
			since, b.applied = change.since, change.before
		}
	}
	b.applied.Mode = s.mode.Mode
	for family, f := range s.families {
		f.applyingSince = f.oldestPending()
		if !came {
			f.pendingSince = time.Time{}
		}
		switch {
		case f.omitted():
			f.applyingSince = time.Time{}
			clear(f.dirty) // should it come, the kernel is read
		case f.full || f.recheck || len(f.dirty) > 0 || f.rejected.due(now):
			b.Rulesets[family] = s.ruleset(family, f)
			f.full, f.recheck, f.retry, f.tryAll = false, false, false, false // what is marked from now on is for the next batch
		default:
			f.applyingSince = time.Time{}
		}
	}
	return b
}

// newest is what will hold once all that has come is applied. The caller holds mu.
func (s *Store) newest() Applied {
	out := Applied{Version: s.newestVersion, Mode: s.mode.Mode}
	if s.current != nil {
		out.Generation, out.SettingsRevision = s.current.Generation, s.current.Spec.SettingsRevision
	}
	return out
}

// combineDirty brings what is wanted up to date. The caller holds mu.
func (s *Store) combineDirty() {
	for name, force := range s.dirty {
		s.recombine(name, force)
	}
	for name := range s.dirty {
		for other := range s.moved[name] {
			delete(s.moved[other], name)
		}
		delete(s.moved, name)
	}
	// A new map: one that has been large once stays slow.
	s.dirty = map[dataplane.ServiceName]bool{}
}

// ruleset is everything that a family should hold. The caller holds mu.
func (s *Store) ruleset(family dataplane.Family, f *familyState) *dataplane.Ruleset {
	var rest map[dataplane.ServiceName]struct{}
	if !f.tryAll {
		rest = f.rejected.resting(f.dirty, s.clock.Now())
	}
	return &dataplane.Ruleset{
		Mode:     s.mode.Mode,
		Node:     s.node(family),
		Services: f.services,
		Dirty:    f.dirty,
		Full:     f.full,
		Recheck:  f.recheck,
		Rest:     rest,
		Keep:     s.keep(),
		Prune:    s.mayPrune(),
	}
}

// mayPrune reports whether what belongs to no Service may be removed from the
// kernel. The caller holds mu.
func (s *Store) mayPrune() bool { return s.confirmed && !s.unknownState() && len(s.old) == 0 }

// unknownState reports whether some Service's object has only been seen in a
// format that this agent does not know: its rules in the kernel, if any, must
// not be taken for leftovers. The caller holds mu.
func (s *Store) unknownState() bool {
	for _, e := range s.foreign {
		if e.rules == nil {
			return true
		}
	}
	return false
}

// recombine brings every family's Service up to date. The caller holds mu.
func (s *Store) recombine(name dataplane.ServiceName, force bool) {
	e := s.services[name]
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
	s.tell(e, problems)
}

func (s *Store) input(e *entry, family dataplane.Family) combine.Input {
	in := combine.Input{
		Name:   e.name,
		Rules:  &e.rules.Spec,
		Node:   combine.Node{Name: s.nodeName, Zone: s.current.Spec.Node.Zone},
		Family: family,
		Lost:   func(c combine.Claim) bool { return s.claims.Lost(e, c) },

		Precedence: e.precedence(),
	}
	if m := s.members[e.name]; m != nil {
		in.Members = m.Ports
	}
	return in
}

// tell reports the entries of a Service that cannot be used, once.
func (s *Store) tell(e *entry, problems []string) {
	if e == nil {
		return
	}
	slices.Sort(problems)
	text := strings.Join(slices.Compact(problems), "; ")
	if text != e.problems && text != "" {
		s.report(e.name, text)
	}
	e.problems = text
}

// Excuse takes the families out of the outcomes that the node cannot program
// and nothing needs, and notes them. Where nothing needs any, one that can be
// programmed is asked for all the same.
func (s *Store) Excuse(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, family := range []dataplane.Family{dataplane.IPv6, dataplane.IPv4} {
		f, outcome := s.families[family], outcomes[family]
		if !errors.Is(outcome.Err, dataplane.ErrUnsupported) {
			continue
		}
		f.done = false
		if !f.needed() && s.others(family, outcomes) {
			f.lack(outcome.Err)
			delete(outcomes, family)
		}
	}
}

// others reports whether some other family is needed or can be programmed, by
// the outcomes or else by what is known of it. The caller holds mu.
func (s *Store) others(family dataplane.Family, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) bool {
	for other, f := range s.families {
		can := f.done
		if outcome, tried := outcomes[other]; tried {
			can = !errors.Is(outcome.Err, dataplane.ErrUnsupported)
		}
		if other != family && (can || f.needed()) {
			return true
		}
	}
	return false
}

// Commit takes the outcome of a batch. It reports whether that completes the
// first set.
func (s *Store) Commit(b Batch, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result], report *v1alpha1.SyncReport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.Epoch != s.epoch {
		return false // our turn has ended: what the kernel holds is not known
	}
	now := s.clock.Now()
	for family, f := range s.families {
		outcome, tried := outcomes[family]
		switch {
		case !tried:
			f.lastUpdated = now
		case outcome.Err != nil:
			f.full, f.err, f.absent = true, outcome.Err, nil
			f.tryAll = f.tryAll || b.Rulesets[family].Rest == nil // as this Apply was to do
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
		if s.spared(family) {
			s.families[family].applyingSince = time.Time{}
		} else if outcomes[family].Err != nil {
			failed = true
		}
	}
	if report != nil {
		s.applied.LastSync = report
	}
	if !failed {
		b.applied.LastSync = s.applied.LastSync
		s.applied, s.ran = b.applied, b.applied.Mode
	}
	s.noteServed(&b)
	first := !s.complete && s.allSettled()
	s.complete = s.complete || first
	return first
}

// Warnings are what could not be done besides the rules of Services, all
// families joined.
func (s *Store) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinedWarnings()
}

// Absences says of each family that is left out why.
func (s *Store) Absences() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for family, f := range s.families {
		if f.absent != nil {
			out = append(out, string(family)+": "+f.absent.Error())
		}
	}
	slices.Sort(out)
	return out
}

// RejectedNames are the Services that the kernel does not take, sorted.
func (s *Store) RejectedNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, f := range s.families {
		for name := range f.rejected {
			names = append(names, name.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// joinedWarnings are sorted, each of them once. The caller holds mu.
func (s *Store) joinedWarnings() []string {
	var all []string
	for family, f := range s.families {
		all = append(all, f.warnings...)
		all = append(all, f.notes...)
		if s.spared(family) {
			all = append(all, fmt.Sprintf("%s, which no Service uses, is not programmed: %v", family, f.err))
		}
		if s.current != nil && f.needed() {
			all = append(all, factWarnings(family, s.node(family), f.nodePorts > 0)...)
		}
	}
	if s.longSetAside() {
		all = append(all, fmt.Sprintf("changes of large Services have waited for their turn for more than %s", turnNoted))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// allSettled reports whether every family has had a first success or needs
// none. The caller holds mu.
func (s *Store) allSettled() bool {
	for family := range s.families {
		if !s.settled(family) {
			return false
		}
	}
	return true
}

// lack notes that the node cannot program the family, which nothing needs.
func (f *familyState) lack(why error) {
	f.absent, f.err = why, nil
	f.full = true // when it comes
	f.applyingSince = time.Time{}
	f.rejected, f.warnings, f.notes, f.retiring, f.kernel, f.difference = nil, nil, nil, "", nil, nil
	f.counts = dataplane.Counts{}
	clear(f.dirty)
}

// succeed takes what an Apply of a ruleset has done.
func (f *familyState) succeed(result *dataplane.Result, applied *dataplane.Ruleset, now time.Time) {
	f.err, f.absent, f.done = nil, nil, true
	f.lastUpdated, f.applyingSince = now, time.Time{}
	f.rejected = f.rejected.noted(result, applied, now)
	for name := range result.Rejected {
		if _, rested := applied.Rest[name]; !rested && result.Reduced[name] == nil {
			f.isolated = true
		}
	}
	f.warnings, f.notes = slices.Clone(result.Warnings), slices.Clone(result.Notes)
	f.retiring, f.counts = result.Retiring, result.Counts
	f.dirty = map[dataplane.ServiceName]struct{}{}
	if result.Kind == v1alpha1.SyncFull {
		f.difference = &dataplane.Difference{}
		f.count(result.Counts, now)
	}
}

// count notes what the kernel held when it was read in full.
func (f *familyState) count(counts dataplane.Counts, now time.Time) {
	f.kernel, f.counts = &KernelCount{Counts: counts, At: now}, counts
}
