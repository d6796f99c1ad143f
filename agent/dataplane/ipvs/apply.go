package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Apply makes the kernel hold r: by the changed Services alone where what the
// kernel holds is known, else by reading and comparing all of it. Real servers
// that drain are looked at when it is time.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	d.watched.pause()
	d.retireUntil = time.Time{}
	result, err := d.apply(ctx, r)
	if err == nil {
		err = d.lookAtDrains(ctx)
	}
	if err != nil {
		d.held = nil
		clear(d.schedulers) // the kernel may have come to lack something
		return dataplane.Result{}, err
	}
	result.Counts, result.Tables = d.counts()
	d.settle()
	return result, nil
}

// settle notes that what the kernel holds is known.
func (d *Dataplane) settle() {
	d.watched.resume(len(d.held.needs.servers))
	select {
	case <-d.applied:
	default:
		close(d.applied)
	}
}

func (d *Dataplane) apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	if err := d.kernel.Open(); err != nil {
		return dataplane.Result{}, err
	}
	if r.Full || d.held == nil {
		return d.applyFull(ctx, r)
	}
	p, err := d.newPartial(r)
	if err != nil {
		return dataplane.Result{}, err
	}
	if p != nil {
		changed, err := p.run(ctx)
		switch {
		case err == nil:
			return d.result(r, v1alpha1.SyncPartial, changed), nil
		case ctx.Err() != nil:
			return dataplane.Result{}, err
		}
		// The kernel may not hold what we think it does: look.
	}
	return d.applyFull(ctx, r)
}

// partialPass is an Apply of changed Services alone.
type partialPass struct {
	*Dataplane
	config *config // what to plan by, from now on
	plans  map[dataplane.ServiceName]*servicePlan
	// delta is how many more the plans need of anything than what is held of the
	// same Services.
	delta needs
	diff  diff
}

// newPartial plans what has changed. It returns nil if that takes a full pass.
func (d *Dataplane) newPartial(r *dataplane.Ruleset) (*partialPass, error) {
	p := &partialPass{Dataplane: d, config: d.held.config, plans: map[dataplane.ServiceName]*servicePlan{}, delta: newNeeds()}
	dirty := r.Dirty
	if r.Recheck {
		c, err := d.configFor(&r.Node)
		if err != nil {
			return nil, err
		}
		if !sameButAddresses(c, d.held.config) {
			return nil, nil
		}
		d.follow(c, &r.Node)
		if !reflect.DeepEqual(c, d.held.config) {
			p.config = c
			dirty = make(map[dataplane.ServiceName]struct{}, len(r.Services))
			maps.Copy(dirty, r.Dirty)
			for name := range r.Services {
				dirty[name] = struct{}{}
			}
		}
	}
	for name := range dirty {
		if d.uncertain(name) {
			return nil, nil
		}
		p.plans[name] = nil
		if svc := r.Services[name]; svc != nil {
			if err := p.lookForScheduler(svc.IPVSScheduler); err != nil {
				return nil, err
			}
			plan := p.config.planService(svc, nil)
			p.plans[name] = &plan
		}
	}
	if !p.free() {
		return nil, nil
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

// free reports whether nobody else has or asks for the virtual servers that are
// to come, and none of them is there already.
func (p *partialPass) free() bool {
	taken := map[Key]struct{}{}
	for name, plan := range p.plans {
		for _, s := range serversOf(plan) {
			if _, barred := p.others.bars(&s); barred {
				return false
			}
			if _, left := p.left[s.Key]; left {
				return false
			}
			if _, twice := taken[s.Key]; twice {
				return false
			}
			taken[s.Key] = struct{}{}
			if held, found := p.held.needs.servers[s.Key]; found && held.owner != name {
				if _, dirty := p.plans[held.owner]; !dirty {
					return false
				}
			}
		}
		for _, s := range serversOf(p.held.services[name]) {
			if _, contested := p.contested[s.Key]; contested {
				return false
			}
		}
	}
	return true
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
			if _, wanted := p.delta.servers[s.Key]; !wanted {
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

// commit notes that the kernel holds the plans.
func (p *partialPass) commit() {
	p.held.config = p.config
	for name, plan := range p.plans {
		p.held.set(name, plan)
		p.note(name, plan)
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
	usedUnion, usedAfter := maps.Clone(p.held.needs.used), maps.Clone(p.held.needs.used)
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

// result is what an Apply did, but for the counts.
func (d *Dataplane) result(r *dataplane.Ruleset, kind v1alpha1.SyncKind, changed int) dataplane.Result {
	refused := maps.Clone(d.conflicts)
	if refused == nil {
		refused = map[dataplane.ServiceName]string{}
	}
	maps.Copy(refused, d.failed)
	warnings := slices.Clone(d.warnings)
	if w := d.addressWarning(r); w != "" {
		warnings = append(warnings, w)
	}
	for _, name := range slices.SortedFunc(maps.Keys(d.notes), dataplane.ServiceName.Compare) {
		for _, note := range d.notes[name] {
			warnings = append(warnings, fmt.Sprintf("Service %s: %s", name, note))
		}
	}
	return dataplane.Result{
		Kind: kind, ServicesChanged: changed, Refused: refused,
		Warnings: warnings[:min(len(warnings), dataplane.MaxExamples)], Failed: len(d.failed) > 0,
	}
}
