package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// fullPass is one full Apply.
type fullPass struct {
	*Dataplane
	ctx     context.Context //nolint:containedctx // it lives for one Apply
	ruleset *dataplane.Ruleset
	config  *config
	state   *snapshot
	want    *resolved
	scope   scope
	diff    *diff
	writer  *writer
	// emptied: some ipset loses its last entry.
	emptied bool
}

// applyFull reads the kernel, compares all of it to what is wanted and writes the
// difference: first what virtual servers depend on, then those, last the removal
// of what nothing needs any more. The rules of mode IPTables, where there are any,
// serve until that mode is retired.
func (d *Dataplane) applyFull(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	p := &fullPass{Dataplane: d, ctx: ctx, ruleset: r}
	if err := p.prepare(); err != nil {
		return dataplane.Result{}, err
	}
	var repaired dataplane.Difference
	if !r.Full && d.held != nil {
		repaired = p.undone()
	}
	d.held = nil
	warnings := d.tune(p.config)
	if err := p.write(); err != nil {
		return dataplane.Result{}, err
	}
	if err := p.allFailed(); err != nil {
		return dataplane.Result{}, err
	}
	d.held, d.former = p.want.wanted, p.want.wanted
	d.kept, d.failed, d.conflicts, d.contested = p.scope.kept, p.writer.failed, p.want.conflicts, p.want.contested
	d.left = p.leftovers()
	d.watched.replace(maps.Keys(d.held.needs.bound))
	d.watched.recount(d.kernel)
	d.fixed.count(d.held.rules())
	d.warnings = slices.Concat(warnings, p.writer.stuck)
	clear(d.notes)
	for name, plan := range d.held.services {
		d.note(name, plan)
	}
	result := d.result(r, v1alpha1.SyncFull, len(p.writer.changed))
	result.Repaired = repaired
	return result, nil
}

// prepare reads the kernel, plans and compares.
func (p *fullPass) prepare() error {
	if err := p.lookForSchedulers(); err != nil {
		return err
	}
	var err error
	if p.config, err = p.configFor(&p.ruleset.Node); err != nil {
		return err
	}
	p.follow(p.config, &p.ruleset.Node)
	if p.state, err = p.read(p.config); err != nil {
		return err
	}
	evidence, err := p.evidence(p.config, p.state)
	if err != nil {
		return err
	}
	p.others = evidence.strangers()
	p.want = p.config.planAll(p.ruleset.Services, p.others)
	if err := p.readReals(p.ctx, p.state, p.want.wanted); err != nil {
		return err
	}
	p.scope = scope{
		prune: p.ruleset.Prune, kept: keptOf(p.ruleset), ours: evidence.ours, former: p.former, known: p.known,
		draining: p.drains,
	}
	p.diff = compare(p.want.wanted, p.state, &p.scope)
	return nil
}

// drains reports whether a real server that is not wanted drains as it should.
func (d *Dataplane) drains(k Key, real netip.AddrPort, r Real) bool {
	return r.Weight == 0 && d.leaving.has(k, real)
}

// lookForSchedulers looks for those that Services ask for, and again for those
// that were missing.
func (p *fullPass) lookForSchedulers() error {
	maps.DeleteFunc(p.schedulers, func(_ string, has bool) bool { return !has })
	asked := map[string]struct{}{}
	for _, svc := range p.ruleset.Services {
		asked[svc.IPVSScheduler] = struct{}{}
	}
	for _, s := range slices.Sorted(maps.Keys(asked)) {
		if err := p.probeNew(s); err != nil {
			return err
		}
	}
	return nil
}

// undone says what somebody else has changed of what is held. The dirty Services
// do not count: they may have been written in part.
func (p *fullPass) undone() dataplane.Difference {
	s := p.scope
	s.prune = false
	d := compare(p.held, p.state, &s)
	d.add, d.remove, d.bind, d.unbind, d.extra = nil, nil, nil, nil, nil
	d.servers = slices.DeleteFunc(d.servers, func(s serverDiff) bool {
		_, dirty := p.ruleset.Dirty[s.owner]
		_, read := p.state.reals[s.Key]
		return dirty || !read && !s.missing || p.uncertain(s.owner)
	})
	return difference(findings(d, p.held, p.state))
}

