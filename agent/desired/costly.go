package desired

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/syncer"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// What a sync writes, in pairs of a port with an endpoint, an address or a source range, so that
// one namespace's large Services do not delay the small changes of all others: a node takes some
// tenths of a second for the last one.
const (
	// smallOfNamespace bounds the small changes of one namespace, smallInAll those of all
	// together. What exceeds them is costly, and waits until the syncer has rested.
	smallOfNamespace = 100
	smallInAll       = 2_000
	// costlyAtOnce bounds the costly changes of one sync; a larger Service is written by itself.
	// groupAtMost bounds those that are written together because claims move between them.
	costlyAtOnce = 1_000
	groupAtMost  = 50_000
)

// turnNoted is after how long the status says that costly changes wait.
const turnNoted = 10 * time.Second

// setAside is a change that waits.
type setAside struct {
	force bool // see dirty
	since time.Time
	// before is what holds while it waits, if nothing waits that came before it.
	before Applied
}

// Choose decides what the next sync writes, and combines it: all small changes, and, if all,
// some of the costly ones. The others wait for a later call.
func (s *Store) Choose(all bool) syncer.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.families {
		f.isolated = false
	}
	if s.current == nil {
		return syncer.Load{} // nothing can be combined yet
	}
	former := s.aside
	s.aside = map[dataplane.ServiceName]setAside{}
	for name, change := range former {
		s.dirty[name] = s.dirty[name] || change.force
	}
	var load syncer.Load
	if s.complete && !s.anyFull() && !s.inAudit() && !s.removal.Wanted { // else the kernel is read as a whole, whatever has changed
		load = s.setCostlyAside(all, former)
	}
	s.chosen = s.newest()
	s.combineDirty()
	return load
}

// Isolated reports whether the last sync has found out which Services the kernel rejects. That is as
// costly as to write them.
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

// setCostlyAside sets costly changes aside, some of which were before. The caller holds mu.
func (s *Store) setCostlyAside(all bool, former map[dataplane.ServiceName]setAside) syncer.Load {
	costly := s.costly()
	if len(costly) == 0 {
		return syncer.Load{}
	}
	partners := s.join(costly)
	now := s.clock.Now()
	for name := range costly {
		change, waited := former[name]
		if !waited {
			change = setAside{since: now, before: s.chosen}
		}
		change.force = s.dirty[name]
		s.aside[name] = change
	}
	if all {
		s.takeTurns(partners)
	}
	for name := range s.aside {
		delete(s.dirty, name)
	}
	return syncer.Load{Costly: all, Left: len(s.aside) > 0}
}

// takeTurns takes of what is set aside as much as one sync writes: the namespaces take turns, with
// what has waited longest in each. The caller holds mu.
func (s *Store) takeTurns(partners map[dataplane.ServiceName][]dataplane.ServiceName) {
	order := slices.SortedFunc(maps.Keys(s.aside), func(a, b dataplane.ServiceName) int {
		return cmp.Or(s.aside[a].since.Compare(s.aside[b].since), a.Compare(b))
	})
	rank, count := map[dataplane.ServiceName]int{}, map[string]int{}
	for _, name := range order {
		rank[name] = count[name.Namespace]
		count[name.Namespace]++
	}
	slices.SortStableFunc(order, func(a, b dataplane.ServiceName) int {
		return cmp.Or(rank[a]-rank[b], s.turns[a.Namespace]-s.turns[b.Namespace])
	})
	for pairs := 0; len(order) > 0; order = order[1:] {
		if _, waits := s.aside[order[0]]; !waits {
			continue
		}
		group, size := s.groupOf(order[0], partners)
		if pairs > 0 && pairs+size > costlyAtOnce {
			break
		}
		pairs += size
		s.turn++
		s.turns[order[0].Namespace] = s.turn
		for name := range group {
			delete(s.aside, name)
		}
	}
	maps.DeleteFunc(s.turns, func(namespace string, _ int) bool { return count[namespace] == 0 })
}

// groupOf returns a Service that is set aside, with those that are to be written in the same
// sync, and how large all of them are. There is an end to that: who moves claims between more
// Services has some of them without an address, or two with the same one, for a moment. The
// caller holds mu.
func (s *Store) groupOf(first dataplane.ServiceName, partners map[dataplane.ServiceName][]dataplane.ServiceName) (map[dataplane.ServiceName]struct{}, int) {
	group, size := map[dataplane.ServiceName]struct{}{}, 0
	for queue := []dataplane.ServiceName{first}; len(queue) > 0 && size <= groupAtMost; queue = queue[1:] {
		name := queue[0]
		_, again := group[name]
		if _, waits := s.aside[name]; again || !waits {
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
		if f.full && !f.omitted() && !s.spared(family) {
			return true
		}
	}
	return false
}

// costly are the dirty Services of the namespaces with the largest changes, and of those with a
// Service that the kernel rejects: it may reject others. The caller holds mu.
func (s *Store) costly() map[dataplane.ServiceName]struct{} {
	pairs := map[string]int{} // by namespace
	for name := range s.dirty {
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
	for name := range s.dirty {
		if !small[name.Namespace] {
			costly[name] = struct{}{}
		}
	}
	return costly
}

// join adds to costly the small Services that must not be written before one of it: those that
// a claim has moved to or from, and those that claim what it is still programmed with. It returns
// which Services are to be written together. The caller holds mu.
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
		for other := range s.moved[name] {
			if _, dirty := s.dirty[other]; dirty {
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
	for name := range s.dirty {
		e := s.services[name]
		if _, is := costly[name]; is || e == nil || e.rules == nil {
			continue
		}
		for _, asked := range combine.Claims(&e.rules.Spec) {
			if !s.claims.Lost(e, asked.Claim) {
				claimed[asked.Claim] = append(claimed[asked.Claim], name)
				addresses[asked.Address] = struct{}{}
			}
		}
	}
	return claimed, addresses
}

// noteMoved notes that a change of a Service's claims concerns others, until they are combined.
// The caller holds mu.
func (s *Store) noteMoved(e *entry, concerned []*entry) {
	add := func(a, b dataplane.ServiceName) {
		if s.moved[a] == nil {
			s.moved[a] = map[dataplane.ServiceName]struct{}{}
		}
		s.moved[a][b] = struct{}{}
	}
	for _, o := range concerned {
		add(e.name, o.name)
		add(o.name, e.name)
	}
}

// pairs is how large a change is: the Service as it is programmed or as it will be, whichever
// is larger. The caller holds mu.
func (s *Store) pairs(name dataplane.ServiceName) int {
	desired, programmed := 1, 0
	if e := s.services[name]; e != nil && e.rules != nil {
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

// longSetAside reports whether a costly change has waited for longer than turnNoted. The
// caller holds mu.
func (s *Store) longSetAside() bool {
	now := s.clock.Now()
	for _, change := range s.aside {
		if now.Sub(change.since) > turnNoted {
			return true
		}
	}
	return false
}
