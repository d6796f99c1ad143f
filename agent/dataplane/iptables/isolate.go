package iptables

import (
	"context"
	"errors"
	"maps"
	"math"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
)

// rejection is why the kernel does not have the desired state of a Service.
type rejection = engine.Rejection[planned]

// Bounds of how many runs of iptables-restore may be rejected in one pass while
// the Services at fault are found.
const (
	maxRejectedRuns = 200
	// maxPartialRuns is that for a pass that writes changed Services alone.
	maxPartialRuns = 20
	// maxRetryRuns is that for Services of which it was proven before.
	maxRetryRuns = 10
)

// alone is the size of a Service that takes several calls, whatever one may carry.
const alone = math.MaxInt32

// newIsolation writes the desired state of Services one batch after the other, each of which fits
// one call of iptables-restore unless it is a single Service. Sizes are lines.
func (d *Dataplane) newIsolation(limit int, size func(dataplane.ServiceName) int, plans map[dataplane.ServiceName]*planned) *engine.Isolation[planned] {
	return &engine.Isolation[planned]{
		Limit: limit, RetryLimit: maxRetryRuns, Capacity: perCall(d.kernel, batchRules), LargeSize: batchRules, Size: size,
		Rejection: isRejection,
		Suspects: func(batch []dataplane.ServiceName, err error) (those, rest []dataplane.ServiceName) {
			return suspects(batch, err, plans)
		},
		Former: maps.Clone(d.engine.Rejected), Rejected: map[dataplane.ServiceName]rejection{}, Changed: map[dataplane.ServiceName]struct{}{},
	}
}

// suspects parts a batch by the lines of input that iptables-restore blames.
func suspects(batch []dataplane.ServiceName, err error, plans map[dataplane.ServiceName]*planned) (those, rest []dataplane.ServiceName) {
	e, ok := errors.AsType[*toolError](err)
	if !ok || len(e.faults) == 0 {
		return nil, batch
	}
	owners := map[string]dataplane.ServiceName{} // of chains
	for _, name := range batch {
		if plan := plans[name]; plan != nil {
			for _, c := range plan.chains {
				owners[c.name] = name
			}
		}
	}
	lines := strings.Split(e.input, "\n")
	named := map[dataplane.ServiceName]struct{}{}
	for _, line := range e.faults {
		if line >= 1 && line <= len(lines) {
			if name, ok := lineOwner(lines[line-1], owners); ok {
				named[name] = struct{}{}
			}
		}
	}
	for _, name := range batch {
		if _, ok := named[name]; ok {
			those = append(those, name)
		} else {
			rest = append(rest, name)
		}
	}
	return those, rest
}

// lineOwner returns the Service that a line of input belongs to: by its chain,
// or by its comment in a shared chain.
func lineOwner(line string, owners map[string]dataplane.ServiceName) (dataplane.ServiceName, bool) {
	if chain, ok := strings.CutPrefix(line, ":"); ok {
		chain, _, _ = strings.Cut(chain, " ")
		name, ok := owners[chain]
		return name, ok
	}
	_, rest, _ := strings.Cut(line, " ") // -A, -I
	chain, spec, _ := strings.Cut(rest, " ")
	if name, ok := owners[chain]; ok {
		return name, true
	}
	return commentOwner(comment(spec))
}

// noteHeld notes what the kernel has of rejected Services, so that each can
// be tried alone from now on: their rules, and the chains that these lead to.
func (p *fullPass) noteHeld(ctx context.Context) error {
	if len(p.scope.rejected) == 0 {
		return nil
	}
	if p.faults.Runs > 0 { // some of what was tried may have been applied
		if now := momentOf(p.kernel); now.known { // rejected runs count as others'
			p.sound = now
		}
		var err error
		if p.state, err = p.kernel.read(ctx); err != nil {
			return err
		}
	}
	rules := p.rulesOfRejected(p.state)
	for name, why := range p.scope.rejected {
		why.Held = &planned{chains: p.state.ledTo(rules[name]), dispatch: rules[name]}
		p.scope.rejected[name] = why
	}
	return nil
}

// rulesOfRejected are the rules of rejected Services in shared chains.
func (p *fullPass) rulesOfRejected(state *kernelState) map[dataplane.ServiceName][]dispatchRule {
	out := map[dataplane.ServiceName][]dispatchRule{}
	for _, c := range p.want.config.sharedChains() {
		have := state.chains[c.id]
		if !c.dispatch || have == nil {
			continue
		}
		for _, rule := range have.rules {
			name, owned := commentOwner(comment(rule.spec))
			if _, rejected := p.scope.rejected[name]; owned && rejected {
				out[name] = append(out[name], dispatchRule{in: c.id, hash: rule.hash, spec: rule.spec})
			}
		}
	}
	return out
}
