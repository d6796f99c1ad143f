package agent

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// familyState is what one IP family of the node should hold, and how far that
// has come.
type familyState struct {
	// services is what is wanted. Only prepare changes it, so the sync loop may
	// read it without the store's lock.
	services  map[dataplane.ServiceName]*dataplane.Service
	endpoints endpointCount
	// dirty and full are what the next Apply must do.
	dirty map[dataplane.ServiceName]struct{}
	full  bool
	// pendingSince is when the oldest change came that waits for prepare;
	// applyingSince that of those that prepare has taken and no Apply has
	// brought to the kernel. Zero: none.
	pendingSince, applyingSince time.Time
	lastUpdated                 time.Time // of the last success
	done                        bool      // a first success
	err                         error     // of the last Apply
	refused                     map[dataplane.ServiceName]string
	warnings                    []string
	kernel                      *kernelCount
	difference                  *dataplane.Difference
}

// kernelCount is what the kernel held of ours when it was last read in full.
type kernelCount struct {
	chains, rules int
	at            time.Time
}

func newFamilyState() *familyState {
	return &familyState{
		services:  map[dataplane.ServiceName]*dataplane.Service{},
		endpoints: endpointCount{uses: map[netip.AddrPort]uses{}},
		dirty:     map[dataplane.ServiceName]struct{}{},
		full:      true,
	}
}

// oldestPending is when the oldest change came that the kernel does not hold;
// zero: none.
func (f *familyState) oldestPending() time.Time {
	if f.applyingSince.IsZero() {
		return f.pendingSince
	}
	return f.applyingSince
}

// endpointCount counts the Service ports that use an endpoint, so that
// distinct endpoints can be counted without looking at all of them.
type endpointCount struct {
	uses  map[netip.AddrPort]uses
	local int // how many of them live on this node
}

type uses struct{ all, local int32 }

func (c *endpointCount) add(svc *dataplane.Service, sign int32) {
	if svc == nil {
		return
	}
	for i := range svc.Ports {
		p := &svc.Ports[i]
		for _, e := range p.Cluster {
			c.count(e, sign, slices.Contains(p.Members, e))
		}
		for _, e := range p.Local {
			if !slices.Contains(p.Cluster, e) {
				c.count(e, sign, true)
			}
		}
	}
}

func (c *endpointCount) count(e netip.AddrPort, sign int32, local bool) {
	u := c.uses[e]
	before := u.local > 0
	u.all += sign
	if local {
		u.local += sign
	}
	if after := u.local > 0; after && !before {
		c.local++
	} else if before && !after {
		c.local--
	}
	if u.all == 0 {
		delete(c.uses, e)
		return
	}
	c.uses[e] = u
}

// appliedState is what the kernel holds by the last success.
type appliedState struct {
	version          string // newest resourceVersion of a ServiceProxyRules
	generation       int64  // of the own object
	settingsRevision string
	mode             v1alpha1.ProxyMode
	lastSync         *v1alpha1.SyncReport
}

// batch is what one sync takes from the store.
type batch struct {
	rulesets map[dataplane.Family]*dataplane.Ruleset
	applied  appliedState // what holds once all of it is applied
}

// ready reports whether there is a complete set that this agent may apply.
func (s *store) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inventory.listed && s.current != nil && s.refusal == nil
}

// prepare combines the dirty Services and returns the rulesets of the families
// that need an Apply. Only the sync loop calls it, and only when ready.
func (s *store) prepare() batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, force := range s.dirty {
		s.recombine(name, force)
	}
	// A new map: one that has been large once stays slow.
	s.dirty = map[dataplane.ServiceName]bool{}
	b := batch{rulesets: map[dataplane.Family]*dataplane.Ruleset{}, applied: appliedState{
		version:          s.newestVersion,
		generation:       s.current.Generation,
		settingsRevision: s.current.Spec.SettingsRevision,
		mode:             *s.settings.Mode,
	}}
	for family, f := range s.families {
		f.applyingSince, f.pendingSince = f.oldestPending(), time.Time{}
		if f.full || len(f.dirty) > 0 {
			b.rulesets[family] = s.ruleset(family, f, f.full)
			f.full = false // what is marked from now on is for the next batch
		} else {
			f.applyingSince = time.Time{}
		}
	}
	return b
}

// ruleset is everything that a family should hold. The caller holds mu.
func (s *store) ruleset(family dataplane.Family, f *familyState, full bool) *dataplane.Ruleset {
	return &dataplane.Ruleset{
		Node:     s.node(family),
		Services: f.services,
		Dirty:    f.dirty,
		Full:     full,
		Prune:    s.confirmed && !s.unknownState(),
	}
}