func (p *fullPass) write() error {
	p.writer = &writer{
		Dataplane: p.Dataplane, ctx: p.ctx, diff: p.diff,
		changed: map[dataplane.ServiceName]struct{}{}, failed: map[dataplane.ServiceName]string{},
	}
	// The rules come before addresses are bound. Beside those of mode IPTables they
	// take nothing over yet, but as soon as an address is bound the node's own
	// connections to it get it as their source, and must be masqueraded.
	steps := []func() error{
		p.writeSets,
		p.writeRules,
		p.writer.writeServersToBind,
		p.writer.bind,
		func() error { return p.reclaim(nil) },
		p.writer.writeServers,
		p.rewriteRules,
		p.removeServers,
		p.removeRules,
		p.unbindRest,
		p.writeLateSets,
	}
	for _, step := range steps {
		if err := p.ctx.Err(); err != nil {
			return fmt.Errorf("apply everything: %w", err)
		}
		if err := step(); err != nil {
			return err
		}
		dataplane.Progress(p.ctx)
	}
	p.notice()
	return nil
}

func (p *fullPass) setChanges() orderedSets {
	return p.config.orderChanges(p.diff,
		func(e setEntry) bool { return p.state.has(e.set, e.entry) },
		func(e setEntry) bool { return p.want.needs.entries[e] > 0 },
		func(a netip.Addr) bool { _, bound := p.state.bound[a]; return bound })
}

// maxBadEntries is how many entries of ipsets the kernel may refuse in one pass
// until the fault is not looked for in single Services any more.
const maxBadEntries = 100

// writeSets writes the changes of ipsets that come before those of virtual
// servers. Services whose entries the kernel refuses are failed.
func (p *fullPass) writeSets() error {
	return p.changeSets(p.setChanges().early)
}

func (p *fullPass) changeSets(changes []SetChange) error {
	for range maxBadEntries {
		err := p.writer.writeSets(changes)
		var bad *SetError
		if err == nil || !errors.As(err, &bad) || bad.Entry == "" {
			return err
		}
		owners := p.askers(setEntry{bad.Set, bad.Entry})
		if len(owners) == 0 {
			return err
		}
		for _, name := range owners {
			p.writer.failed[name] = err.Error()
		}
		i := slices.IndexFunc(changes, func(c SetChange) bool { return c.Name == bad.Set })
		if i < 0 || !slices.Contains(changes[i].Add, bad.Entry) {
			return err
		}
		changes[i].Add = slices.DeleteFunc(slices.Clone(changes[i].Add), func(e Entry) bool { return e == bad.Entry })
	}
	return fmt.Errorf("the kernel refuses more than %d entries of ipsets", maxBadEntries)
}

// askers are the Services that need an entry.
func (p *fullPass) askers(e setEntry) []dataplane.ServiceName {
	var out []dataplane.ServiceName
	for name, plan := range p.want.services {
		if slices.Contains(plan.entries, e) {
			out = append(out, name)
		}
	}
	return out
}

// writeRules writes the fixed rules, those too that belong to what stays although
// it is not wanted. Those that ask an ipset which loses its last entry stay until
// virtual servers are as they will be: they may keep clients outside from endpoints on
// other nodes, or have them masqueraded on their way there.
func (p *fullPass) writeRules() error {
	p.want.leave(p.diff.left, p.state)
	p.want.renounce(p.diff.renounced)
	used := maps.Clone(p.want.needs.used)
	for _, e := range p.diff.remove {
		if used[e.set] == 0 {
			used[e.set], p.emptied = 1, true
		}
	}
	return p.writer.writeRules(p.want.rulesFor(used, p.want.needs.out), true)
}

