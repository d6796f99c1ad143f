package ipvs

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
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
	// forgone are the addresses of a Service on which the kernel takes nothing of it.
	forgone map[dataplane.ServiceName][]netip.Addr
	// retained: rules stay until virtual servers are as they will be.
	retained bool
}

// applyFull reads the kernel, compares all of it to the desired state and writes the
// difference: first what virtual servers depend on, then those, last the removal
// of what nothing needs any more. The rules of mode IPTables, where there are any,
// serve until that mode is retired.
func (d *Dataplane) applyFull(ctx context.Context, r *dataplane.Ruleset) (engine.FullPass, error) {
	p := &fullPass{Dataplane: d, ctx: ctx, ruleset: r, forgone: map[dataplane.ServiceName][]netip.Addr{}}
	var out engine.FullPass
	if err := p.prepare(); err != nil {
		return out, err
	}
	if !r.Full && d.held != nil {
		out.Repaired = p.undone()
	}
	d.held = nil
	warnings := d.tune(p.config)
	if err := p.write(); err != nil {
		return out, err
	}
	rejected := make(map[dataplane.ServiceName]engine.Rejection[servicePlan], len(p.writer.failed))
	for name, why := range p.writer.failed {
		rejected[name] = engine.Rejection[servicePlan]{Reason: why, Proven: true, Unknown: true}
	}
	if err := engine.NoneTaken(len(r.Services), rejected); err != nil {
		return out, err
	}
	d.held, d.former = p.want.desired, p.want.desired
	d.engine.Rejected, d.engine.Kept = rejected, p.scope.kept
	d.conflicts, d.left = p.want.conflicts, p.leftovers()
	d.watched.replace(maps.Keys(d.held.needs.bound))
	d.watched.recount(d.kernel)
	d.fixed.count(d.held.rules())
	d.warnings = slices.Concat(warnings, p.writer.stuck)
	clear(d.notes)
	for name, plan := range d.held.services {
		d.note(name, plan)
	}
	out.Changed = len(p.writer.changed)
	return out, nil
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
	p.noteAddresses(p.config, &p.ruleset.Node)
	if p.state, err = p.read(p.config); err != nil {
		return err
	}
	evidence, err := p.evidence(p.config, p.state)
	if err != nil {
		return err
	}
	p.others = evidence.strangers()
	p.want = p.config.planAll(p.ruleset.Services, p.others)
	if err := p.readReals(p.ctx, p.state, p.want.desired); err != nil {
		return err
	}
	p.scope = scope{
		prune: p.ruleset.Prune, kept: engine.KeptOf(p.ruleset), ours: evidence.ours, former: p.former, known: p.known,
		draining: p.drains,
	}
	p.diff = compare(p.want.desired, p.state, &p.scope)
	return nil
}

// drains reports whether a real server that is not desired drains as it should.
func (d *Dataplane) drains(k Key, real netip.AddrPort, r Real) bool {
	return r.Weight == 0 && d.draining.has(k, real)
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

// undone says what another program has changed of what is held. The dirty Services
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
	return dataplane.DifferenceOf(findings(d, p.held, p.state), dataplane.VerifyOptions{})
}

func (p *fullPass) write() error {
	p.writer = &writer{
		Dataplane: p.Dataplane, ctx: p.ctx, diff: p.diff,
		changed: map[dataplane.ServiceName]struct{}{}, failed: map[dataplane.ServiceName]string{},
	}
	// Where an address is bound already, ipsets that have a port of it pass come
	// after its virtual server, else the port would be one of the node's own servers.
	// The rules come before addresses are bound. Beside those of mode IPTables they
	// take nothing over yet, but as soon as an address is bound the node's own
	// connections to it get it as their source, and must be masqueraded.
	steps := []func() error{
		func() error { return p.writer.makeServers(p.isBound) },
		p.writeSets,
		p.writeRules,
		p.writer.writeServersToBind,
		p.shut,
		p.bind,
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

// bind binds the addresses that have a virtual server by now. Where the kernel has
// refused all those of an address, what is sent to it would come to the node's own
// servers, because ipsets take its ports for those of a Service.
func (p *fullPass) bind() error {
	p.forgo()
	p.diff.bind = slices.DeleteFunc(p.diff.bind, func(a netip.Addr) bool { return p.want.needs.bound[a] == 0 })
	return p.writer.bind()
}

// forgo takes addresses for not asked for where the kernel has rejected all virtual
// servers that a Service has there. Another one that shares such an address binds it.
func (p *fullPass) forgo() {
	if len(p.writer.failed) == 0 {
		return
	}
	missing := map[Key]bool{}
	for i := range p.diff.servers {
		missing[p.diff.servers[i].Key] = p.diff.servers[i].missing
	}
	for name := range p.writer.failed {
		plan := p.want.services[name]
		stays := map[netip.Addr]bool{}
		for i := range plan.servers {
			stays[plan.servers[i].Key.Addr] = stays[plan.servers[i].Key.Addr] || !missing[plan.servers[i].Key]
		}
		for _, a := range p.forgone[name] {
			stays[a] = true
		}
		for _, a := range plan.bindings() {
			if !stays[a] {
				p.forgone[name] = append(p.forgone[name], a)
				decrement(p.want.needs.bound, a)
			}
		}
	}
}

// bare are the addresses that are bound for nobody but Services of which the kernel
// takes nothing there, and on which no virtual server stands.
func (p *fullPass) bare() []netip.Addr {
	p.forgo()
	stands := map[netip.Addr]bool{}
	for k := range p.state.servers {
		if _, extra := slices.BinarySearchFunc(p.diff.extra, k, Key.Compare); !extra {
			stands[k.Addr] = true
		}
	}
	var out []netip.Addr
	for _, addresses := range p.forgone {
		for _, a := range addresses {
			if p.isBound(a) && p.want.needs.bound[a] == 0 && !stands[a] {
				out = append(out, a)
			}
		}
	}
	return sortedAddrs(out)
}

// isBound reports whether an address was on kube-ipvs0 before the pass.
func (p *fullPass) isBound(a netip.Addr) bool {
	_, bound := p.state.bound[a]
	return bound
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
		p.diff.unbind = p.bare()
	} else if err := p.changeSets(p.setChanges().closing); err != nil {
		return err
	}
	return p.writer.deleteServers()
}

func (p *fullPass) unbindRest() error {
	if len(p.writer.stuck) > 0 {
		return nil
	}
	return p.writer.unbind()
}

// notice takes over what the kernel has of the desired state: it is known to be
// ours from now on, and real servers that are desired drain no longer.
func (p *fullPass) notice() {
	for k, s := range p.want.needs.servers {
		if _, failed := p.writer.failed[s.owner]; !failed {
			p.known[k] = s.owner
		}
	}
	for k, reals := range p.draining {
		s, desired := p.want.needs.servers[k]
		if !desired {
			delete(p.draining, k)
			continue
		}
		for _, real := range s.reals {
			if _, drains := reals[real]; drains {
				p.draining.end(k, real)
			}
		}
	}
}

// leftovers are the virtual servers of ours that are not desired and stay all the
// same.
func (p *fullPass) leftovers() map[Key]struct{} {
	out := map[Key]struct{}{}
	for k := range p.state.servers {
		if _, desired := p.want.needs.servers[k]; !desired && p.scope.ours(k) {
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
