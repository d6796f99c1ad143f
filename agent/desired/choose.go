package desired

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Limits of what a sync writes, in pairs of a port with an endpoint, an address or a source
// range, so that one namespace's large Services do not delay the small changes of all others.
// A node takes some tenths of a second for the last one.
const (
	// smallOfNamespace limits the small changes of one namespace, smallInAll those of all
	// together. What exceeds them is costly, and waits until the syncer has rested.
	smallOfNamespace = 100
	smallInAll       = 2_000
	// costlyAtOnce limits the costly changes of one sync; a larger Service is written alone.
	// groupAtMost limits those that are written together because claims move between them.
	costlyAtOnce = 1_000
	groupAtMost  = 50_000
)

// Choose decides what the next sync writes, and combines it: all small changes and, if all,
// some of the costly ones. The others wait for a later call.
func (s *Store) Choose(all bool) syncer.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.families {
		f.isolated = false
	}
	if s.own.current == nil {
		return syncer.Load{} // nothing can be combined yet
	}
	l := s.ledger
	former := l.deferred
	l.deferred = map[dataplane.ServiceName]deferral{}
	for name, change := range former {
		l.dirty[name] = l.dirty[name] || change.force
	}
	var load syncer.Load
	if s.actual.complete && !s.anyFull() && !s.own.audit() && !s.removal.Wanted { // else the whole kernel is read anyway
		load = s.deferCostly(all, former)
	}
	l.chosen = s.newest()
	s.combineDirty()
	return load
}

// Isolated reports whether the last sync has found out which Services the kernel rejects. That
// is as costly as to write them.
func (s *Store) Isolated() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.families {
		if f.isolated {
			return true
		}
	}
	return false
}

// deferCostly defers costly changes, some of which were deferred before. The caller holds mu.
func (s *Store) deferCostly(all bool, former map[dataplane.ServiceName]deferral) syncer.Load {
	costly := s.costly()
	if len(costly) == 0 {
		return syncer.Load{}
	}
	partners := s.join(costly)
	l := s.ledger
	now := s.clock.Now()
	for name := range costly {
		change, waited := former[name]
		if !waited {
			change = deferral{since: now, before: l.chosen}
		}
		change.force = l.dirty[name]
		l.deferred[name] = change
	}
	if all {
		s.takeTurns(partners)
	}
	for name := range l.deferred {
		delete(l.dirty, name)
	}
	return syncer.Load{Costly: all, Left: len(l.deferred) > 0}
}

// takeTurns takes as much of the deferred changes as one sync writes: from each namespace in
// turn, what has waited longest. The caller holds mu.
func (s *Store) takeTurns(partners map[dataplane.ServiceName][]dataplane.ServiceName) {
	l := s.ledger
	order := slices.SortedFunc(maps.Keys(l.deferred), func(a, b dataplane.ServiceName) int {
		return cmp.Or(l.deferred[a].since.Compare(l.deferred[b].since), a.Compare(b))
	})
	rank, count := map[dataplane.ServiceName]int{}, map[string]int{}
	for _, name := range order {
		rank[name] = count[name.Namespace]
		count[name.Namespace]++
	}
	slices.SortStableFunc(order, func(a, b dataplane.ServiceName) int {
		return cmp.Or(rank[a]-rank[b], l.turns[a.Namespace]-l.turns[b.Namespace])
	})
	for pairs := 0; len(order) > 0; order = order[1:] {
		if _, waits := l.deferred[order[0]]; !waits {
			continue
		}
		group, size := s.groupOf(order[0], partners)
		if pairs > 0 && pairs+size > costlyAtOnce {
			break
		}
		pairs += size
		l.turn++
		l.turns[order[0].Namespace] = l.turn
		for name := range group {
			delete(l.deferred, name)
		}
	}
	maps.DeleteFunc(l.turns, func(namespace string, _ int) bool { return count[namespace] == 0 })
}

// groupOf returns a deferred Service with those that are to be written in the same sync, and
// the size of all of them. That is limited: if a user moves claims between more Services, some
// have no address, or two the same one, for a moment. The caller holds mu.
func (s *Store) groupOf(first dataplane.ServiceName, partners map[dataplane.ServiceName][]dataplane.ServiceName) (map[dataplane.ServiceName]struct{}, int) {
	group, size := map[dataplane.ServiceName]struct{}{}, 0
	for queue := []dataplane.ServiceName{first}; len(queue) > 0 && size <= groupAtMost; queue = queue[1:] {
		name := queue[0]
		_, again := group[name]
		if _, waits := s.ledger.deferred[name]; again || !waits {
			continue
		}
		group[name] = struct{}{}
		size += s.pairs(name)
		queue = append(queue, partners[name]...)
	}
	return group, size
}

