package agent

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// snapshot is what the store knows at one moment, for status, health and
// metrics. It shares nothing that changes.
type snapshot struct {
	now time.Time
	// own is the own NodeProxyRules as last seen; nil before the first. exists
	// is false once it is gone.
	own    *v1alpha1.NodeProxyRules
	exists bool
	// listed: the first list of ServiceProxyRules has come.
	listed  bool
	refusal *refusal
	mode    modeChoice
	// audit: enforcement is Audit, so what follows is known by comparing.
	audit bool
	// done: every family that is needed has had a first success.
	done          bool
	err           error     // of the last Apply, all families joined
	oldestPending time.Time // zero: none
	families      map[dataplane.Family]familySnapshot
	held          []dataplane.ServiceName // sorted
	heldSince     time.Time               // the oldest; zero: none
	// unconfirmedSince is when list and inventory ceased to agree; zero: they do.
	unconfirmedSince time.Time
	inventoryKnown   bool
	refused          map[dataplane.ServiceName]string
	// suspected are those of refused that may not be at fault.
	suspected map[dataplane.ServiceName]bool
	// shaped are those of refused that policies shape.
	shaped   map[dataplane.ServiceName]bool
	warnings []string // sorted
	retiring []string // likewise
	applied  appliedState
	// services, endpoints and local are counts of what is programmed.
	services, endpoints, local int
	kernel                     *kernelCount
	// restored is what stands in for what the API has not shown.
	restored   restored
	removal    removal
	difference *dataplane.Difference
	changes    changeTotals
}

// familySnapshot is one family's part of a snapshot.
type familySnapshot struct {
	done bool
	// lacking: the node cannot program it, as far as is known for good.
	lacking       bool
	lastUpdated   time.Time
	oldestPending time.Time
	counts        dataplane.Counts
}

func (s *store) snapshot() snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	if _, agreed := s.inventory.agrees(now); s.inventory.listed && !agreed && s.unconfirmedSince.IsZero() {
		s.unconfirmedSince = now // the set that agreed has grown too old
	}
	out := snapshot{
		now: now, own: s.rules, exists: s.rulesExists, listed: s.inventory.listed, refusal: s.whyNot(), mode: s.mode, audit: s.inAudit(),
		done:             len(s.families) > 0,
		families:         map[dataplane.Family]familySnapshot{},
		held:             slices.SortedFunc(maps.Keys(s.held), dataplane.ServiceName.Compare),
		unconfirmedSince: s.unconfirmedSince,
		inventoryKnown:   s.inventory.wanted != nil,
		refused:          map[dataplane.ServiceName]string{},
		suspected:        map[dataplane.ServiceName]bool{},
		warnings:         s.joinedWarnings(),
		retiring:         s.joinedRetiring(),
		applied:          s.applied,
		restored:         s.restored,
		removal:          s.removal,
		changes:          s.changes.totals(),
	}
	if s.diskWarning != "" {
		out.warnings = append(out.warnings, s.diskWarning)
	}
	for _, e := range s.held {
		out.heldSince = earliest(out.heldSince, e.vanishedAt)
	}
	for name, e := range s.foreign {
		out.refused[name] = e.refused
	}
	outcomes := map[dataplane.Family]dataplane.Outcome[struct{}]{}
	for family, f := range s.families {
		if !s.spared(family) {
			outcomes[family] = dataplane.Outcome[struct{}]{Err: f.err}
		}
		out.done = out.done && s.settled(family)
		out.addFamily(family, f, s.waits(f))
	}
	out.err = dataplane.JoinErrors(outcomes)
	out.services = s.countServices(out.refused)
	out.shaped = s.shapedOf(out.refused)
	return out
}

func (s *snapshot) addFamily(family dataplane.Family, f *familyState, pending time.Time) {
	s.families[family] = familySnapshot{
		done: f.done, lacking: f.lacking(), lastUpdated: f.lastUpdated, oldestPending: pending, counts: f.counts,
	}
	s.oldestPending = earliest(s.oldestPending, pending)
	if !f.done {
		return
	}
	s.endpoints += len(f.endpoints.uses)
	s.local += f.endpoints.local
	for name, why := range f.refused {
		if _, proven := s.refused[name]; proven && !s.suspected[name] && why.suspected {
			continue // of the other family
		}
		s.refused[name] = fmt.Sprintf("%s: %s", family, why.reason)
		s.suspected[name] = why.suspected
	}
	if k := f.kernel; k != nil {
		if s.kernel == nil {
			s.kernel = &kernelCount{at: k.at}
		}
		s.kernel.Counts = s.kernel.Add(k.Counts)
		s.kernel.at = earliest(s.kernel.at, k.at)
	}
	if d := f.difference; d != nil {
		if s.difference == nil {
			s.difference = &dataplane.Difference{}
		}
		s.difference.Count += d.Count
		s.difference.Examples = append(s.difference.Examples, d.Examples...)
	}
}

// shapedOf are those of some Services that policies shape. The caller holds mu.
func (s *store) shapedOf(names map[dataplane.ServiceName]string) map[dataplane.ServiceName]bool {
	out := map[dataplane.ServiceName]bool{}
	for name := range names {
		if e := s.services[name]; e != nil && e.rules != nil && len(e.rules.Spec.Policies) > 0 {
			out[name] = true
		}
	}
	return out
}

// countServices counts the Services that some family serves as wanted. The
// caller holds mu.
func (s *store) countServices(refused map[dataplane.ServiceName]string) int {
	count := 0
	var counted []*familyState
	for _, f := range s.families {
		if !f.done {
			continue
		}
		if len(counted) == 0 {
			counted, count = append(counted, f), len(f.services)
			continue
		}
		for name := range f.services {
			if !slices.ContainsFunc(counted, func(o *familyState) bool { return o.services[name] != nil }) {
				count++
			}
		}
		counted = append(counted, f)
	}
	for name := range refused {
		if slices.ContainsFunc(counted, func(f *familyState) bool { return f.services[name] != nil }) {
			count--
		}
	}
	return count
}

// earliest returns the earlier of two times, of which zero ones do not count.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
