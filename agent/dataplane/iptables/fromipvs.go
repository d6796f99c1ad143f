package iptables

import (
	"context"
	"fmt"
	"slices"
)

// A packet through IPVS passes filter INPUT with the address of the Service as its
// destination, as one that nat did not translate. So where mode IPVS serves the
// node, rules that drop what nat did not translate come after nat translates: IPVS has
// rules of its own until then.

// swapFirewallJumps has the jumps of mode IPVS to KUBE-PROXY-FIREWALL replaced by
// ours, which are for new connections only: those that go through IPVS go on.
func (p *fullPass) swapFirewallJumps(ctx context.Context) error {
	var t transaction
	for _, h := range slices.Backward(p.want.config.hooks()) {
		have := p.state.chains[h.in]
		if have == nil || !modeIPTables.isFirewallJump(h.spec) {
			continue
		}
		theirs := func(r kernelRule) bool { return modeIPVS.isFirewallJump(r.spec) }
		if !slices.ContainsFunc(have.rules, theirs) {
			continue
		}
		p.behindIPVS = true
		hash := ruleHash(h.spec)
		if !slices.ContainsFunc(have.rules, func(r kernelRule) bool { return r.hash == hash }) {
			t.insertRule(h.in, h.spec)
			p.state.insert(dispatchRule{in: h.in, hash: hash, spec: h.spec})
		}
		for _, r := range have.rules {
			if theirs(r) {
				t.line(&t.refuse, "-D ", h.in.name, " ", r.spec) // in the same section
				have.count--
			}
		}
		have.rules = slices.DeleteFunc(have.rules, theirs)
	}
	translates := false
	if services := p.state.chains[chainID{nat, chainServices}]; services != nil {
		p.behindIPVS = p.behindIPVS || slices.ContainsFunc(services.rules, isIPVSRule)
		translates = slices.ContainsFunc(services.rules, func(r kernelRule) bool { return isServicesRule(r.spec) })
	}
	p.takesOver = p.behindIPVS && !translates
	if t.empty() {
		return nil
	}
	if err := p.write(ctx, &t); err != nil {
		return fmt.Errorf("replace the jumps of mode IPVS to %s: %w", chainProxyFirewall, err)
	}
	return nil
}

// waits reports whether rules of Services in a chain have to wait until nat
// translates. Those in KUBE-EXTERNAL-SERVICES do so only as long as IPVS has all new
// connections: later they must be there when nat ends to translate something.
func (p *fullPass) waits(d *sharedDiff) bool {
	switch d.chain.id {
	case chainID{filter, chainProxyFirewall}:
		return p.behindIPVS
	case chainID{filter, chainExternalServices}:
		return p.takesOver
	default:
		return false
	}
}

// writeFirewall writes the rules of Services that had to wait.
func (p *fullPass) writeFirewall(ctx context.Context) error {
	if !p.behindIPVS {
		return nil
	}
	diffs := slices.DeleteFunc(compareShared(p.want, p.state, &p.scope), func(d *sharedDiff) bool { return !p.waits(d) })
	return p.writeDispatch(ctx, diffs)
}
