package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// errPaused ends a pass of which the rest is left for a later Apply.
var errPaused = errors.New("paused")

type partialPass struct {
	*Dataplane
	ctx     context.Context //nolint:containedctx // it lives for one Apply
	ruleset *dataplane.Ruleset
	faults  *engine.Isolation[planned]
	plans   map[dataplane.ServiceName]*planned // of the Services of which some is desired
	// sound: no other program has written since it was known what the kernel has.
	sound   bool
	changed int
}

// applyChanged writes the difference between the actual and the desired state of
// some Services. An error wraps engine.ErrFull, or explains why the kernel could not be written.
func (d *Dataplane) applyChanged(ctx context.Context, r *dataplane.Ruleset, names []dataplane.ServiceName) (changed int, err error) {
	p := &partialPass{Dataplane: d, ctx: ctx, ruleset: r, sound: d.undisturbed(), plans: map[dataplane.ServiceName]*planned{}}
	p.faults = d.newIsolation(maxPartialRuns, p.size, p.plans)
	if r.Pause != nil { // what may pause comes after everything that does not
		p.faults.LargeSize = min(p.faults.LargeSize, d.limits.of(d.kernel).part)
	}
	err = p.faults.Write(names, p.writeBatch)
	paused := errors.Is(err, errPaused)
	if err != nil && !paused {
		return p.changed, err
	}
	if err := p.noteRejected(); err != nil {
		return p.changed, err
	}
	if paused {
		d.engine.Leave(names, p.faults.Changed, p.faults.Rejected)
	}
	if p.sound && (p.faults.Runs > 0 || len(p.faults.Previous) != len(d.engine.Rejected)) {
		d.recount()
	}
	return p.changed, nil
}

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
// what the kernel has, so that what it rejects is at fault itself.
func (d *Dataplane) undisturbed() bool {
	if d.kernel.legacy() {
		now, known := d.kernel.entries()
		return known && now == d.expected().total
	}
	return d.sound.sameAs(momentOf(d.kernel))
}

// has is what the kernel has of a Service.
func (d *Dataplane) has(name dataplane.ServiceName) *planned {
	if why, rejected := d.engine.Rejected[name]; rejected {
		return why.Actual
	}
	return d.actual.services[name]
}

// nowHas notes what the kernel has of a Service of which a part was written.
func (d *Dataplane) nowHas(name dataplane.ServiceName, p *planned) {
	if why, rejected := d.engine.Rejected[name]; rejected {
		why.Actual = p
		d.engine.Rejected[name] = why
		return
	}
	d.setActual(name, p)
}

// maxParts bounds how many lines the kernel may have of a rejected Service, which are parts
// of several versions of it. It is more than any Service takes: up to 7 for each endpoint of a
// port, and 8 for each part of these.
const maxParts = 10 * v1alpha1.MaxServicePortEndpoints

// changes plans a Service anew and returns what is to be written of it, one after the other.
func (p *partialPass) changes(name dataplane.ServiceName) []*serviceChange {
	actual := p.has(name)
	again := actual.lines() > maxParts
	var plan *servicePlan
	if svc := p.ruleset.Services[name]; svc != nil {
		planned := p.actual.config.postpone(svc, p.limits, p.differs(actual, again))
		plan = &planned
		p.plans[name] = plan.planned()
	}
	if again {
		return []*serviceChange{changeOf(actual, nil), changeOf(nil, plan)}
	}
	return []*serviceChange{changeOf(actual, plan)}
}

// differs returns whether a chain differs from what the kernel has of a Service; all: each does.
func (p *partialPass) differs(actual *planned, all bool) func(*chain) bool {
	had := map[string]uint64{}
	if actual != nil && !all {
		had = actual.hashes()
	}
	return func(c *chain) bool {
		hash, exists := had[c.name]
		return !exists || hash != c.hash
	}
}

