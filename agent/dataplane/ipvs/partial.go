package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
)

// partialPass is an Apply of changed Services alone.
type partialPass struct {
	*Dataplane
	config *config // of the plans
	plans  map[dataplane.ServiceName]*servicePlan
	// delta is what the plans need more than the actual plans of the same Services.
	delta needs
	diff  diff
	// contest has the plans after conflicts are resolved.
	contest *resolved
	// pause and large are the writer's.
	pause func() bool
	large map[dataplane.ServiceName]struct{}
}

// newPartial plans some Services. The error wraps engine.ErrFull if that takes a full pass.
func (d *Dataplane) newPartial(r *dataplane.Ruleset, names []dataplane.ServiceName, all bool) (*partialPass, error) {
	p := &partialPass{Dataplane: d, config: d.actual.config, plans: map[dataplane.ServiceName]*servicePlan{}, delta: newNeeds()}
	if all {
		p.config = d.next
	} else {
		p.pause, p.large = r.Pause, map[dataplane.ServiceName]struct{}{}
	}
	set := make(map[dataplane.ServiceName]struct{}, len(names))
	for _, name := range names {
		set[name] = struct{}{}
		if _, dirty := r.Dirty[name]; dirty && p.pause != nil && isLarge(r.Services[name], d.actual.services[name]) {
			p.large[name] = struct{}{} // the agent has it in Dirty again
		}
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

// probeScheduler probes a new scheduler. If it is missing, that changes the plan of Services
// that ask for it.
func (p *partialPass) probeScheduler(scheduler string) error {
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

// plan plans Services, and those that gain or lose virtual servers thereby. Known is false if
// that takes a full pass.
func (p *partialPass) plan(r *dataplane.Ruleset, names map[dataplane.ServiceName]struct{}) (known bool, err error) {
	for name := range names {
		if svc := r.Services[name]; svc != nil {
			if err := p.probeScheduler(svc.IPVSScheduler); err != nil {
				return false, err
			}
		}
	}
	whole := map[dataplane.ServiceName]*servicePlan{}
	if !p.addContenders(r, names, whole) {
		return false, nil
	}
	p.contest = newResolved(p.config)
	p.contest.base, p.contest.replaced = p.actual, names
	var services []*dataplane.Service
	for name := range whole {
		services = append(services, r.Services[name])
	}
	slices.SortFunc(services, (*dataplane.Service).ComparePrecedence)
	for _, svc := range services {
		p.contest.plan(svc, whole[svc.Name], p.unmanaged)
	}
	for name := range names {
		p.plans[name] = p.contest.services[name] // nil if it has ended
	}
	return true, nil
}

// addContenders plans Services as if each had everything that it asks for, and adds those
// that gain or lose virtual servers thereby. It reports false if that takes a full pass.
func (p *partialPass) addContenders(r *dataplane.Ruleset, names map[dataplane.ServiceName]struct{}, whole map[dataplane.ServiceName]*servicePlan) bool {
	open := slices.Collect(maps.Keys(names))
	moved := sets.Set[Key]{}
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
			if _, barred := p.unmanaged.bars(&s); barred && !lost {
				return false // it may have been deleted since
			}
			actual, found := p.actual.needs.servers[s.Key]
			if !found || actual.owner == name {
				continue
			}
			if owner := r.Services[actual.owner]; owner == nil || svc.ComparePrecedence(owner) < 0 {
				open = add(names, open, actual.owner)
				moves = append(moves, s.Key)
			}
		}
		for _, k := range moves {
			if moved.Has(k) {
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

// free reports whether neither a leftover nor a Service that is not planned has the new
// virtual servers.
func (p *partialPass) free() bool {
	for name, plan := range p.plans {
		for _, s := range serversOf(plan) {
			if p.left.Has(s.Key) {
				return false
			}
			if actual, found := p.actual.needs.servers[s.Key]; found && actual.owner != name {
				if _, planned := p.plans[actual.owner]; !planned {
					return false
				}
			}
		}
	}
	return true
}

// moved returns the virtual servers of a Service that others ask for too, except those for
// which nothing changes for the others: it still asks for them with the same precedence, and
// acceptEarly decides the same.
func (p *partialPass) moved(name dataplane.ServiceName, plan *servicePlan, svc *dataplane.Service) []Key {
	actual := p.actual.services[name]
	var contested []Key
	for _, s := range serversOf(actual) {
		if len(p.conflicts.losers[s.Key]) > 0 {
			contested = append(contested, s.Key)
		}
	}
	if len(contested) == 0 || svc == nil || svc.Precedence.Compare(actual.precedence) != 0 {
		return contested
	}
	asks := sets.Set[Key]{}
	for _, s := range plan.servers {
		asks[s.Key] = struct{}{}
	}
	return slices.DeleteFunc(contested, func(k Key) bool {
		return asks.Has(k) && p.config.acceptsLocal(actual, k) == p.config.acceptsLocal(plan, k)
	})
}

// compare compares the plans to the actual ones of the same Services.
func (p *partialPass) compare() {
	for name, plan := range p.plans {
		p.delta.add(name, plan)
		p.delta.count(p.actual.services[name], -1)
	}
	actual := &p.actual.needs
	p.diff.bind, p.diff.unbind = changes(actual.bound, p.delta.bound)
	sortedAddrs(p.diff.bind)
	sortedAddrs(p.diff.unbind)
	p.diff.add, p.diff.remove = changes(actual.entries, p.delta.entries)
	slices.SortFunc(p.diff.add, setEntry.compare)
	slices.SortFunc(p.diff.remove, setEntry.compare)
	for _, k := range slices.SortedFunc(maps.Keys(p.delta.servers), Key.Compare) {
		if d := p.compareServer(p.delta.servers[k]); !d.empty() {
			p.diff.servers = append(p.diff.servers, d)
		}
	}
	for name := range p.plans {
		for _, s := range serversOf(p.actual.services[name]) {
			if _, desired := p.delta.servers[s.Key]; !desired {
				p.diff.extra = append(p.diff.extra, s.Key)
			}
		}
	}
	slices.SortFunc(p.diff.extra, Key.Compare)
}

// compareServer compares one virtual server to the actual one.
func (p *partialPass) compareServer(want ownedServer) serverDiff {
	out := serverDiff{ownedServer: want}
	actual, found := p.actual.needs.servers[want.Key]
	if !found {
		out.missing, out.add = true, want.reals
		return out
	}
	out.have = actual.Server
	out.differs = actual.Server != want.Server
	if slices.Equal(actual.reals, want.reals) {
		return out
	}
	for _, real := range want.reals {
		if _, has := slices.BinarySearchFunc(actual.reals, real, netip.AddrPort.Compare); has {
			continue
		}
		if p.draining.has(want.Key, real) {
			out.reweigh = append(out.reweigh, real)
		} else {
			out.add = append(out.add, real)
		}
	}
	for _, real := range actual.reals {
		if _, has := slices.BinarySearchFunc(want.reals, real, netip.AddrPort.Compare); !has {
			out.drop = append(out.drop, real)
		}
	}
	return out
}

// changes returns what is needed now and was not, and the reverse.
func changes[K comparable](actual, delta map[K]int) (added, removed []K) {
	for k, n := range delta {
		switch before := actual[k]; {
		case before == 0 && n > 0:
			added = append(added, k)
		case before > 0 && before+n == 0:
			removed = append(removed, k)
		}
	}
	return added, removed
}

// run writes what has changed: first what new virtual servers depend on, last it removes what
// only deleted ones needed. An address is only bound while its rules and virtual servers
// exist, or the node's own servers would get its packets. It returns the number of changed
// Services.
func (p *partialPass) run(ctx context.Context) (int, error) {
	w := &writer{
		Dataplane: p.Dataplane, ctx: ctx, diff: &p.diff, large: p.large,
		changed: map[dataplane.ServiceName]struct{}{}, unfinished: map[dataplane.ServiceName]struct{}{},
	}
	sets := p.setChanges()
	// The others' entries depend on the real servers, such as those that block clients.
	if loopBack := p.config.set(setLoopBack); !slices.ContainsFunc(sets.late, func(c SetChange) bool { return c.Name != loopBack }) {
		w.pause = p.pause
	}
	union, after, grows, shrinks := p.fixedRules()
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
	if len(w.unfinished) > 0 {
		p.engine.Leave(slices.Collect(maps.Keys(w.unfinished)), nil, nil)
		maps.DeleteFunc(w.changed, func(name dataplane.ServiceName, _ struct{}) bool {
			_, unfinished := w.unfinished[name]
			return unfinished
		})
	}
	p.watched.change(p.diff.bind, p.diff.unbind, w.come-len(p.diff.extra))
	switch {
	case shrinks:
		p.fixed = after
	case grows:
		p.fixed = union
	}
	return len(w.changed), nil
}

// commit notes that the kernel has the plans.
func (p *partialPass) commit() {
	p.actual.config = p.config
	for name, plan := range p.plans {
		p.actual.set(name, plan)
		p.note(name, plan)
		p.conflicts.set(name, p.contest.conflicts.of[name])
	}
}

// note sets the notes about a Service.
func (d *Dataplane) note(name dataplane.ServiceName, p *servicePlan) {
	if p == nil || len(p.notes) == 0 {
		delete(d.notes, name)
		return
	}
	d.notes[name] = p.notes
}

// setChanges returns the changes of ipsets.
func (p *partialPass) setChanges() orderedSets {
	return p.config.orderChanges(&p.diff,
		func(e setEntry) bool { return p.actual.needs.entries[e] > 0 },
		func(e setEntry) bool { return p.actual.needs.entries[e]+p.delta.entries[e] > 0 },
		p.isBound)
}

// isBound reports whether an address is on kube-ipvs0.
func (p *partialPass) isBound(a netip.Addr) bool { return p.actual.needs.bound[a] > 0 }

// fixedRules returns the fixed rules for the actual and the new state together, and for the
// new one alone; and whether the kernel lacks any of the previous, and has more than the latter.
func (p *partialPass) fixedRules() (union, after fixedrules.Rules, grows, shrinks bool) {
	usedUnion, usedAfter := maps.Clone(p.actual.needs.used), maps.Clone(p.actual.needs.used) // one per ipset
	for _, e := range p.diff.add {
		usedUnion[e.set]++
		usedAfter[e.set]++
		grows = grows || p.actual.needs.used[e.set] == 0
	}
	for _, e := range p.diff.remove {
		shrinks = addCount(usedAfter, e.set, -1) || shrinks
	}
	added, removed := changes(p.actual.needs.out, p.delta.out)
	grows, shrinks = grows || len(added) > 0, shrinks || len(removed) > 0
	if !grows && !shrinks {
		return union, after, false, false
	}
	outUnion, outAfter := maps.Clone(p.actual.needs.out), maps.Clone(p.actual.needs.out)
	for _, r := range added {
		outUnion[r], outAfter[r] = 1, 1
	}
	for _, r := range removed {
		delete(outAfter, r)
	}
	if grows {
		union = p.actual.config.rules(usedUnion, outUnion)
	}
	if shrinks {
		after = p.actual.config.rules(usedAfter, outAfter)
	}
	return union, after, grows, shrinks
}
