package ipvs

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
)

// partialPass is an Apply of changed Services alone.
type partialPass struct {
	*Dataplane
	config *config // what to plan by, from now on
	plans  map[dataplane.ServiceName]*servicePlan
	// delta is how many more the plans need of anything than what is held of the
	// same Services.
	delta needs
	diff  diff
	// contest is what came of the plans where several Services ask for the same.
	contest *resolved
}

// newPartial plans some Services. The error wraps engine.ErrFull if that takes a full pass.
func (d *Dataplane) newPartial(r *dataplane.Ruleset, names []dataplane.ServiceName, all bool) (*partialPass, error) {
	p := &partialPass{Dataplane: d, config: d.held.config, plans: map[dataplane.ServiceName]*servicePlan{}, delta: newNeeds()}
	if all {
		p.config = d.next
	}
	set := make(map[dataplane.ServiceName]struct{}, len(names))
	for _, name := range names {
		set[name] = struct{}{}
	}
	known, err := p.plan(r, set)
	switch {
	case err != nil:
		return nil, err
	case !known || !p.free():
		return nil, engine.ErrFull
	}
	p.compare()
	return p, nil
}

// lookForScheduler looks for a scheduler that no Service has asked for yet. That
// the kernel lacks it changes how Services that ask for it are planned.
func (p *partialPass) lookForScheduler(scheduler string) error {
	if err := p.probeNew(scheduler); err != nil {
		return err
	}
	if missing := p.missing(); !slices.Equal(missing, p.config.missing) {
		c := *p.config
		c.missing = missing
		p.config = &c
	}
	return nil
}

// plan plans Services, and those that gain or lose virtual servers by that. Known is false if
// that takes a full pass.
func (p *partialPass) plan(r *dataplane.Ruleset, names map[dataplane.ServiceName]struct{}) (known bool, err error) {
	for name := range names {
		if svc := r.Services[name]; svc != nil {
			if err := p.lookForScheduler(svc.IPVSScheduler); err != nil {
				return false, err
			}
		}
	}
	whole := map[dataplane.ServiceName]*servicePlan{}
	if !p.addContenders(r, names, whole) {
		return false, nil
	}
	p.contest = newResolved(p.config)
	p.contest.base, p.contest.replaced = p.held, names
	for _, svc := range slices.SortedFunc(servicesOf(r, names), (*dataplane.Service).ComparePrecedence) {
		p.contest.plan(svc, whole[svc.Name], p.others)
	}
	for name := range names {
		p.plans[name] = p.contest.services[name] // nil if there is none
	}
	return true, nil
}

// servicesOf yields the Services of some names that exist.
func servicesOf(r *dataplane.Ruleset, names map[dataplane.ServiceName]struct{}) iter.Seq[*dataplane.Service] {
	return func(yield func(*dataplane.Service) bool) {
		for name := range names {
			if svc := r.Services[name]; svc != nil && !yield(svc) {
				return
			}
		}
	}
}

// addContenders plans Services as if each had all that it asks for, and adds to them those
// that gain or lose virtual servers by that. It reports false if a full pass has to look.
func (p *partialPass) addContenders(r *dataplane.Ruleset, names map[dataplane.ServiceName]struct{}, whole map[dataplane.ServiceName]*servicePlan) bool {
	open := slices.Collect(maps.Keys(names))
	moved := map[Key]struct{}{}
	for len(open) > 0 {
		name := open[len(open)-1]
		open = open[:len(open)-1]
		svc := r.Services[name]
		if svc != nil {
			plan := p.config.planService(svc, nil)
			whole[name] = &plan
		}
		moves := p.moved(name, whole[name], svc)
		_, lost := p.conflicts.of[name]
		for _, s := range serversOf(whole[name]) {
			if _, barred := p.others.bars(&s); barred && !lost {
				return false // it may have gone by now
			}
			held, found := p.held.needs.servers[s.Key]
			if !found || held.owner == name {
				continue
			}
			if owner := r.Services[held.owner]; owner == nil || svc.ComparePrecedence(owner) < 0 {
				open = add(names, open, held.owner)
				moves = append(moves, s.Key)
			}
		}
		for _, k := range moves {
			if _, before := moved[k]; before {
				continue
			}
			moved[k] = struct{}{}
			for loser := range p.conflicts.losers[k] {
				open = add(names, open, loser)
			}
		}
	}
	return !slices.ContainsFunc(slices.Collect(maps.Keys(names)), p.engine.Unknown)
}

