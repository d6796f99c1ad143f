package iptables

import (
	"context"
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// partialPass is an Apply of some Services alone.
type partialPass struct {
	*Dataplane
	ctx     context.Context //nolint:containedctx // it lives for one Apply
	ruleset *dataplane.Ruleset
	faults  *isolation
	plans   map[dataplane.ServiceName]*planned // of the Services of which some is desired
	// sound: no other program has written since it was known what the kernel has.
	sound   bool
	changed int
}

// applyChanged writes the difference between what is held and what is desired of
// some Services. An error wraps engine.ErrFull, or says why the kernel could not be written.
func (d *Dataplane) applyChanged(ctx context.Context, r *dataplane.Ruleset, names []dataplane.ServiceName) (changed int, err error) {
	p := &partialPass{Dataplane: d, ctx: ctx, ruleset: r, sound: d.undisturbed(), plans: map[dataplane.ServiceName]*planned{}}
	p.faults = d.newIsolation(maxPartialRuns, p.size, func(n dataplane.ServiceName) []plannedChain {
		if p.plans[n] == nil {
			return nil
		}
		return p.plans[n].chains
	})
	if err := p.faults.isolate(names, p.writeBatch); err != nil {
		return p.changed, err
	}
	if err := p.noteRejected(); err != nil {
		return p.changed, err
	}
	if p.sound && (p.faults.Runs > 0 || len(p.faults.Former) != len(d.engine.Rejected)) {
		d.recount()
	}
	return p.changed, nil
}

// size is how many lines a Service takes.
func (p *partialPass) size(n dataplane.ServiceName) int {
	lines := 0
	for _, c := range p.changes(n) {
		lines += c.lines()
		if large, _ := sweeps(c.remove); len(large) > 0 {
			return alone // it takes several calls
		}
	}
	return lines
}

// undisturbed reports whether no other program has written rules since it was known
// what the kernel has, so that what it refuses is at fault itself.
func (d *Dataplane) undisturbed() bool {
	if d.kernel.legacy() {
		now, known := d.kernel.entries()
		return known && now == d.expected().total
	}
	others, known := d.kernel.others()
	return known && d.sound != nil && *d.sound == others
}

// has is what the kernel has of a Service.
func (d *Dataplane) has(name dataplane.ServiceName) *planned {
	if why, rejected := d.engine.Rejected[name]; rejected {
		return why.Held
	}
	return d.held.services[name]
}

// nowHas notes what the kernel has of a Service of which a part was written.
func (d *Dataplane) nowHas(name dataplane.ServiceName, p *planned) {
	if why, rejected := d.engine.Rejected[name]; rejected {
		why.Held = p
		d.engine.Rejected[name] = why
		return
	}
	d.hold(name, p)
}

// maxParts bounds how many lines the kernel may have of a rejected Service, which are parts
// of several versions of it. It is more than any Service takes: up to 7 for each endpoint of a
// port.
const maxParts = 10 * v1alpha1.MaxServicePortEndpoints

// changes plans a Service anew and returns what is to be written of it, one after the other.
func (p *partialPass) changes(name dataplane.ServiceName) []*serviceChange {
	var plan *servicePlan
	if svc := p.ruleset.Services[name]; svc != nil {
		planned := p.held.config.planService(svc)
		plan = &planned
		p.plans[name] = plan.planned()
	}
	held := p.has(name)
	if held.lines() > maxParts {
		return []*serviceChange{changeOf(held, nil), changeOf(nil, plan)}
	}
	return []*serviceChange{changeOf(held, plan)}
}

// writeBatch writes some Services. A call that is rejected leaves no trace. What earlier calls
// wrote stays and is known: they are complete steps of the change, and to take them back
// takes rules that are not remembered and as many calls again, at each retry. Only a
// Service that is a batch by itself takes several.
func (p *partialPass) writeBatch(batch []dataplane.ServiceName) (string, error) {
	c := &calls{limit: p.faults.Capacity}
	different := 0
	for _, name := range batch {
		before := c.lines()
		for i, change := range p.changes(name) {
			if i > 0 {
				c.cut()
			}
			c.add(change)
		}
		if c.lines() > before {
			different++
		}
	}
	input := ""
	for i, t := range c.list {
		if err := t.fill(p.ctx, p.kernel); err != nil {
			return input, err
		}
		input = t.String()
		err := p.write(p.ctx, t)
		if isRejection(err) {
			if i > 0 {
				p.nowHas(batch[0], p.has(batch[0]).after(c.list[:i]))
			}
			return input, p.rejected(t, err)
		}
		if err != nil {
			return input, err
		}
	}
	p.changed += different
	for _, name := range batch {
		delete(p.engine.Rejected, name)
		p.hold(name, p.plans[name])
	}
	return input, nil
}

// refused takes back what of a transaction went in before the kernel rejected it,
// and returns why it did, or engine.ErrFull: once between two verifications a full pass
// checks whether another program is to blame, and always if all but the last removals may
// have gone in.
func (p *partialPass) rejected(t *transaction, why error) error {
	if t.onlyPermitFailed(why) {
		return engine.ErrFull
	}
	if err := p.takeBack(p.ctx, t); err != nil {
		return err
	}
	if p.sound || p.doubted {
		return why
	}
	p.doubted = true
	return engine.ErrFull
}

// takeBack takes back what went in of a transaction that was rejected. Filter rules
// went in if it was nat that refused. Should it have been filter, taking them back
// is rejected too, which changes nothing.
func (d *Dataplane) takeBack(ctx context.Context, t *transaction) error {
	if t.refuse.Len() == 0 || !t.hasNAT() {
		return nil
	}
	if err := d.write(ctx, t.undo()); err != nil && !isRejection(err) {
		return fmt.Errorf("take back what went in of rules that were rejected: %w", err)
	}
	return nil
}

// noteRejected notes what was rejected. What the kernel has of it was known before, or
// noted by writeBatch.
func (p *partialPass) noteRejected() error {
	if len(p.faults.Rejected) == 0 {
		return nil
	}
	for name, why := range p.faults.Rejected {
		if p.ruleset.Services[name] == nil {
			return engine.ErrFull // rules could not be removed that should be there
		}
		if former, before := p.engine.Rejected[name]; before {
			why.Held = former.Held
		} else {
			why.Held = p.held.services[name]
			p.hold(name, nil)
		}
		p.engine.Rejected[name] = why
	}
	return nil
}

// recount counts anew what is not in held, which has come to be more or less, and
// does not take runs of ours that were rejected for others', as the kernel's count
// does.
func (d *Dataplane) recount() {
	if now, known := d.kernel.entries(); known && d.kernel.legacy() {
		d.foreign = now - entriesOf(d.chains, d.rules)
	}
	if others, known := d.kernel.others(); known {
		d.sound = &others
	}
}
