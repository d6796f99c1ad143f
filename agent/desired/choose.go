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
	l := s.ledger
	l.taken, l.left = map[dataplane.ServiceName]deferral{}, false
	if s.own.current == nil {
		return syncer.Load{} // nothing can be combined yet
	}
	waited := l.deferred
	l.deferred = map[dataplane.ServiceName]deferral{}
	for name, change := range waited {
		l.dirty[name] = l.dirty[name] || change.force
	}
	var load syncer.Load
	if s.actual.complete && !s.families.anyFull() && !s.own.audit() && !s.removal.Requested { // else the whole kernel is read anyway
		c := choice{ledger: l, waited: waited, catalog: s.catalog, families: s.families}
		load = c.deferCostly(all)
	}
	l.chosen = s.newest()
	s.combineDirty()
	return load
}

// LastLoad is what the last sync has proved to be: costly if it has found out which Services the
// kernel rejects, which is as costly as to write them; left if a part is.
func (s *Store) LastLoad() syncer.Load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return syncer.Load{
		Costly: some(maps.Values(s.families), func(f *familyState) bool { return f.isolated }), Left: s.ledger.left,
	}
}

// choice decides for one sync which of the dirty Services are deferred. It lives during Choose only,
// under the store's lock.
type choice struct {
	ledger   *ledger
	waited   map[dataplane.ServiceName]deferral // deferred so far
	catalog  *catalog
	families families
	// costly are those to be deferred; partners are to be written together.
	costly   map[dataplane.ServiceName]struct{}
	partners map[dataplane.ServiceName][]dataplane.ServiceName
}

// deferCostly defers costly changes, some of which were deferred before.
func (c *choice) deferCostly(all bool) syncer.Load {
	l := c.ledger
	c.findCostly()
	if len(c.costly) == 0 {
		return syncer.Load{}
	}
	c.join()
	for name := range c.costly {
		change, waited := c.waited[name]
		if !waited {
			change = deferral{since: l.clock.Now(), before: l.chosen}
		}
		change.force = l.dirty[name]
		l.deferred[name] = change
	}
	if all {
		c.takeFairly()
	}
	for name := range l.deferred {
		delete(l.dirty, name)
	}
	return syncer.Load{Costly: all, Left: len(l.deferred) > 0}
}

// takeFairly takes as much of the deferred changes as one sync writes: from each namespace in
// turn, what has waited longest.
func (c *choice) takeFairly() {
	l := c.ledger
	order := slices.SortedFunc(maps.Keys(l.deferred), func(a, b dataplane.ServiceName) int {
		return cmp.Or(l.deferred[a].since.Compare(l.deferred[b].since), a.Compare(b))
	})
	rank, count := map[dataplane.ServiceName]int{}, map[string]int{}
	for _, name := range order {
		rank[name] = count[name.Namespace]
		count[name.Namespace]++
	}
	slices.SortStableFunc(order, func(a, b dataplane.ServiceName) int {
		return cmp.Or(rank[a]-rank[b], l.served[a.Namespace]-l.served[b.Namespace])
	})
	for pairs := 0; len(order) > 0; order = order[1:] {
		if _, waits := l.deferred[order[0]]; !waits {
			continue
		}
		group, size := c.groupOf(order[0])
		if pairs > 0 && pairs+size > costlyAtOnce {
			break
		}
		pairs += size
		l.servings++
		l.served[order[0].Namespace] = l.servings
		for name := range group {
			l.taken[name] = c.writing(name)
			delete(l.deferred, name)
		}
	}
	maps.DeleteFunc(l.served, func(namespace string, _ int) bool { return count[namespace] == 0 })
}

// writing returns a deferred change as it is about to be written.
func (c *choice) writing(name dataplane.ServiceName) deferral {
	change := c.ledger.deferred[name]
	if change.programmed == nil { // no part of it is written
		change.programmed = map[dataplane.Family]*dataplane.Service{}
		for family, f := range c.families {
			change.programmed[family] = f.services[name]
		}
	}
	return change
}

// programmed returns what the kernel may have of a Service in a family, each of which may be nil.
func (c *choice) programmed(name dataplane.ServiceName, family dataplane.Family) []*dataplane.Service {
	return []*dataplane.Service{c.families[family].services[name], c.waited[name].programmed[family]}
}