// unknownState reports whether some Service's object has only been seen in a
// format that this agent does not know: its rules in the kernel, if any, must
// not be taken for leftovers. The caller holds mu.
func (s *store) unknownState() bool {
	for _, e := range s.foreign {
		if e.rules == nil {
			return true
		}
	}
	return false
}

// recombine brings every family's Service up to date. The caller holds mu.
func (s *store) recombine(name dataplane.ServiceName, force bool) {
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
		f.endpoints.add(former, -1)
		f.endpoints.add(svc, +1)
		if svc == nil {
			delete(f.services, name)
		} else {
			f.services[name] = svc
		}
		f.dirty[name] = struct{}{}
	}
	s.tell(e, problems)
}

func (s *store) input(e *entry, family dataplane.Family) combine.Input {
	in := combine.Input{
		Name:   e.name,
		Rules:  &e.rules.Spec,
		Node:   combine.Node{Name: s.nodeName, Zone: s.current.Spec.Node.Zone},
		Family: family,
		Lost:   func(c combine.Claim) bool { return s.claims.lost(e, c) },
	}
	if m := s.members[e.name]; m != nil {
		in.Members = m.Ports
	}
	return in
}

// tell reports the entries of a Service that cannot be used, once.
func (s *store) tell(e *entry, problems []string) {
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

// commit takes the outcome of a batch. It reports whether that completes the
// first set.
func (s *store) commit(b batch, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result], report *v1alpha1.SyncReport) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	before := s.allDone()
	failed := false
	for family, f := range s.families {
		outcome, tried := outcomes[family]
		switch {
		case !tried:
			f.lastUpdated = now
		case outcome.Err != nil:
			failed = true
			f.full, f.err = true, outcome.Err
		default:
			f.succeed(outcome.Value, now)
		}
	}
	if report != nil {
		s.applied.lastSync = report
	}
	if !failed {
		b.applied.lastSync = s.applied.lastSync
		s.applied = b.applied
	}
	return !before && s.allDone()
}

// warnings are what could not be done besides the rules of Services, all
// families joined.
func (s *store) warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinedWarnings()
}

// refusedNames are the Services that the kernel does not take, sorted.
func (s *store) refusedNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, f := range s.families {
		for name := range f.refused {
			names = append(names, name.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// joinedWarnings are sorted, each of them once. The caller holds mu.
func (s *store) joinedWarnings() []string {
	var all []string
	for _, f := range s.families {
		all = append(all, f.warnings...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// allDone reports whether every family has had a first success. The caller
// holds mu.
func (s *store) allDone() bool {
	for _, f := range s.families {
		if !f.done {
			return false
		}
	}
	return true
}

func (f *familyState) succeed(result dataplane.Result, now time.Time) {
	f.err, f.done = nil, true
	f.lastUpdated, f.applyingSince = now, time.Time{}
	f.refused = maps.Clone(result.Refused)
	f.warnings = slices.Clone(result.Warnings)
	f.dirty = map[dataplane.ServiceName]struct{}{}
	if result.Kind == v1alpha1.SyncFull {
		f.difference = &dataplane.Difference{}
		f.count(result.Chains, result.Rules, now)
	}
}

// count notes what the kernel held when it was read in full.
func (f *familyState) count(chains, rules int, now time.Time) {
	f.kernel = &kernelCount{chains: chains, rules: rules, at: now}
}

// verifiable returns the rulesets of the families that have nothing to apply,
// so that the kernel should hold exactly them. Only the sync loop calls it.
func (s *store) verifiable() map[dataplane.Family]*dataplane.Ruleset {
	s.mu.Lock()
	defer s.mu.Unlock()
	rulesets := map[dataplane.Family]*dataplane.Ruleset{}
	for family, f := range s.families {
		if f.done && !f.full && len(f.dirty) == 0 {
			rulesets[family] = s.ruleset(family, f, false)
		}
	}
	return rulesets
}

// verified takes the outcome of a verification. It reports whether some
// family differs, could not be read, has refused Services or has warnings, and
// therefore needs a full pass.
func (s *store) verified(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Difference]) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	again := false
	for family, outcome := range outcomes {
		f := s.families[family]
		if outcome.Err == nil {
			f.difference = &outcome.Value
			f.count(outcome.Value.Chains, outcome.Value.Rules, now)
		}
		// What was refused or warned of may work by now: somebody may have loaded
		// a module.
		if outcome.Err != nil || outcome.Value.Count > 0 || len(f.refused) > 0 || len(f.warnings) > 0 {
			again, f.full = true, true
			if f.pendingSince.IsZero() {
				f.pendingSince = now
			}
		}
	}
	return again
}
