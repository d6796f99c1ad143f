package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
)

// applyFull compares the kernel to the desired state and writes the
// difference: first what chains of Services lead to, then those chains, then
// what leads to them. Last it removes what nothing leads to any more.
func (d *Dataplane) applyFull(ctx context.Context, r *dataplane.Ruleset, state *kernelState) (int, error) {
	config, err := d.config(r)
	if err != nil {
		return 0, err
	}
	d.noteAddresses(config)
	p := d.newFullPass(r, config, state)
	if err := p.run(ctx); err != nil {
		return 0, err
	}
	if err := engine.NoneTaken(len(r.Services), p.scope.rejected); err != nil {
		return 0, err
	}
	d.engine.Rejected, d.engine.Preserved, d.stuck = p.scope.rejected, p.scope.preserved, p.scope.stuck
	for name := range d.engine.Rejected {
		delete(p.want.services, name)
	}
	d.actual, d.tally = p.want, p.want.tally()
	d.countUnmanaged(p)
	d.warnings = append(p.warnings(), d.kernel.warnings(ctx)...)
	return len(p.changed), nil
}

func (d *Dataplane) newFullPass(r *dataplane.Ruleset, c *config, state *kernelState) *fullPass {
	p := &fullPass{Dataplane: d, ruleset: r, want: c.plan(r.Services), state: state, rests: d.engine.Resting(r)}
	for name := range p.rests {
		delete(p.want.services, name)
	}
	p.faults = d.newIsolation(maxRejectedRuns, func(n dataplane.ServiceName) int { return p.want.services[n].lines() }, p.want.services)
	p.faults.Rejected = maps.Clone(p.rests)
	p.changed = p.faults.Changed
	p.scope = scope{modes: d.modes, prune: r.Prune, dirty: r.Dirty, rejected: p.faults.Rejected, preserved: engine.PreservedOf(r), stuck: sets.Set[string]{}}
	return p
}

type fullPass struct {
	*Dataplane
	ruleset *dataplane.Ruleset
	want    *desired
	state   *kernelState
	scope   scope
	changed map[dataplane.ServiceName]struct{}
	faults  *engine.Isolation[planned]
	// rests are the rejected Services that are not tried.
	rests map[dataplane.ServiceName]rejection
	// behindOther: a mode that packets meet later has served the node, and may still. TakesOver: it
	// does, alone.
	behindOther, takesOver bool
}

func (p *fullPass) run(ctx context.Context) error {
	if err := p.swapFirewallJumps(ctx); err != nil {
		return err
	}
	jumps := missingJumps(p.want.config.jumps(), p.state)
	early := leadNowhere(jumps, p.want, p.state)
	if err := p.writeBase(ctx, early); err != nil {
		return err
	}
	if early {
		// It costs less while there are few rules.
		if err := p.writeJumps(ctx, jumps); err != nil {
			return err
		}
	}
	if err := p.writeServices(ctx); err != nil {
		return err
	}
	if err := p.writeFirewall(ctx); err != nil {
		return err
	}
	if !early {
		if err := p.writeJumps(ctx, jumps); err != nil {
			return err
		}
	}
	if err := p.noteActual(ctx); err != nil {
		return err
	}
	return p.deleteStale(ctx)
}

// writeBase brings the shared chains without rules of Services up to date.
// Chains of Services jump to them. With declare it also makes missing ones for rules of
// Services, without rules yet.
func (p *fullPass) writeBase(ctx context.Context, declare bool) error {
	var t transaction
	for _, d := range compareShared(p.want, p.state, &p.scope) {
		switch {
		case !d.chain.dispatch:
			t.writeShared(d)
		case declare && d.missing:
			t.declareShared(d.chain.id)
		}
	}
	return p.write(ctx, &t)
}

// writeServices writes the chains of Services and then what leads to them: both
// at once if one call can carry that.
func (p *fullPass) writeServices(ctx context.Context) error {
	if done, err := p.writeAtOnce(ctx); done || err != nil {
		return err
	}
	if err := p.writeRejections(ctx); err != nil {
		return err
	}
	if err := p.writeChains(ctx); err != nil {
		return err
	}
	return p.writeDispatch(ctx, p.compareDispatch())
}

// writeAtOnce writes everything of Services in one call. It reports false if
// that is too much for one, or some of it is rejected.
func (p *fullPass) writeAtOnce(ctx context.Context) (bool, error) {
	different := compareChains(p.want, p.state, &p.scope)
	size := 0
	for name := range different {
		size += p.want.services[name].lines()
	}
	limit := p.limits.of(p.kernel).rules
	large := size > limit && size > p.state.rulesOf(nat)
	if large {
		limit = p.limits.large
	}
	diffs := p.compareDispatch()
	if size > limit || p.tooManyFor(diffs) || len(p.engine.Rejected) > len(p.rests) {
		return false, nil
	}
	all := &calls{limit: p.limits.of(p.kernel).large} // one: size is less
	t := all.with(0)
	t.large = large
	p.addChains(all, slices.SortedFunc(maps.Keys(different), dataplane.ServiceName.Compare), different)
	for _, d := range diffs {
		t.writeShared(d)
	}
	if err := t.fill(ctx, p.kernel); err != nil {
		return false, err
	}
	err := p.write(ctx, t)
	switch {
	case isRejection(err):
		// Part of it may have been applied.
		p.state, err = p.kernel.read(ctx)
		return false, err
	case err != nil:
		return false, err
	}
	for name := range different {
		p.changed[name] = struct{}{}
	}
	p.noteAdded(diffs)
	return true, nil
}