// anyFull reports whether the next Apply compares everything in some family that the node
// serves. The caller holds mu.
func (s *Store) anyFull() bool {
	for family, f := range s.families {
		if f.full && !f.omitted() && !s.optional(family) {
			return true
		}
	}
	return false
}

// costly are the dirty Services of the namespaces with the largest changes, and of those with a
// Service that the kernel rejects: it may reject others. The caller holds mu.
func (s *Store) costly() map[dataplane.ServiceName]struct{} {
	pairs := map[string]int{} // by namespace
	for name := range s.ledger.dirty {
		pairs[name.Namespace] += s.pairs(name)
	}
	small, sum := map[string]bool{}, 0
	for _, namespace := range slices.SortedFunc(maps.Keys(pairs), func(a, b string) int { return pairs[a] - pairs[b] }) {
		sum += pairs[namespace]
		small[namespace] = pairs[namespace] <= smallOfNamespace && sum <= smallInAll
	}
	for _, f := range s.families {
		for name, r := range f.rejected {
			if !r.reduced {
				small[name.Namespace] = false
			}
		}
	}
	costly := map[dataplane.ServiceName]struct{}{}
	for name := range s.ledger.dirty {
		if !small[name.Namespace] {
			costly[name] = struct{}{}
		}
	}
	return costly
}

// join adds to costly the small Services that must not be written before one of it: those that
// a claim has moved to or from, and those that claim what it is still programmed with. It
// returns which Services are to be written together. The caller holds mu.
func (s *Store) join(costly map[dataplane.ServiceName]struct{}) map[dataplane.ServiceName][]dataplane.ServiceName {
	claimed, addresses := s.claimedBySmall(costly)
	partners := map[dataplane.ServiceName][]dataplane.ServiceName{}
	queue := slices.Collect(maps.Keys(costly))
	together := func(a, b dataplane.ServiceName) {
		partners[a], partners[b] = append(partners[a], b), append(partners[b], a)
		if _, is := costly[b]; !is {
			costly[b] = struct{}{}
			queue = append(queue, b)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		for other := range s.ledger.moved[name] {
			if _, dirty := s.ledger.dirty[other]; dirty {
				together(name, other)
			}
		}
		for family, f := range s.families {
			for claim := range combine.Served(f.services[name], family, addresses) {
				for _, other := range claimed[claim] {
					if other != name {
						together(name, other)
					}
				}
				delete(claimed, claim)
			}
		}
	}
	return partners
}

// claimedBySmall lists the dirty Services that are not costly by what they claim, and the
// addresses of these claims. The caller holds mu.
func (s *Store) claimedBySmall(costly map[dataplane.ServiceName]struct{}) (map[combine.Claim][]dataplane.ServiceName, map[netip.Addr]struct{}) {
	claimed, addresses := map[combine.Claim][]dataplane.ServiceName{}, map[netip.Addr]struct{}{}
	for name := range s.ledger.dirty {
		e := s.catalog.services[name]
		if _, is := costly[name]; is || e == nil || e.rules == nil {
			continue
		}
		for _, asked := range combine.Claims(&e.rules.Spec) {
			if !s.catalog.claims.Lost(e, asked.Claim) {
				claimed[asked.Claim] = append(claimed[asked.Claim], name)
				addresses[asked.Address] = struct{}{}
			}
		}
	}
	return claimed, addresses
}

// pairs is the size of a change: that of the Service as it is programmed or as it will be,
// whichever is larger. The caller holds mu.
func (s *Store) pairs(name dataplane.ServiceName) int {
	desired, programmed := 1, 0
	if e := s.catalog.services[name]; e != nil && e.rules != nil {
		size := v1alpha1.SizeOf(&e.rules.Spec)
		desired += size.Ports + size.Combinations()
	}
	for _, f := range s.families {
		svc := f.services[name]
		if svc == nil {
			continue
		}
		programmed += len(svc.Ports) * (1 + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs) + len(svc.SourceRanges)*(1+len(svc.LoadBalancerIPs)))
		for i := range svc.Ports {
			programmed += len(svc.Ports[i].Cluster) + len(svc.Ports[i].Local)
		}
	}
	return max(desired, programmed)
}
