package desired

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Snapshot is what the store knows at one moment, for status and metrics. It shares nothing
// that changes.
type Snapshot struct {
	Now time.Time
	// Own is the own NodeProxyRules as last seen; nil before the first. Exists is false once it
	// is gone.
	Own    *v1alpha1.NodeProxyRules
	Exists bool
	// Listed: the first list of ServiceProxyRules has come.
	Listed    bool
	Rejection *Rejection
	Mode      ModeChoice
	// Userspace: the settings have mode Userspace.
	Userspace bool
	// Audit: enforcement is Audit, so what follows is known from comparisons.
	Audit bool
	// Done: every family that is needed has had a success.
	Done          bool
	Err           error     // of the last Apply, all families joined
	OldestPending time.Time // zero: none
	Families      map[dataplane.Family]FamilySnapshot
	Retained      []dataplane.ServiceName // sorted
	RetainedSince time.Time               // the oldest; zero: none
	// UnconfirmedSince is since when list and inventory differ; zero: they agree.
	UnconfirmedSince time.Time
	InventoryKnown   bool
	Rejected         map[dataplane.ServiceName]string
	// Suspected are the rejected Services that may not be at fault.
	Suspected map[dataplane.ServiceName]bool
	// Shaped are the rejected Services that policies shape.
	Shaped          map[dataplane.ServiceName]bool
	Warnings        []string // sorted
	PendingCleanups []string // likewise
	Applied         Applied
	// Services, Endpoints and Local are counts of what is programmed.
	Services, Endpoints, Local int
	Kernel                     *KernelCount
	// Restored is what is used of the checkpoint.
	Restored   Restored
	Removal    Removal
	Difference *dataplane.Difference
	Changes    ChangeTotals
}

// FamilySnapshot is one family's part of a snapshot.
type FamilySnapshot struct {
	Done   bool
	Counts dataplane.Counts
}

// ShownMode is the mode that was applied last: Userspace if the kernel redirects all connections to the
// agent.
func (s *Snapshot) ShownMode() v1alpha1.ProxyMode {
	if s.Userspace && s.Applied.Mode == v1alpha1.ModeUserspace.Kernel() {
		return v1alpha1.ModeUserspace
	}
	return s.Applied.Mode
}

// ExpireAgreement notes since when list and inventory differ if the set in which they last agreed
// has become too old. No event reports that, so it is called before a Snapshot for the status.
func (s *Store) ExpireAgreement() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, i := s.clock.Now(), s.catalog.inventory
	if _, agreed := i.agrees(now); i.listed && !agreed && i.unconfirmedSince.IsZero() {
		i.unconfirmedSince = now
	}
}

// Snapshot returns a copy of the state for the status and the metrics.
func (s *Store) Snapshot() Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.catalog.inventory
	out := Snapshot{
		Now: s.clock.Now(), Own: s.own.rules, Exists: s.own.exists, Listed: i.listed, Rejection: cmp.Or(s.own.rejection, s.mode.Rejection), Mode: s.mode, Audit: s.own.audit(),
		Done:             len(s.families) > 0 && s.families.allSettled(),
		Families:         map[dataplane.Family]FamilySnapshot{},
		Retained:         slices.SortedFunc(maps.Keys(s.catalog.retained), dataplane.ServiceName.Compare),
		UnconfirmedSince: i.unconfirmedSince,
		InventoryKnown:   i.desired != nil,
		Rejected:         map[dataplane.ServiceName]string{},
		Suspected:        map[dataplane.ServiceName]bool{},
		Warnings:         s.warnings(),
		PendingCleanups:  s.families.pendingCleanups(),
		Applied:          s.actual.applied,
		Restored:         s.restored,
		Removal:          s.removal.Removal,
		Changes:          s.ledger.metrics.totals(),
	}
	if s.own.settings != nil {
		out.Userspace = *s.own.settings.Mode == v1alpha1.ModeUserspace
	}
	if s.diskWarning != "" {
		out.Warnings = append(out.Warnings, s.diskWarning)
	}
	for _, e := range s.catalog.retained {
		out.RetainedSince = earliest(out.RetainedSince, e.vanishedAt)
	}
	for name, e := range s.catalog.invalid {
		out.Rejected[name] = e.invalid
	}
	outcomes := map[dataplane.Family]dataplane.Outcome[struct{}]{}
	for family, f := range s.families {
		if !s.families.optional(family) {
			outcomes[family] = dataplane.Outcome[struct{}]{Err: f.err}
		}
		out.addFamily(family, f, s.waits(f))
	}
	out.Err = dataplane.JoinErrors(outcomes)
	out.Services = s.families.count(out.Rejected)
	out.Shaped = s.catalog.shaped(out.Rejected)
	return out
}

func (s *Snapshot) addFamily(family dataplane.Family, f *familyState, pending time.Time) {
	s.Families[family] = FamilySnapshot{Done: f.done, Counts: f.counts}
	s.OldestPending = earliest(s.OldestPending, pending)
	if !f.done {
		return
	}
	s.Endpoints += len(f.endpoints.uses)
	s.Local += f.endpoints.local
	for name, r := range f.rejected {
		if _, proven := s.Rejected[name]; proven && !s.Suspected[name] && r.suspected {
			continue // of the other family
		}
		s.Rejected[name] = fmt.Sprintf("%s: %s", family, r.reason)
		s.Suspected[name] = r.suspected
	}
	if k := f.kernel; k != nil {
		if s.Kernel == nil {
			s.Kernel = &KernelCount{At: k.At}
		}
		s.Kernel.Counts = s.Kernel.Add(k.Counts)
		s.Kernel.At = earliest(s.Kernel.At, k.At)
	}
	if d := f.difference; d != nil {
		if s.Difference == nil {
			s.Difference = &dataplane.Difference{}
		}
		s.Difference.Count += d.Count
		s.Difference.Examples = append(s.Difference.Examples, d.Examples...)
	}
}

// shaped returns which Services policies shape.
func (c *catalog) shaped(names map[dataplane.ServiceName]string) map[dataplane.ServiceName]bool {
	out := map[dataplane.ServiceName]bool{}
	for name := range names {
		if e := c.services[name]; e != nil && e.rules != nil && len(e.rules.Spec.Policies) > 0 {
			out[name] = true
		}
	}
	return out
}

// earliest returns the earlier of two times, of which zero ones do not count.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}