// groupOf returns a deferred Service with those that are to be written in the same sync, and
// the size of all of them. That is limited: if a user moves claims between more Services, some
// have no address, or two the same one, for a moment.
func (c *choice) groupOf(first dataplane.ServiceName) (map[dataplane.ServiceName]struct{}, int) {
	group, size := map[dataplane.ServiceName]struct{}{}, 0
	for queue := []dataplane.ServiceName{first}; len(queue) > 0 && size <= groupAtMost; queue = queue[1:] {
		name := queue[0]
		_, again := group[name]
		if _, waits := c.ledger.deferred[name]; again || !waits {
			continue
		}
		group[name] = struct{}{}
		size += c.pairs(name)
		queue = append(queue, c.partners[name]...)
	}
	return group, size
}

// findCostly finds the dirty Services of the namespaces with the largest changes, and of those with
// a Service that the kernel rejects: it may reject others.
func (c *choice) findCostly() {
	pairs := map[string]int{} // by namespace
	for name := range c.ledger.dirty {
		pairs[name.Namespace] += c.pairs(name)
	}
	small, sum := map[string]bool{}, 0
	for _, namespace := range slices.SortedFunc(maps.Keys(pairs), func(a, b string) int { return pairs[a] - pairs[b] }) {
		sum += pairs[namespace]
		small[namespace] = pairs[namespace] <= smallOfNamespace && sum <= smallInAll
	}
	for _, f := range c.families {
		for name, r := range f.rejected {
			if !r.reduced {
				small[name.Namespace] = false
			}
		}
	}
	c.costly = map[dataplane.ServiceName]struct{}{}
	for name := range c.ledger.dirty {
		if !small[name.Namespace] {
			c.costly[name] = struct{}{}
		}
	}
}

// join adds to costly the small Services that must not be written before one of it: those that
// a claim has moved to or from, and those that claim what it is still programmed with. It
// notes which Services are to be written together.
func (c *choice) join() {
	claimed, addresses := c.claimedBySmall()
	c.partners = map[dataplane.ServiceName][]dataplane.ServiceName{}
	queue := slices.Collect(maps.Keys(c.costly))
	together := func(a, b dataplane.ServiceName) {
		c.partners[a], c.partners[b] = append(c.partners[a], b), append(c.partners[b], a)
		if _, is := c.costly[b]; !is {
			c.costly[b] = struct{}{}
			queue = append(queue, b)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		name := queue[0]
		for other := range c.ledger.moved[name] {
			if _, dirty := c.ledger.dirty[other]; dirty {
				together(name, other)
			}
		}
		for family := range c.families {
			for _, svc := range c.programmed(name, family) {
				for claim := range combine.Served(svc, family, addresses) {
					for _, other := range claimed[claim] {
						if other != name {
							together(name, other)
						}
					}
					delete(claimed, claim)
				}
			}
		}
	}
}

// claimedBySmall lists the dirty Services that are not costly by what they claim, and the
// addresses of these claims.
func (c *choice) claimedBySmall() (map[combine.Claim][]dataplane.ServiceName, map[netip.Addr]struct{}) {
	claimed, addresses := map[combine.Claim][]dataplane.ServiceName{}, map[netip.Addr]struct{}{}
	for name := range c.ledger.dirty {
		e := c.catalog.services[name]
		if _, is := c.costly[name]; is || e == nil || e.rules == nil {
			continue
		}
		for _, asked := range combine.Claims(&e.rules.Spec) {
			if !c.catalog.claims.Lost(e, asked.Claim) {
				claimed[asked.Claim] = append(claimed[asked.Claim], name)
				addresses[asked.Address] = struct{}{}
			}
		}
	}
	return claimed, addresses
}

// pairs is the size of a change: that of the Service as it is programmed, also in part, or as it
// will be, whichever is larger.
func (c *choice) pairs(name dataplane.ServiceName) int {
	desired, programmed := 1, 0
	if e := c.catalog.services[name]; e != nil && e.rules != nil {
		size := v1alpha1.SizeOf(&e.rules.Spec)
		desired += size.Ports + size.Combinations()
	}
	for family := range c.families {
		size := 0
		for _, svc := range c.programmed(name, family) {
			size = max(size, pairsOf(svc))
		}
		programmed += size
	}
	return max(desired, programmed)
}

// pairsOf is the size of a Service as it is programmed; a nil one has ended.
func pairsOf(svc *dataplane.Service) int {
	if svc == nil {
		return 0
	}
	pairs := len(svc.Ports) * (1 + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs) + len(svc.SourceRanges)*(1+len(svc.LoadBalancerIPs)))
	for i := range svc.Ports {
		pairs += (len(svc.Ports[i].Cluster) + len(svc.Ports[i].Local)) * (1 + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs))
	}
	return pairs
}
