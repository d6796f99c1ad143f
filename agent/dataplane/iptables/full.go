package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// applyFull compares all that the kernel holds to what is wanted and writes the
// difference: first what chains of Services lead to, then those chains, then
// what leads to them, last the removal of what nothing leads to any more.
func (d *Dataplane) applyFull(ctx context.Context, r *dataplane.Ruleset, state *kernelState) (int, error) {
	facts, err := d.facts()
	if err != nil {
		return 0, err
	}
	config, err := d.configFor(r, facts)
	if err != nil {
		return 0, err
	}
	d.follow(config)
	p := &fullPass{Dataplane: d, ruleset: r, want: config.plan(r.Services), state: state,
		changed: map[dataplane.ServiceName]struct{}{},
		scope:   scope{prune: r.Prune, ended: ended(r), refused: map[dataplane.ServiceName]refusal{}, kept: keptOf(r)}}
	if err := p.run(ctx); err != nil {
		return 0, err
	}
	if err := p.allRefused(); err != nil {
		return 0, err
	}
	d.refused, d.stuck = p.scope.refused, p.scope.stuck
	for name := range d.refused {
		delete(p.want.services, name)
	}
	d.chains, d.rules = p.want.counts()
	d.filterRules = p.want.inFilter()
	d.held, d.kept = p.want, p.scope.kept
	d.countForeign(p)
	d.warnings = append(p.warnings(), d.kernel.warnings(ctx)...)
	return len(p.changed), nil
}

// ended names the Services that have changed and of which nothing is wanted.
func ended(r *dataplane.Ruleset) map[dataplane.ServiceName]struct{} {
	out := map[dataplane.ServiceName]struct{}{}
	for name := range r.Dirty {
		if r.Services[name] == nil {
			out[name] = struct{}{}
		}
	}
	return out
}

// fullPass is one full Apply.
type fullPass struct {
	*Dataplane
	ruleset *dataplane.Ruleset
	want    *wanted
	state   *kernelState
	scope   scope
	changed map[dataplane.ServiceName]struct{}
	runs    int // of iptables-restore that were refused
	// behindIPVS: mode IPVS has served the node, and may still. TakesOver: it does,
	// alone.
	behindIPVS, takesOver bool
}

func (p *fullPass) run(ctx context.Context) error {
	if err := p.swapFirewallJumps(ctx); err != nil {
		return err
	}
	hooks := compareHooks(p.want, p.state)
	early := leadNowhere(hooks, p.want, p.state)
	if err := p.writeBase(ctx, early); err != nil {
		return err
	}
	if early {
		// Each costs less while there are few rules.
		if err := p.writeHooks(hooks); err != nil {
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
		if err := p.writeHooks(hooks); err != nil {
			return err
		}
	}
	return p.deleteStale(ctx)
}

// writeBase brings the shared chains without rules of Services up to date.
// Chains of Services jump to them. With declare it also makes those for rules of
// Services that are missing, which have none yet.
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
	return p.kernel.apply(ctx, t.String())
}

// writeServices writes the chains of Services and then what leads to them: both
// at once where one call can carry that.
func (p *fullPass) writeServices(ctx context.Context) error {
	if done, err := p.writeAtOnce(ctx); done || err != nil {
		return err
	}
	if err := p.writeRefusals(ctx); err != nil {
		return err
	}
	if err := p.writeChains(ctx); err != nil {
		return err
	}
	return p.writeDispatch(ctx, p.compareDispatch())
}

