package iptables

import (
	"context"
	"fmt"
	"slices"
)

// A packet of a mode that comes after this one passes filter INPUT with the address of the Service
// as its destination, as one that nat did not translate. So if such a mode serves the node, rules
// that drop what nat did not translate are written after nat translates: the other mode has rules
// of its own until then.

// swapFirewallJumps replaces the jumps of other modes to KUBE-PROXY-FIREWALL by
// ours, which are for new connections only: connections of those modes continue.
func (p *fullPass) swapFirewallJumps(ctx context.Context) error {
	var t transaction
	for _, h := range slices.Backward(p.want.config.jumps()) {
		in, have := h.in(), p.state.chains[h.in()]
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
				t.line(&t.refuse, "-D ", in.name, " ", r.spec) // in the same section
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
