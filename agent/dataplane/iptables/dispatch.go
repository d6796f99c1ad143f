package iptables

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// compareDispatch returns how the shared chains with rules of Services differ,
// except for rules that have to wait for writeFirewall.
func (p *fullPass) compareDispatch() []*sharedDiff {
	return slices.DeleteFunc(compareShared(p.want, p.state, &p.scope),
		func(d *sharedDiff) bool { return !d.chain.dispatch || p.waits(d) })
}

func (p *fullPass) noteAdded(diffs []*sharedDiff) {
	for _, d := range diffs {
		for _, r := range d.add {
			p.changed[r.owner] = struct{}{}
		}
	}
}

// writeDispatch brings the shared chains with rules of Services up to date: in one call
// unless that is too much for one or the kernel rejects it.
func (p *fullPass) writeDispatch(ctx context.Context, diffs []*sharedDiff) error {
	if p.tooManyFor(diffs) {
		return p.writeDispatchInParts(ctx, diffs)
	}
	var t transaction
	for _, d := range diffs {
		t.writeShared(d)
	}
	err := p.write(ctx, &t)
	switch {
	case isRejection(err):
		// Part of it may have been applied.
		if p.state, err = p.kernel.read(ctx); err != nil {
			return err
		}
		return p.writeDispatchInParts(ctx, p.compareDispatch())
	case err != nil:
		return err
	}
	p.noteAdded(diffs)
	return nil
}

// writeDispatchInParts is writeDispatch by many calls: rule by rule, first those that are
// missing, so that at no time more are missing than before. A Service that is rejected retains
// its rules.
func (p *fullPass) writeDispatchInParts(ctx context.Context, diffs []*sharedDiff) error {
	additions := map[dataplane.ServiceName][]dispatchRule{}
	var declared transaction
	for _, d := range diffs {
		for _, r := range d.add {
			additions[r.owner] = append(additions[r.owner], r.dispatchRule)
		}
		if d.missing {
			declared.declareShared(d.chain.id)
		}
	}
	if err := p.write(ctx, &declared); err != nil {
		return err
	}
	if err := p.addDispatch(ctx, additions); err != nil {
		return err
	}
	c := &calls{limit: p.limits.of(p.kernel).rules}
	for _, in := range []table{nat, filter} { // what is rejected stays so until it is translated
		for _, d := range diffs {
			if d.chain.id.table != in {
				continue
			}
			if len(d.add) > 0 {
				c.with(2*len(d.head)).putFirst(d.chain.id, d.head)
			}
			if d.fixed {
				c.with(len(d.chain.fixed)).appendRules(d.chain.id, d.chain.fixed)
			}
			var rules []dispatchRule
			for _, spec := range d.remove {
				owner, owned := commentOwner(comment(spec))
				if _, rejected := p.scope.rejected[owner]; !owned || !rejected {
					rules = append(rules, dispatchRule{in: d.chain.id, hash: ruleHash(spec), spec: spec})
				}
			}
			c.replace(rules, nil, in)
		}
	}
	for _, t := range c.list {
		if err := t.fill(ctx, p.kernel); err != nil {
			return err
		}
		if err := p.write(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// addDispatch adds the rules of Services in shared chains, those that reject first. Only
// a Service that is a batch by itself takes several calls. What was written of it before one
// is rejected stays: see noteActual.
func (p *fullPass) addDispatch(ctx context.Context, additions map[dataplane.ServiceName][]dispatchRule) error {
	names := slices.SortedFunc(maps.Keys(additions), dataplane.ServiceName.Compare)
	return p.faults.Write(names, func(batch []dataplane.ServiceName) error {
		var rules []dispatchRule
		for _, in := range []table{filter, nat} {
			for _, name := range batch {
				for _, r := range additions[name] {
					if r.in.table == in {
						rules = append(rules, r)
					}
				}
			}
		}
		for part := range slices.Chunk(rules, p.faults.Capacity) {
			var t transaction
			for _, r := range part {
				t.addRule(r)
			}
			err := p.write(ctx, &t)
			if isRejection(err) {
				if undoErr := p.revert(ctx, &t); undoErr != nil {
					return undoErr
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// A packet of a mode that comes after this one passes filter INPUT with the address of the Service
// as its destination, as one that nat did not translate. If such a mode serves the node, rules
// that drop what nat did not translate are therefore written after nat translates: the other mode has rules
// of its own until then.

// swapFirewallJumps replaces the jumps of other modes to KUBE-PROXY-FIREWALL by
// ours, which are for new connections only: connections of those modes continue.
func (p *fullPass) swapFirewallJumps(ctx context.Context) error {
	var t transaction
	for _, h := range slices.Backward(p.want.config.jumps()) {
		in := builtIn(&h)
		have := p.state.chains[in]
		if target, _ := jumpTarget(h.Rule); have == nil || target != chainProxyFirewall {
			continue
		}
		theirs := func(r kernelRule) bool { return p.modes.others.declares(in, r.hash) }
		if !slices.ContainsFunc(have.rules, theirs) {
			continue
		}
		p.behindOther = true
		if hash := ruleHash(h.Rule); !have.has(hash) {
			t.insertRule(in, h.Rule)
			p.state.insert(dispatchRule{in: in, hash: hash, spec: h.Rule})
		}
		for _, r := range have.rules {
			if theirs(r) {
				t.line(&t.reject, "-D ", in.name, " ", r.spec) // in the same section
				have.count--
			}
		}
		have.rules = slices.DeleteFunc(have.rules, theirs)
	}
	translates := false
	services := chainID{nat, chainServices}
	if have := p.state.chains[services]; have != nil {
		p.behindOther = p.behindOther || slices.ContainsFunc(have.rules, func(r kernelRule) bool { return p.modes.theirs(services, r) })
		translates = slices.ContainsFunc(have.rules, func(r kernelRule) bool { return p.modes.leads(services, r.spec) })
	}
	p.takesOver = p.behindOther && !translates
	if t.empty() {
		return nil
	}
	if err := p.write(ctx, &t); err != nil {
		return fmt.Errorf("replace the jumps of other modes to %s: %w", chainProxyFirewall, err)
	}
	return nil
}

// waits reports whether rules of Services in a chain have to wait until nat
// translates. Those in KUBE-EXTERNAL-SERVICES do so only as long as the other mode has all new
// connections: later they must be there when nat stops translating something.
func (p *fullPass) waits(d *sharedDiff) bool {
	switch d.chain.id {
	case chainID{filter, chainProxyFirewall}:
		return p.behindOther
	case chainID{filter, chainExternalServices}:
		return p.takesOver
	default:
		return false
	}
}

// writeFirewall writes the rules of Services that had to wait.
func (p *fullPass) writeFirewall(ctx context.Context) error {
	if !p.behindOther {
		return nil
	}
	diffs := slices.DeleteFunc(compareShared(p.want, p.state, &p.scope), func(d *sharedDiff) bool { return !p.waits(d) })
	return p.writeDispatch(ctx, diffs)
}