// writeAtOnce writes everything of Services in one call. It reports false where
// that is too much for one, or where some of it is refused.
func (p *fullPass) writeAtOnce(ctx context.Context) (bool, error) {
	different := compareChains(p.want, p.state, &p.scope)
	size := 0
	for name := range different {
		size += ruleEstimate(p.ruleset.Services[name])
	}
	limit := perCall(p.kernel, batchRules)
	t := transaction{large: size > limit && size > p.state.rulesOf(nat)}
	if t.large {
		limit = largeRules
	}
	if size > limit || len(p.Dataplane.refused) > 0 {
		return false, nil
	}
	p.addChains(&t, slices.SortedFunc(maps.Keys(different), dataplane.ServiceName.Compare), different)
	diffs := p.compareDispatch()
	for _, d := range diffs {
		t.writeShared(d)
	}
	err := p.kernel.apply(ctx, t.String())
	switch {
	case isRefusal(err):
		// Part of it may have gone in.
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

// writeRefusals adds the filter rules that are missing. They come before chains
// of Services change, because what those no longer translate must meet them at
// once; while it is translated it meets none of them. What the kernel does not
// take is left to writeDispatch, which finds out whose it is. A filter chain that
// is missing altogether is too: before a first load nothing is translated.
func (p *fullPass) writeRefusals(ctx context.Context) error {
	var (
		t     transaction
		added []ownedRule
	)
	for _, d := range p.compareDispatch() {
		if d.chain.id.table != filter || d.missing {
			continue
		}
		for _, r := range d.add {
			t.addRule(r.dispatchRule)
			added = append(added, r)
		}
	}
	if err := p.kernel.apply(ctx, t.String()); err != nil {
		if isRefusal(err) {
			return nil
		}
		return err
	}
	for _, r := range added {
		p.state.chains[r.in].insert(r.spec)
		p.changed[r.owner] = struct{}{}
	}
	return nil
}

// writeChains writes the chains of Services that are missing or differ.
func (p *fullPass) writeChains(ctx context.Context) error {
	different := compareChains(p.want, p.state, &p.scope)
	names := slices.SortedFunc(maps.Keys(different), dataplane.ServiceName.Compare)
	return p.isolate(names, func(batch []dataplane.ServiceName) (string, error) {
		var t transaction
		p.addChains(&t, batch, different)
		input := t.String()
		return input, p.kernel.apply(ctx, input)
	})
}

// addChains adds to a transaction the chains of Services that differ.
func (p *fullPass) addChains(t *transaction, names []dataplane.ServiceName, different map[dataplane.ServiceName][]string) {
	for _, name := range names {
		plan := p.want.config.planService(p.ruleset.Services[name])
		differs := make(map[string]struct{}, len(different[name]))
		for _, chain := range different[name] {
			differs[chain] = struct{}{}
		}
		for i := range plan.chains {
			if _, found := differs[plan.chains[i].name]; found {
				t.writeChain(&plan.chains[i])
			}
		}
	}
}

// compareDispatch returns how the shared chains with rules of Services differ,
// but for that which has to wait for writeFirewall.
func (p *fullPass) compareDispatch() []*sharedDiff {
	return slices.DeleteFunc(compareShared(p.want, p.state, &p.scope),
		func(d *sharedDiff) bool { return !d.chain.dispatch || p.waits(d) })
}

// noteAdded notes the Services whose rules in shared chains were added.
func (p *fullPass) noteAdded(diffs []*sharedDiff) {
	for _, d := range diffs {
		for _, r := range d.add {
			p.changed[r.owner] = struct{}{}
		}
	}
}

// writeDispatch brings the shared chains with rules of Services up to date.
// Where the kernel refuses that, everything but new rules of Services is
// written first, then those.
func (p *fullPass) writeDispatch(ctx context.Context, diffs []*sharedDiff) error {
	var t transaction
	for _, d := range diffs {
		t.writeShared(d)
	}
	if t.empty() {
		return nil
	}
	err := p.kernel.apply(ctx, t.String())
	if err == nil {
		p.noteAdded(diffs)
		return nil
	}
	if !isRefusal(err) {
		return err
	}
	additions := map[dataplane.ServiceName][]dispatchRule{}
	var rest transaction
	for _, d := range diffs {
		for _, r := range d.add {
			additions[r.owner] = append(additions[r.owner], r.dispatchRule)
		}
		d.add = nil
		rest.writeShared(d)
	}
	if err := p.kernel.apply(ctx, rest.String()); err != nil {
		return err
	}
	return p.addDispatch(ctx, additions)
}

func (p *fullPass) addDispatch(ctx context.Context, additions map[dataplane.ServiceName][]dispatchRule) error {
	names := slices.SortedFunc(maps.Keys(additions), dataplane.ServiceName.Compare)
	return p.isolate(names, func(batch []dataplane.ServiceName) (string, error) {
		var t, undo transaction
		for _, name := range batch {
			for _, r := range additions[name] {
				t.addRule(r)
				if r.in.table == filter {
					undo.removeRule(r.in, r.spec)
				}
			}
		}
		input := t.String()
		err := p.kernel.apply(ctx, input)
		if isRefusal(err) && t.refuse.Len() > 0 && t.nat.Len() > 0 {
			// Filter rules went in if it was nat that refused. Should it have been
			// filter, taking them back is refused too, which changes nothing.
			if undoErr := p.kernel.apply(ctx, undo.String()); undoErr != nil && !isRefusal(undoErr) {
				return input, errors.Join(err, undoErr)
			}
		}
		return input, err
	})
}

// writeHooks inserts the jumps that are missing at the head of built-in
// chains, the last one first, so that they stand in order. They come after the
// chains they lead to are complete, or while those that are not are empty.
func (p *fullPass) writeHooks(missing []hook) error {
	for _, h := range slices.Backward(missing) {
		if err := p.kernel.insert(h); err != nil {
			return fmt.Errorf("insert the jump from %s of table %s: %w", h.in.name, h.in.table, err)
		}
	}
	return nil
}

// deleteStale deletes chains that belong to no Service. Where a Service is
// refused its former chains may be among them: then all stay.
func (p *fullPass) deleteStale(ctx context.Context) error {
	if !p.scope.prune || len(p.scope.refused) > 0 {
		return nil
	}
	limit := perCall(p.kernel, batchChains)
	stale := staleChains(p.want, p.state)
	// Emptied first: they jump to each other.
	full := slices.DeleteFunc(slices.Clone(stale), func(name string) bool { return p.state.chains[chainID{nat, name}].count == 0 })
	for names := range slices.Chunk(full, limit) {
		var t transaction
		for _, name := range names {
			t.emptyChain(name)
		}
		if err := p.kernel.apply(ctx, t.String()); err != nil {
			return fmt.Errorf("empty chains that belong to no Service: %w", err)
		}
	}
	for names := range slices.Chunk(stale, limit) {
		stuck, err := deleteChains(ctx, p.kernel, nat, names)
		if err != nil {
			return fmt.Errorf("delete chains that belong to no Service: %w", err)
		}
		for _, name := range stuck {
			if p.scope.stuck == nil {
				p.scope.stuck = map[string]struct{}{}
			}
			p.scope.stuck[name] = struct{}{}
		}
	}
	return nil
}

// warnings are what could not be done besides the rules of Services.
func (p *fullPass) warnings() []string {
	var out []string
	if w := p.routeLocalnet(p.want.config); w != "" {
		out = append(out, w)
	}
	for _, name := range slices.Sorted(maps.Keys(p.scope.stuck)) {
		if len(out) == dataplane.MaxExamples {
			break
		}
		out = append(out, fmt.Sprintf("chain %s of table nat belongs to no Service and cannot be deleted, because rules that are not ours jump to it; remove those rules", name))
	}
	return out
}

// routeLocalnet lets NodePorts answer on 127.0.0.1. It returns what to tell
// where that is not possible.
func (d *Dataplane) routeLocalnet(c *config) string {
	if !c.nodePorts.Localhost {
		return ""
	}
	const name = "net/ipv4/conf/all/route_localnet"
	if value, err := d.sysctls.read(name); err == nil && value == "1" {
		return ""
	}
	if err := d.sysctls.write(name, "1"); err != nil {
		return fmt.Sprintf("NodePorts do not answer on 127.0.0.1: %v; let the agent write it (in a container by --sysctl-folder, as config/agent/daemonset.yaml does), or set spec.settings.nodePorts.localhost to Disabled", err)
	}
	return ""
}