// add adds a name to a set, and to a list if the set has not had it.
func add(names map[dataplane.ServiceName]struct{}, list []dataplane.ServiceName, name dataplane.ServiceName) []dataplane.ServiceName {
	if _, has := names[name]; has {
		return list
	}
	names[name] = struct{}{}
	return append(list, name)
}

// free reports whether no other Service that is not planned has the virtual servers that are
// to come, and no leftover is in their place.
func (p *partialPass) free() bool {
	for name, plan := range p.plans {
		for _, s := range serversOf(plan) {
			if _, left := p.left[s.Key]; left {
				return false
			}
			if held, found := p.held.needs.servers[s.Key]; found && held.owner != name {
				if _, planned := p.plans[held.owner]; !planned {
					return false
				}
			}
		}
	}
	return true
}

// moved are the virtual servers of a Service that others ask for as well, but for those that
// it goes on to ask for by the same claim, and to accept there what it did: then nothing
// changes for the others.
func (p *partialPass) moved(name dataplane.ServiceName, plan *servicePlan, svc *dataplane.Service) []Key {
	held := p.held.services[name]
	var contested []Key
	for _, s := range serversOf(held) {
		if len(p.conflicts.losers[s.Key]) > 0 {
			contested = append(contested, s.Key)
		}
	}
	if len(contested) == 0 || svc == nil || svc.Precedence.Compare(held.precedence) != 0 {
		return contested
	}
	asks := map[Key]struct{}{}
	for _, s := range plan.servers {
		asks[s.Key] = struct{}{}
	}
	return slices.DeleteFunc(contested, func(k Key) bool {
		_, still := asks[k]
		return still && p.config.acceptsLocal(held, k) == p.config.acceptsLocal(plan, k)
	})
}

// acceptsLocal reports what acceptEarly goes by.
func (c *config) acceptsLocal(plan *servicePlan, k Key) bool {
	_, found := slices.BinarySearchFunc(plan.entries, setEntry{c.set(setLoadBalancerLocal), keyEntry(k)}, setEntry.compare)
	return found
}

func serversOf(p *servicePlan) []plannedServer {
	if p == nil {
		return nil
	}
	return p.servers
}

// compare compares the plans to what is held of the same Services.
func (p *partialPass) compare() {
	for name, plan := range p.plans {
		p.delta.add(name, plan)
		p.delta.subtract(p.held.services[name])
	}
	held := &p.held.needs
	p.diff.bind, p.diff.unbind = changes(held.bound, p.delta.bound)
	sortedAddrs(p.diff.bind)
	sortedAddrs(p.diff.unbind)
	p.diff.add, p.diff.remove = changes(held.entries, p.delta.entries)
	slices.SortFunc(p.diff.add, setEntry.compare)
	slices.SortFunc(p.diff.remove, setEntry.compare)
	for _, k := range slices.SortedFunc(maps.Keys(p.delta.servers), Key.Compare) {
		if d := p.compareServer(p.delta.servers[k]); !d.empty() {
			p.diff.servers = append(p.diff.servers, d)
		}
	}
	for name := range p.plans {
		for _, s := range serversOf(p.held.services[name]) {
			if _, desired := p.delta.servers[s.Key]; !desired {
				p.diff.extra = append(p.diff.extra, s.Key)
			}
		}
	}
	slices.SortFunc(p.diff.extra, Key.Compare)
}

// compareServer compares one virtual server to what is held of it.
func (p *partialPass) compareServer(want ownedServer) serverDiff {
	out := serverDiff{ownedServer: want}
	held, found := p.held.needs.servers[want.Key]
	if !found {
		out.missing, out.add = true, want.reals
		return out
	}
	out.have = held.Server
	out.differs = held.Server != want.Server
	if slices.Equal(held.reals, want.reals) {
		return out
	}
	for _, real := range want.reals {
		if _, has := slices.BinarySearchFunc(held.reals, real, netip.AddrPort.Compare); has {
			continue
		}
		if p.draining.has(want.Key, real) {
			out.reweigh = append(out.reweigh, real)
		} else {
			out.add = append(out.add, real)
		}
	}
	for _, real := range held.reals {
		if _, has := slices.BinarySearchFunc(want.reals, real, netip.AddrPort.Compare); !has {
			out.drop = append(out.drop, real)
		}
	}
	return out
}

