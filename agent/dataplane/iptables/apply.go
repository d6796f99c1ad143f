package iptables

import (
	"context"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Limits of one call of iptables-restore in the nf_tables variant, where the
// time of a call grows with the square of what it carries.
const (
	batchRules  = 6000
	batchChains = 2000
)

// Apply makes the kernel hold r: by the changed Services alone where what the
// kernel holds is known, else by reading and comparing all of it.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	if err := d.kernel.find(ctx); err != nil {
		return dataplane.Result{}, err
	}
	partial := 0
	if !r.Full && d.held != nil {
		changed, err := d.applyDirty(ctx, r)
		switch {
		case err == nil && !d.touchesRefused(r):
			return d.result(v1alpha1.SyncPartial, changed), nil
		case err == nil:
			partial = changed // the others need not wait for what was refused
		case !isRefusal(err):
			d.held = nil
			return dataplane.Result{}, err
		}
		// The kernel may not hold what we think it does: look, then find out
		// which Service it is that is refused.
	}
	d.held = nil
	changed, err := d.applyFull(ctx, r)
	if err != nil {
		return dataplane.Result{}, err
	}
	return d.result(v1alpha1.SyncFull, partial+changed), nil
}

func (d *Dataplane) result(kind v1alpha1.SyncKind, changed int) dataplane.Result {
	refused := make(map[dataplane.ServiceName]string, len(d.refused))
	for name, r := range d.refused {
		refused[name] = r.reason
	}
	return dataplane.Result{
		Kind: kind, ServicesChanged: changed, Refused: refused, Warnings: slices.Clone(d.warnings),
		Chains: d.chains, Rules: d.rules,
	}
}

// touchesRefused reports whether a refused Service has changed.
func (d *Dataplane) touchesRefused(r *dataplane.Ruleset) bool {
	for name := range r.Dirty {
		if _, ok := d.refused[name]; ok {
			return true
		}
	}
	return false
}

// applyDirty writes the difference between what is held and what is wanted of
// the dirty Services, but for those that were refused: what the kernel holds of
// them is not known.
func (d *Dataplane) applyDirty(ctx context.Context, r *dataplane.Ruleset) (int, error) {
	names := slices.DeleteFunc(slices.SortedFunc(maps.Keys(r.Dirty), dataplane.ServiceName.Compare),
		func(n dataplane.ServiceName) bool { _, refused := d.refused[n]; return refused })
	size := func(n dataplane.ServiceName) int { return ruleEstimate(r.Services[n]) }
	changed := 0
	for _, batch := range serviceBatches(names, size, d.perCall(batchRules)) {
		var t transaction
		plans := make(map[dataplane.ServiceName]*planned, len(batch))
		for _, name := range batch {
			var plan *servicePlan
			if svc := r.Services[name]; svc != nil {
				p := d.held.config.planService(svc)
				plan = &p
				plans[name] = p.planned()
			}
			if t.replace(d.held.services[name], plan) {
				changed++
			}
		}
		if err := d.kernel.apply(ctx, t.String()); err != nil {
			return changed, err
		}
		for _, name := range batch {
			d.hold(name, plans[name])
		}
	}
	return changed, nil
}

// hold records what the kernel holds of a Service; nil for nothing.
func (d *Dataplane) hold(name dataplane.ServiceName, p *planned) {
	c, r := d.held.services[name].counts()
	d.chains, d.rules = d.chains-c, d.rules-r
	c, r = p.counts()
	d.chains, d.rules = d.chains+c, d.rules+r
	if p == nil {
		delete(d.held.services, name)
		return
	}
	d.held.services[name] = p
}

// perCall is how much one call of iptables-restore may carry, given the limit
// of the nf_tables variant.
func (d *Dataplane) perCall(limit int) int {
	if d.kernel.legacy() {
		return 1 << 30 // each call rewrites the table: as few as can be
	}
	return limit
}

func ruleEstimate(s *dataplane.Service) int {
	n := 1
	if s != nil {
		for i := range s.Ports {
			p := &s.Ports[i]
			n += 8 + 4*len(p.Cluster) + 2*len(p.Local)
		}
	}
	return n
}
