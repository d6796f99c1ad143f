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
	// forgone are the addresses on which the kernel rejects everything of a Service.
	forgone map[dataplane.ServiceName][]netip.Addr
	// retained: rules stay until virtual servers have changed.
	retained bool
}

// applyFull compares the actual to the desired state and writes the difference: first what
// virtual servers depend on, then these, last it removes what nothing needs any more. Rules
// of mode IPTables serve until that mode is cleaned up.
func (d *Dataplane) applyFull(ctx context.Context, r *dataplane.Ruleset) (engine.FullPass, error) {
	p := &fullPass{Dataplane: d, ctx: ctx, ruleset: r, forgone: map[dataplane.ServiceName][]netip.Addr{}}
	var out engine.FullPass
	if err := p.prepare(); err != nil {
		return out, err
	}
	if !r.Full && d.actual != nil {
		out.Repaired = p.modified()
	}
	d.actual = nil
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
	d.actual, d.previous = p.want.desired, p.want.desired
	d.engine.Rejected, d.engine.Preserved = rejected, p.scope.preserved
	d.conflicts, d.left = p.want.conflicts, p.leftovers()
	d.watched.replace(maps.Keys(d.actual.needs.bound))
	d.watched.recount(d.kernel)
	d.fixed = d.actual.rules()
	d.warnings = slices.Concat(warnings, p.writer.stuck)
	clear(d.notes)
	for name, plan := range d.actual.services {
		d.note(name, plan)
	}
	out.Changed = len(p.writer.changed)
	return out, nil
}

// prepare reads the kernel, plans and compares.
func (p *fullPass) prepare() error {
	if err := p.probeAll(); err != nil {
		return err
	}
	evidence, err := p.observe(&p.ruleset.Node)
	if err != nil {
		return err
	}
	p.config, p.state, p.unmanaged = evidence.config, evidence.state, evidence.unmanaged()
	p.noteAddresses(p.config)
	p.want = p.config.planAll(p.ruleset.Services, p.unmanaged)
	if err := p.readReals(p.ctx, p.state, p.want.desired); err != nil {
		return err
	}
	p.scope = scope{
		prune: p.ruleset.Prune, preserved: engine.PreservedOf(p.ruleset), ours: evidence.ours, previous: p.previous, known: p.known,
		draining: p.drains,
	}
	p.diff = compare(p.want.desired, p.state, &p.scope)
	return nil
}

// probeAll probes the schedulers of Services, and again those that were missing.
func (p *fullPass) probeAll() error {
	maps.DeleteFunc(p.schedulers, func(_ string, has bool) bool { return !has })
	asked := sets.Set[string]{}
	for _, svc := range p.ruleset.Services {
		asked.Insert(svc.IPVSScheduler)
	}
	for _, s := range sets.List(asked) {
		if err := p.probeNew(s); err != nil {
			return err
		}
	}
	return nil
}

// modified returns what another program has changed since the last Apply. Dirty Services
// do not count: they may have been written in part. Neither do those whose actual state is
// unknown or reduced.
func (p *fullPass) modified() dataplane.Difference {
	s := p.scope
	s.prune = false
	d := compare(p.actual, p.state, &s)
	d.add, d.remove, d.bind, d.unbind, d.extra = nil, nil, nil, nil, nil
	d.servers = slices.DeleteFunc(d.servers, func(s serverDiff) bool {
		_, read := p.state.reals[s.Key]
		_, conflict := p.conflicts.of[s.owner]
		_, dirty := p.ruleset.Dirty[s.owner]
		return dirty || !read && !s.missing || conflict || p.engine.Unknown(s.owner)
	})
	return dataplane.DifferenceOf(findings(d, p.actual, p.state), dataplane.VerifyOptions{})
}

func (p *fullPass) write() error {
	p.writer = &writer{
		Dataplane: p.Dataplane, ctx: p.ctx, diff: p.diff,
		changed: map[dataplane.ServiceName]struct{}{}, failed: map[dataplane.ServiceName]string{},
	}
	// If an address is bound already, ipsets that let its ports pass come after its virtual
	// servers, or the node's own servers would get the packets. The rules come before
	// addresses are bound. Beside those of mode IPTables they have no effect yet, but once an
	// address is bound, the node's own connections to it have it as source and must be
	// masqueraded.
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

// bind binds the addresses that have a virtual server now. If the kernel has rejected all
// those of an address, the node's own servers would get its packets, because the ipsets
// let its ports pass.
func (p *fullPass) bind() error {
	p.forgo()
	p.diff.bind = slices.DeleteFunc(p.diff.bind, func(a netip.Addr) bool { return p.want.needs.bound[a] == 0 })
	return p.writer.bind()
}

// forgo ignores the addresses on which the kernel has rejected all virtual servers of a
// Service. Another Service that shares such an address binds it.
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
				addCount(p.want.needs.bound, a, -1)
			}
		}
	}
}

// bare returns the addresses that are bound only for Services of which the kernel rejects
// everything there, and that have no virtual server.
func (p *fullPass) bare() []netip.Addr {
	p.forgo()
	used := map[netip.Addr]bool{}
	for k := range p.state.servers {
		if _, extra := slices.BinarySearchFunc(p.diff.extra, k, Key.Compare); !extra {
			used[k.Addr] = true
		}
	}
	var out []netip.Addr
	for _, addresses := range p.forgone {
		for _, a := range addresses {
			if p.isBound(a) && p.want.needs.bound[a] == 0 && !used[a] {
				out = append(out, a)
			}
		}
	}
	return sortedAddrs(out)
}

// isBound reports whether an address was on kube-ipvs0 before the pass.
func (p *fullPass) isBound(a netip.Addr) bool {
	return p.state.bound.Has(a)
}

// removeServers deletes superfluous virtual servers. If a Service has failed, its previous ones
// may be among them: then only those that are known to be of other Services are deleted.
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

// notice notes which virtual servers are known to be ours now. Desired real servers do not
// drain any more.
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
		for real := range reals {
			if _, desired := slices.BinarySearchFunc(s.reals, real, netip.AddrPort.Compare); desired {
				p.draining.end(k, real)
			}
		}
	}
}

// leftovers returns our virtual servers that stay although they are not desired.
func (p *fullPass) leftovers() sets.Set[Key] {
	out := sets.Set[Key]{}
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