// writeBatch writes some Services. A call that is rejected changes nothing. What earlier calls
// wrote stays and is known: they are complete steps of the change, and reverting them
// takes rules that are not remembered and as many calls again, at each retry. Only a
// Service that is a batch by itself takes several, between which it can pause.
func (p *partialPass) writeBatch(batch []dataplane.ServiceName) error {
	c := &calls{limit: p.faults.Capacity}
	if len(batch) == 1 && p.ruleset.Pause != nil {
		c.limit = min(p.limits.of(p.kernel).part, c.limit)
	}
	different := 0
	for _, name := range batch {
		lines := 0
		for i, change := range p.changes(name) {
			first := len(c.list)
			if i > 0 {
				c.cut()
			}
			c.add(change)
			lines += change.lines()
			for _, t := range c.list[min(first, len(c.list)):] {
				t.amid = t.amid || i > 0 // the Service has nothing until it is written anew
			}
		}
		if lines > 0 {
			different++
		}
	}
	for i, t := range c.list {
		if i > 0 && t.lines > 0 && !t.amid && p.ruleset.Pause != nil && p.ruleset.Pause() {
			p.nowHas(batch[0], p.has(batch[0]).after(c.list[:i]))
			return errPaused
		}
		if err := t.fill(p.ctx, p.kernel); err != nil {
			return err
		}
		err := p.write(p.ctx, t)
		if isRejection(err) {
			if i > 0 {
				p.nowHas(batch[0], p.has(batch[0]).after(c.list[:i]))
			}
			return p.rejected(t, err)
		}
		if err != nil {
			return err
		}
		c.list[i] = &transaction{effect: t.effect} // without its text
	}
	p.changed += different
	for _, name := range batch {
		delete(p.engine.Rejected, name)
		p.setActual(name, p.plans[name])
	}
	return nil
}

// rejected reverts what was applied of a transaction before the kernel rejected it,
// and returns why it did, or engine.ErrFull: once between two verifications a full pass
// checks whether another program is to blame, and always if all but the last removals may
// have been applied.
func (p *partialPass) rejected(t *transaction, why error) error {
	if t.onlyPermitFailed(why) {
		return engine.ErrFull
	}
	if err := p.revert(p.ctx, t); err != nil {
		return err
	}
	if p.sound || p.doubted {
		return why
	}
	p.doubted = true
	return engine.ErrFull
}

// revert reverts what was applied of a rejected transaction. Filter rules
// were applied if nat was rejected. If filter was, reverting them
// is rejected too, which changes nothing.
func (d *Dataplane) revert(ctx context.Context, t *transaction) error {
	if t.reject.size == 0 || !t.hasNAT() {
		return nil
	}
	if err := d.write(ctx, t.undo()); err != nil && !isRejection(err) {
		return fmt.Errorf("revert a part of rejected rules: %w", err)
	}
	return nil
}

// noteRejected notes the rejected Services. What the kernel has of them was known before, or
// noted by writeBatch.
func (p *partialPass) noteRejected() error {
	if len(p.faults.Rejected) == 0 {
		return nil
	}
	for name, why := range p.faults.Rejected {
		if p.ruleset.Services[name] == nil {
			return engine.ErrFull // rules could not be removed that should be there
		}
		if previous, before := p.engine.Rejected[name]; before {
			why.Actual = previous.Actual
		} else {
			why.Actual = p.actual.services[name]
			p.setActual(name, nil)
		}
		p.engine.Rejected[name] = why
	}
	return nil
}

// recount counts what is not in actual after that has changed, and
// corrects the kernel's count, which takes our rejected runs for those of others.
func (d *Dataplane) recount() {
	if now, known := d.kernel.entries(); known && d.kernel.legacy() {
		d.unmanaged = now - d.tally.entries()
	}
	if now := momentOf(d.kernel); now.known {
		d.sound = now
	}
}

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
		Limit: limit, RetryLimit: maxRetryRuns, Capacity: d.limits.of(d.kernel).rules, LargeSize: d.limits.rules, Size: size,
		Rejection: isRejection,
		Suspects: func(batch []dataplane.ServiceName, err error) (those, rest []dataplane.ServiceName) {
			return suspects(batch, err, plans)
		},
		Previous: maps.Clone(d.engine.Rejected), Rejected: map[dataplane.ServiceName]rejection{}, Changed: map[dataplane.ServiceName]struct{}{},
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
	named := map[dataplane.ServiceName]bool{}
	for _, line := range e.faults {
		if line >= 1 && line <= len(lines) {
			if name, ok := lineOwner(lines[line-1], owners); ok {
				named[name] = true
			}
		}
	}
	return split(batch, func(name dataplane.ServiceName) bool { return named[name] })
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

// noteActual notes what the kernel has of rejected Services, so that each can
// be tried alone from now on: their rules, and the chains that these lead to.
func (p *fullPass) noteActual(ctx context.Context) error {
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
		why.Actual = &planned{chains: p.state.ledTo(rules[name]), dispatch: rules[name]}
		p.scope.rejected[name] = why
	}
	return nil
}

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