// removeRules removes the rules that writeRules has left, unless a virtual server may
// still be as it was.
func (p *fullPass) removeRules() error {
	if len(p.writer.failed) > 0 || len(p.writer.stuck) > 0 {
		return nil
	}
	return p.writer.writeRules(p.want.rules(), p.emptied)
}

// rewriteRules keeps the rules of what was there before, where a Service has
// failed, of which that may be.
func (p *fullPass) rewriteRules() error {
	if len(p.writer.failed) == 0 {
		return nil
	}
	stay := slices.DeleteFunc(slices.Clone(p.diff.remove), p.outdated)
	p.want.leave(slices.Concat(p.diff.left, stay), p.state)
	return p.writer.writeRules(p.want.rules(), true)
}

// outdated reports whether an entry keeps clients from a virtual server that is written
// as it should be and may be reached now, whatever else has failed.
func (p *fullPass) outdated(e setEntry) bool {
	if e.set != p.config.set(setNoLocal) && e.set != p.config.set(setNoLocalAll) {
		return false
	}
	k, _ := parseKey(e.entry)
	s, wanted := p.want.needs.servers[k]
	_, failed := p.writer.failed[s.owner]
	return wanted && !failed
}

// removeServers deletes what is too many. Where a Service has failed, what it had
// before may be among it: then only what is known to be others' goes.
func (p *fullPass) removeServers() error {
	if len(p.writer.failed) > 0 {
		p.diff.extra = slices.DeleteFunc(p.diff.extra, func(k Key) bool {
			owner, known := p.known[k]
			_, failed := p.writer.failed[owner]
			return !known || failed
		})
		p.diff.unbind = nil
	} else if err := p.changeSets(p.setChanges().closing); err != nil {
		return err
	}
	return p.writer.deleteServers()
}

func (p *fullPass) writeLateSets() error {
	late := p.setChanges().late
	if len(p.writer.failed) > 0 || len(p.writer.stuck) > 0 {
		for i := range late {
			set := late[i].Name
			late[i].Remove = slices.DeleteFunc(slices.Clone(late[i].Remove), func(e Entry) bool { return !p.outdated(setEntry{set, e}) })
		}
	}
	late = slices.DeleteFunc(late, func(c SetChange) bool { return len(c.Add)+len(c.Remove) == 0 })
	return p.changeSets(late)
}

func (p *fullPass) unbindRest() error {
	if len(p.writer.stuck) > 0 {
		return nil
	}
	return p.writer.unbind()
}

// notice takes over what the kernel holds of what is wanted: it is known to be
// ours from now on, and real servers that are wanted drain no longer.
func (p *fullPass) notice() {
	for k, s := range p.want.needs.servers {
		if _, failed := p.writer.failed[s.owner]; !failed {
			p.known[k] = s.owner
		}
	}
	for k, reals := range p.leaving {
		s, wanted := p.want.needs.servers[k]
		if !wanted {
			delete(p.leaving, k)
			continue
		}
		for real := range reals {
			if slices.Contains(s.reals, real) {
				p.leaving.end(k, real)
			}
		}
	}
}

// leftovers are the virtual servers of ours that are not wanted and stay all the
// same.
func (p *fullPass) leftovers() map[Key]struct{} {
	out := map[Key]struct{}{}
	for k := range p.state.servers {
		if _, wanted := p.want.needs.servers[k]; !wanted && p.scope.ours(k) {
			out[k] = struct{}{}
		}
	}
	for _, k := range p.diff.extra {
		if _, stuck := p.known[k]; !stuck {
			delete(out, k)
		}
	}
	return out
}

// allFailed is an error where the kernel takes no Service at all: then the fault
// is not in single Services.
func (p *fullPass) allFailed() error {
	n := len(p.ruleset.Services)
	if n < 2 || len(p.writer.failed) < n {
		return nil
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(p.writer.failed)), dataplane.ServiceName.Compare)
	return fmt.Errorf("the kernel refuses all %d Services; of %s: %s", n, first, p.writer.failed[first])
}