// tooManyFor reports whether more rules in shared chains differ than one call may carry.
func (p *fullPass) tooManyFor(diffs []*sharedDiff) bool {
	lines := 0
	for _, d := range diffs {
		lines += len(d.add) + len(d.remove)
	}
	return lines > p.limits.of(p.kernel).large
}

// writeRejections adds missing filter rules before chains
// of Services change, because what those no longer translate must meet them at
// once; what is translated meets none of them. What the kernel rejects
// is left to writeDispatch, which finds the Services at fault, as is a filter chain that
// is missing altogether: before a first load nothing is translated.
func (p *fullPass) writeRejections(ctx context.Context) error {
	var missing []ownedRule
	for _, d := range p.compareDispatch() {
		if d.chain.id.table == filter && !d.missing {
			missing = append(missing, d.add...)
		}
	}
	var (
		written []dispatchRule
		err     error
	)
	for rules := range slices.Chunk(missing, p.limits.of(p.kernel).large) {
		var t transaction
		for _, r := range rules {
			t.addRule(r.dispatchRule)
		}
		if err = p.write(ctx, &t); err != nil {
			break
		}
		written = append(written, t.effect.added...)
		for _, r := range rules {
			p.changed[r.owner] = struct{}{}
		}
	}
	p.state.insert(written...)
	if isRejection(err) {
		return nil
	}
	return err
}

// writeChains writes the chains of Services that are missing or differ. What was written of
// a large Service before a call is rejected stays, or is removed by deleteStale if nothing leads
// to it.
func (p *fullPass) writeChains(ctx context.Context) error {
	different := compareChains(p.want, p.state, &p.scope)
	names := slices.SortedFunc(maps.Keys(different), dataplane.ServiceName.Compare)
	return p.faults.Write(names, func(batch []dataplane.ServiceName) error {
		c := &calls{limit: p.faults.Capacity}
		p.addChains(c, batch, different)
		for i, t := range c.list {
			if err := t.fill(ctx, p.kernel); err != nil {
				return err
			}
			if err := p.write(ctx, t); err != nil {
				return err
			}
			c.list[i] = nil // with its text
		}
		return nil
	})
}

func (p *fullPass) addChains(c *calls, names []dataplane.ServiceName, different map[dataplane.ServiceName][]string) {
	for _, name := range names {
		differs := sets.New(different[name]...)
		plan := p.want.config.postpone(p.ruleset.Services[name], p.limits, func(c *chain) bool { return differs.Has(c.name) })
		change := &serviceChange{}
		for i := range plan.chains {
			chain := &plan.chains[i]
			switch {
			case !differs.Has(chain.name):
			case p.state.chains[chainID{nat, chain.name}] == nil:
				change.fresh = append(change.fresh, chain)
			default:
				change.changed = append(change.changed, chain)
			}
		}
		c.add(change)
	}
}

// writeJumps inserts the missing jumps at the head of built-in
// chains, the last one first, which puts them in order. The chains that they lead to are complete or
// empty.
func (p *fullPass) writeJumps(ctx context.Context, missing []fixedrules.Jump) error {
	if len(missing) == 0 {
		return nil
	}
	var t transaction
	for _, j := range slices.Backward(missing) {
		t.insertRule(builtIn(&j), j.Rule)
	}
	if err := p.write(ctx, &t); err != nil {
		first := builtIn(&missing[0])
		return fmt.Errorf("insert %d jumps from built-in chains, the first %q in %s %s: %w", len(missing), missing[0].Rule, first.table, first.name, err)
	}
	return nil
}

// deleteStale deletes chains that belong to no Service. Those to which rules of a rejected Service
// lead stay.
func (p *fullPass) deleteStale(ctx context.Context) error {
	if !p.scope.prune {
		return nil
	}
	limit := p.limits.of(p.kernel).chains
	stale := staleChains(p.want, p.state, &p.scope)
	// Emptied first: they jump to each other.
	full := slices.DeleteFunc(slices.Clone(stale), func(name string) bool { return p.state.chains[chainID{nat, name}].count == 0 })
	for names := range slices.Chunk(full, limit) {
		var t transaction
		for _, name := range names {
			t.emptyChain(name)
		}
		if err := p.write(ctx, &t); err != nil {
			return fmt.Errorf("empty chains that belong to no Service: %w", err)
		}
	}
	for names := range slices.Chunk(stale, limit) {
		stuck, err := deleteChains(ctx, p.kernel, nat, names)
		if err != nil {
			return fmt.Errorf("delete chains that belong to no Service: %w", err)
		}
		p.failed = p.failed || len(stuck) > 0
		for _, name := range stuck {
			p.scope.stuck[name] = struct{}{}
		}
	}
	return nil
}

// warnings report what could not be done besides the rules of Services.
func (p *fullPass) warnings() []string {
	out := p.tune(p.want.config)
	stuck := slices.Sorted(maps.Keys(p.scope.stuck))
	for _, name := range stuck[:min(len(stuck), dataplane.MaxExamples-len(out))] {
		out = append(out, fmt.Sprintf("chain %s of table nat belongs to no Service and cannot be deleted, because rules that are not ours jump to it; remove those rules", name))
	}
	return out
}
