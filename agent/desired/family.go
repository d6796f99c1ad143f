package desired

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// familyState is the desired state of one IP family, and what the kernel has of it.
type familyState struct {
	*pending // the ledger's
	outcome

	// services is the desired state. Only combineDirty changes it, by set, so the sync loop
	// may read it without the store's lock.
	services  map[dataplane.ServiceName]*dataplane.Service
	endpoints endpointCount
	// checked are the services with a health-check node port; answered is what is answered
	// there.
	checked   map[dataplane.ServiceName]*dataplane.Service
	answered  map[dataplane.ServiceName]health.Check
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
	cleanupPending  string   // likewise
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

// set makes svc the desired state of a Service; nil: it has none.
func (f *familyState) set(name dataplane.ServiceName, svc *dataplane.Service, force bool) {
	former := f.services[name]
	if combine.Equal(former, svc) && !force {
		return
	}
	f.recount(name, former, svc)
	if svc == nil {
		delete(f.services, name)
	} else {
		f.services[name] = svc
	}
	f.dirty[name] = struct{}{}
}

// lack notes that the node cannot program the family, which nothing needs.
func (f *familyState) lack(why error) {
	f.outcome = outcome{unavailable: why}
	f.need = fullPass // once it is available
	f.applyingSince, f.rejected = time.Time{}, nil
	clear(f.dirty)
}

// fail notes that an Apply of a ruleset has failed.
func (f *familyState) fail(err error, tried *dataplane.Ruleset) {
	f.need, f.err, f.unavailable = fullPass, err, nil
	f.tryAll = f.tryAll || tried.Rest == nil // as this Apply was to do
}

// succeed takes the result of an Apply of a ruleset.
func (f *familyState) succeed(result *dataplane.Result, applied *dataplane.Ruleset, now time.Time) {
	f.err, f.unavailable, f.done = nil, nil, true
	f.lastUpdated = now
	f.written()
	f.rejected = f.rejected.noted(result, applied, now)
	for name := range result.Rejected {
		_, rested := applied.Rest[name]
		if _, unfinished := result.Unfinished[name]; !rested && !unfinished && result.Reduced[name] == nil {
			f.isolated = true
		}
	}
	f.warnings, f.notes = slices.Clone(result.Warnings), slices.Clone(result.Notes)
	f.cleanupPending, f.counts = result.CleanupPending, result.Counts
	if result.Kind == v1alpha1.SyncFull {
		f.difference = &dataplane.Difference{}
		f.count(result.Counts, now, false)
	} else if result.Repaired.Count > 0 {
		f.difference = &dataplane.Difference{}
		f.count(result.Counts, now, true)
	}
}

// count notes what the kernel had when it was read in full; unread: what it has by its own count of
// changes, for which it was not read again.
func (f *familyState) count(counts dataplane.Counts, now time.Time, unread bool) {
	if unread && f.kernel != nil {
		now = f.kernel.At
	}
	f.kernel, f.counts = &KernelCount{Counts: counts, At: now}, counts
}

// families are all IP families of the node.
type families map[dataplane.Family]*familyState

// settled reports whether a family has had a success, or needed none when that was last tried.
func (all families) settled(family dataplane.Family) bool {
	f := all[family]
	return f.done || f.unavailable != nil || all.optional(family)
}

// allSettled reports whether every family is settled.
func (all families) allSettled() bool {
	return !some(maps.Keys(all), func(family dataplane.Family) bool { return !all.settled(family) })
}

// inOrder reports whether no family that is needed has failed, or was not tried.
func (all families) inOrder() bool {
	return !some(maps.Keys(all), func(family dataplane.Family) bool {
		return !all.settled(family) || all[family].err != nil && !all.optional(family)
	})
}

// optional reports whether a family has failed that nothing needs, so that its failure is not
// that of the node. It is tried again like any other.
func (all families) optional(family dataplane.Family) bool {
	f := all[family]
	return f.err != nil && !f.needed() && all.others(family, nil)
}

// anyFull reports whether the next Apply compares everything in a family that the node serves.
func (all families) anyFull() bool {
	return some(maps.Keys(all), func(family dataplane.Family) bool {
		f := all[family]
		return f.need == fullPass && !f.omitted() && !all.optional(family)
	})
}

// others reports whether some other family is needed or can be programmed, by the outcomes or
// else by what is known of it.
func (all families) others(family dataplane.Family, outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) bool {
	for other, f := range all {
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

// excuse is Store.Excuse.
func (all families) excuse(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) {
	for _, family := range []dataplane.Family{dataplane.IPv6, dataplane.IPv4} {
		f, outcome := all[family], outcomes[family]
		if !errors.Is(outcome.Err, dataplane.ErrUnsupported) {
			continue
		}
		f.done = false
		if !f.needed() && all.others(family, outcomes) {
			f.lack(outcome.Err)
			delete(outcomes, family)
		}
	}
}

// forget discards what is known of the kernel.
func (all families) forget() {
	for _, f := range all {
		f.outcome, f.done, f.retry = outcome{counts: f.counts}, false, false
		f.rejected, f.applyingSince, f.audit = nil, time.Time{}, auditor{}
	}
}

// unavailable lists the families that are left out, and why.
func (all families) unavailable() []string {
	return all.texts(func(f *familyState) string { return wording.OfError(f.unavailable) })
}

// pendingCleanups is what of another mode the kernel still has, by family.
func (all families) pendingCleanups() []string {
	return all.texts(func(f *familyState) string { return f.cleanupPending })
}

// texts lists a text of each family that has one.
func (all families) texts(text func(*familyState) string) []string {
	var out []string
	for family, f := range all {
		if t := text(f); t != "" {
			out = append(out, string(family)+": "+t)
		}
	}
	slices.Sort(out)
	return out
}

// rejectedNames are the Services that the kernel rejects, sorted.
func (all families) rejectedNames() []string {
	var names []string
	for _, f := range all {
		for name := range f.rejected {
			names = append(names, name.String())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// warnings are what could not be done, and what the node lacks.
func (all families) warnings(own *ownObject) []string {
	var out []string
	for family, f := range all {
		out = append(out, f.warnings...)
		out = append(out, f.notes...)
		if all.optional(family) {
			out = append(out, fmt.Sprintf("%s, which no Service uses, is not programmed: %v", family, f.err))
		}
		if own.current != nil && f.needed() {
			out = append(out, factWarnings(family, own.nodes[family], f.nodePorts > 0)...)
		}
	}
	return out
}

// count counts the Services that some family serves, without the rejected ones.
func (all families) count(rejected map[dataplane.ServiceName]string) int {
	count := 0
	var counted []*familyState
	for _, f := range all {
		if !f.done {
			continue
		}
		if len(counted) == 0 { // without a look at each, as this is called every second
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
	for name := range rejected {
		if slices.ContainsFunc(counted, func(f *familyState) bool { return f.services[name] != nil }) {
			count--
		}
	}
	return count
}

// Excuse removes from the outcomes the families that the node cannot program and nothing
// needs, and notes them. If nothing needs any, one must be programmed all the same.
func (s *Store) Excuse(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Result]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.families.excuse(outcomes)
}

// Notices are what the log has of the last outcome, each of them sorted.
type Notices struct {
	Unavailable     []string // IP families that are left out, and why
	Warnings        []string // what besides the rules of Services could not be done
	PendingCleanups []string // what of another mode the kernel still has
	Rejected        []string // Services that the kernel rejects
}

// Notices returns those of all families.
func (s *Store) Notices() Notices {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Notices{s.families.unavailable(), s.warnings(), s.families.pendingCleanups(), s.families.rejectedNames()}
}

// warnings are sorted, each of them once. The caller holds mu.
func (s *Store) warnings() []string {
	all := slices.Concat(s.families.warnings(&s.own), s.own.warnings(), s.ledger.warnings())
	slices.Sort(all)
	return slices.Compact(all)
}