// changes are what will be needed and was not, and the other way round.
func changes[K comparable](held, delta map[K]int) (added, removed []K) {
	for k, n := range delta {
		switch before := held[k]; {
		case before == 0 && n > 0:
			added = append(added, k)
		case before > 0 && before+n == 0:
			removed = append(removed, k)
		}
	}
	return added, removed
}

// run writes what has changed: first what new virtual servers depend on, last
// what only those have that end. An address is bound while its rules are there, and
// from when its virtual servers are: else what is sent to it would come to the node's
// own servers. It returns the number of Services that have changed.
func (p *partialPass) run(ctx context.Context) (int, error) {
	w := &writer{Dataplane: p.Dataplane, ctx: ctx, diff: &p.diff, changed: map[dataplane.ServiceName]struct{}{}}
	sets := p.setChanges()
	union, after, grows, shrinks := p.rulesFor()
	steps := []func() error{
		func() error { return w.makeServers(p.isBound) },
		func() error { return w.writeSets(sets.early) },
		func() error { return w.writeRules(union, grows) },
		w.writeServers,
		w.bind,
		func() error { return w.writeSets(sets.closing) },
		w.deleteServers,
		w.unbind,
		func() error { return w.writeRules(after, shrinks) },
		func() error { return w.writeSets(sets.late) },
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("apply what has changed: %w", err)
		}
		if err := step(); err != nil {
			return 0, err
		}
	}
	p.commit()
	p.watched.change(p.diff.bind, p.diff.unbind, w.come-len(p.diff.extra))
	switch {
	case shrinks:
		p.fixed.count(after)
	case grows:
		p.fixed.count(union)
	}
	return len(w.changed), nil
}

// commit notes that the kernel has the plans.
func (p *partialPass) commit() {
	p.held.config = p.config
	for name, plan := range p.plans {
		p.held.set(name, plan)
		p.note(name, plan)
		p.conflicts.set(name, p.contest.conflicts.of[name])
	}
}

// note keeps what is to be told about a Service.
func (d *Dataplane) note(name dataplane.ServiceName, p *servicePlan) {
	if p == nil || len(p.notes) == 0 {
		delete(d.notes, name)
		return
	}
	d.notes[name] = p.notes
}

// setChanges are the changes of ipsets.
func (p *partialPass) setChanges() orderedSets {
	return p.config.orderChanges(&p.diff,
		func(e setEntry) bool { return p.held.needs.entries[e] > 0 },
		func(e setEntry) bool { return p.held.needs.entries[e]+p.delta.entries[e] > 0 },
		p.isBound)
}

// isBound reports whether an address is on kube-ipvs0.
func (p *partialPass) isBound(a netip.Addr) bool { return p.held.needs.bound[a] > 0 }

// rulesFor are the chains and jumps for both what is held and what will be, and
// for the latter alone; and whether the kernel lacks any of the former, and has
// more than the latter.
func (p *partialPass) rulesFor() (union, after iptables.Fixed, grows, shrinks bool) {
	usedUnion, usedAfter := maps.Clone(p.held.needs.used), maps.Clone(p.held.needs.used) // one per ipset
	for _, e := range p.diff.add {
		usedUnion[e.set]++
		usedAfter[e.set]++
		grows = grows || p.held.needs.used[e.set] == 0
	}
	for _, e := range p.diff.remove {
		if decrement(usedAfter, e.set) {
			shrinks = true
		}
	}
	added, removed := changes(p.held.needs.out, p.delta.out)
	grows, shrinks = grows || len(added) > 0, shrinks || len(removed) > 0
	if !grows && !shrinks {
		return union, after, false, false
	}
	outUnion, outAfter := maps.Clone(p.held.needs.out), maps.Clone(p.held.needs.out)
	for _, r := range added {
		outUnion[r], outAfter[r] = 1, 1
	}
	for _, r := range removed {
		delete(outAfter, r)
	}
	if grows {
		union = p.held.rulesFor(usedUnion, outUnion)
	}
	if shrinks {
		after = p.held.rulesFor(usedAfter, outAfter)
	}
	return union, after, grows, shrinks
}
