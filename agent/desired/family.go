package desired

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// familyState is the desired state of one IP family, and what the kernel has of it.
type familyState struct {
	*pending // the ledger's
	outcome

	// services is the desired state. Only combineDirty changes it, so the sync loop may read
	// it without the store's lock.
	services  map[dataplane.ServiceName]*dataplane.Service
	endpoints endpointCount
	// checked are the services with a health-check node port; answered is what is answered
	// there.
	checked   map[dataplane.ServiceName]*dataplane.Service
	answered  map[health.ServiceKey]health.Check
	nodePorts int // ports of services with a node port
	noLocal   noLocal

	done        bool      // there was a success
	lastUpdated time.Time // of the last success
	audit       auditor
	// fullEnd is when the last full pass ended, fullTook how long it took.
	fullEnd  time.Time
	fullTook time.Duration
}

// outcome is what the last Apply or comparison of a family has found.
type outcome struct {
	err error
	// unavailable is why the node cannot program the family, which nothing needs. It is tried
	// again at each verification, and when it is needed.
	unavailable     error
	warnings, notes []string // see dataplane.Result
	retiring        string   // likewise
	kernel          *KernelCount
	counts          dataplane.Counts
	difference      *dataplane.Difference
}

// KernelCount is what the kernel had of ours when that was last verified.
type KernelCount struct {
	dataplane.Counts
	At time.Time
}

func newFamilyState(p *pending) *familyState {
	return &familyState{
		pending:   p,
		services:  map[dataplane.ServiceName]*dataplane.Service{},
		checked:   map[dataplane.ServiceName]*dataplane.Service{},
		endpoints: endpointCount{uses: map[netip.AddrPort]uses{}},
	}
}

// needed reports whether a Service has an address of the family. Like kube-proxy, the agent
// also programs a family that no Service needs, but does not report it if the node cannot.
func (f *familyState) needed() bool { return len(f.services) > 0 }

// omitted reports whether the next Apply leaves the family out, which the node cannot program
// and nothing needs.
func (f *familyState) omitted() bool { return f.unavailable != nil && !f.needed() && !f.retry }

// unsupported reports whether the node cannot program the family, as far as known.
func (f *familyState) unsupported() bool { return errors.Is(f.err, dataplane.ErrUnsupported) }

// lack notes that the node cannot program the family, which nothing needs.
func (f *familyState) lack(why error) {
	f.outcome = outcome{unavailable: why}
	f.full = true // once it is available
	f.applyingSince, f.rejected = time.Time{}, nil
	clear(f.dirty)
}

// fail notes that an Apply of a ruleset has failed.
func (f *familyState) fail(err error, tried *dataplane.Ruleset) {
	f.full, f.err, f.unavailable = true, err, nil
	f.tryAll = f.tryAll || tried.Rest == nil // as this Apply was to do
}

// succeed takes the result of an Apply of a ruleset.
func (f *familyState) succeed(result *dataplane.Result, applied *dataplane.Ruleset, now time.Time) {
	f.err, f.unavailable, f.done = nil, nil, true
	f.lastUpdated = now
	f.written()
	f.rejected = f.rejected.noted(result, applied, now)
	for name := range result.Rejected {
		if _, rested := applied.Rest[name]; !rested && result.Reduced[name] == nil {
			f.isolated = true
		}
	}
	f.warnings, f.notes = slices.Clone(result.Warnings), slices.Clone(result.Notes)
	f.retiring, f.counts = result.Retiring, result.Counts
	if result.Kind == v1alpha1.SyncFull {
		f.difference = &dataplane.Difference{}
		f.count(result.Counts, now)
	}
}

// count notes what the kernel had when it was read in full.
func (f *familyState) count(counts dataplane.Counts, now time.Time) {
	f.kernel, f.counts = &KernelCount{Counts: counts, At: now}, counts
}

// settled reports whether a family has had a success, or none was needed when that was last
// tried. The caller holds mu.
func (s *Store) settled(family dataplane.Family) bool {
	f := s.families[family]
	return f.done || f.unavailable != nil || s.optional(family)
}

// allSettled reports whether every family is settled. The caller holds mu.
func (s *Store) allSettled() bool {
	for family := range s.families {
		if !s.settled(family) {
			return false
		}
	}
	return true
}

// optional reports whether a family has failed that nothing needs, so that its failure is not
// that of the node. It is tried again like any other. The caller holds mu.
func (s *Store) optional(family dataplane.Family) bool {
	f := s.families[family]
	return f.err != nil && !f.needed() && s.others(family, nil)
}

// others reports whether some other family is needed or can be programmed, by the outcomes or
// else by what is known of it. The caller holds mu.
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

// Excuse removes from the outcomes the families that the node cannot program and nothing
// needs, and notes them. If nothing needs any, one must be programmed all the same.
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

// Warnings are what besides the rules of Services could not be done, of all families.
func (s *Store) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinedWarnings()
}

// Absences are the families that are left out, and why.
func (s *Store) Absences() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ofFamilies(func(f *familyState) string {
		if f.unavailable == nil {
			return ""
		}
		return f.unavailable.Error()
	})
}

// Retiring is what of another mode the kernel still has, by family.
func (s *Store) Retiring() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.joinedRetiring()
}

// joinedRetiring is Retiring. The caller holds mu.
func (s *Store) joinedRetiring() []string {
	return s.ofFamilies(func(f *familyState) string { return f.retiring })
}

// ofFamilies lists a text of each family that has one. The caller holds mu.
func (s *Store) ofFamilies(text func(*familyState) string) []string {
	var out []string
	for family, f := range s.families {
		if t := text(f); t != "" {
			out = append(out, string(family)+": "+t)
		}
	}
	slices.Sort(out)
	return out
}

// RejectedNames are the Services that the kernel rejects, sorted.
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
		if s.optional(family) {
			all = append(all, fmt.Sprintf("%s, which no Service uses, is not programmed: %v", family, f.err))
		}
		if s.own.current != nil && f.needed() {
			all = append(all, factWarnings(family, s.own.nodes[family], f.nodePorts > 0)...)
		}
	}
	if s.ledger.longDeferred() {
		all = append(all, fmt.Sprintf("changes of large Services have waited for their turn for more than %s", deferralNoted))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
