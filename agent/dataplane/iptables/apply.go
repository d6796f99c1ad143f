package iptables

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
)

// callLimits are those of one call of iptables-restore in the nf_tables variant, where the
// time of a call grows with the square of what it carries. One Service may need more: see
// calls.
type callLimits struct {
	rules, chains int
	// large is the same as rules where one call can be made to take less: see
	// listAll. It bounds the memory of iptables-restore to about 100 MB.
	large int
	// part is the same of a Service that may pause between two calls: others' changes
	// wait for a call, and while the kernel commits one of rules, no connection is set up.
	part int
	// late is of how many endpoints a Service has laterTexts.
	late int
}

func usualLimits() callLimits {
	return callLimits{rules: 3000, chains: 2000, large: 60_000, part: 750, late: 1000}
}

// of are the limits for a kernel.
func (l callLimits) of(k kernel) callLimits {
	if k.legacy() {
		const all = 1 << 30 // each call rewrites the table: as few as can be
		return callLimits{rules: all, chains: all, large: all, part: all, late: l.late}
	}
	return l
}

// Apply implements dataplane.Dataplane.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	d.written, d.failed = map[table]int{}, false
	d.entries.Store(nil) // until it is known again
	d.audited = nil      // it plans every Service a second time
	d.removed = removed{}
	result, err := d.engine.Apply(ctx, r)
	if err != nil {
		return dataplane.Result{}, err
	}
	if d.kernel.legacy() {
		d.entries.Store(d.expected())
	}
	d.engine.Begin()
	return result, nil
}

// operations implement engine.Operations.
type operations struct{ *Dataplane }

var _ engine.Operations = operations{}

// Open implements engine.Operations.
func (o operations) Open(ctx context.Context) error { return o.kernel.find(ctx) }

// Known implements engine.Operations.
func (o operations) Known() bool { return o.actual != nil }

// Recheck implements engine.Operations.
func (o operations) Recheck(ctx context.Context, r *dataplane.Ruleset) (engine.Effect, error) {
	done, err := o.applyAddresses(ctx, r)
	switch {
	case err != nil && !isRejection(err):
		o.actual = nil
		return engine.TakesFull, err
	case done:
		return engine.NoEffect, nil
	}
	return engine.TakesFull, nil
}

// Change may doubt what the kernel has: then a full pass reads it and finds the rejected Service.
func (o operations) Change(ctx context.Context, r *dataplane.Ruleset, names []dataplane.ServiceName, _ bool) (int, error) {
	changed, err := o.applyChanged(ctx, r, names)
	if err != nil && !errors.Is(err, engine.ErrFull) {
		o.actual = nil
	}
	return changed, err
}

// Full implements engine.Operations.
func (o operations) Full(ctx context.Context, r *dataplane.Ruleset, asked bool) (pass engine.FullPass, err error) {
	err = o.kernel.unwatched(func() (err error) {
		pass, err = o.applyAll(ctx, r, asked)
		return err
	})
	return pass, err
}

// Large is false for all: large Services come last in each pass anyway.
func (operations) Large(dataplane.ServiceName, *dataplane.Service) bool { return false }

// Conflicts implements engine.Operations.
func (operations) Conflicts() iter.Seq2[dataplane.ServiceName, engine.Conflict] {
	return func(func(dataplane.ServiceName, engine.Conflict) bool) {}
}

// Report implements engine.Operations.
func (o operations) Report(r *dataplane.Ruleset, result *dataplane.Result) {
	result.Warnings = slices.Clone(o.warnings)
	if c := o.actual.config; c.nodePorts.Ranges != nil && len(c.nodePortIPs) == 0 {
		if w := engine.NodePortWarning(o.family, c.nodePorts, r.Services); w != "" {
			result.Warnings = append(result.Warnings, w)
		}
	}
	o.count(result)
}

// applyAll reads the kernel, compares all of it and writes the difference. Asked
// is false if changes by another program may be the reason.
func (d *Dataplane) applyAll(ctx context.Context, r *dataplane.Ruleset, asked bool) (engine.FullPass, error) {
	d.seen = moment{}
	now := momentOf(d.kernel) // before reading
	state, err := d.readAgain(ctx)
	if err != nil {
		return engine.FullPass{}, d.applyUnread(ctx, r, err)
	}
	d.sound = now
	var out engine.FullPass
	if !asked {
		out.Repaired = d.modifiedExternally(r, state)
	}
	d.actual = nil
	out.Changed, err = d.applyFull(ctx, r, state)
	return out, err
}

// readAgain reads the kernel unless it is as the last verification has read it.
func (d *Dataplane) readAgain(ctx context.Context) (*kernelState, error) {
	spare := d.spare
	d.spare = nil
	if spare != nil && spare.since.sameAs(momentOf(d.kernel)) {
		return spare, nil
	}
	return d.kernel.read(ctx)
}

// modifiedExternally reports what another program has changed of our rules. The dirty Services
// do not count: they may have been written in part.
func (d *Dataplane) modifiedExternally(r *dataplane.Ruleset, state *kernelState) dataplane.Difference {
	unknown := maps.Clone(d.engine.Rejected)
	for name := range r.Dirty {
		unknown[name] = rejection{}
	}
	return difference(d.actual, state, &scope{modes: d.modes, rejected: unknown, preserved: d.engine.Preserved})
}

// applyUnread writes what has changed although the kernel cannot be read, and
// returns why it cannot: what the kernel had is known, and Services must not wait
// until an administrator has repaired the node.
func (d *Dataplane) applyUnread(ctx context.Context, r *dataplane.Ruleset, why error) error {
	if d.actual == nil {
		return why
	}
	if _, _, err := d.engine.Change(ctx, r, false); err != nil {
		d.actual = nil
		return errors.Join(why, err)
	}
	return why
}

// setActual notes what the kernel has of a Service; nil for nothing.
func (d *Dataplane) setActual(name dataplane.ServiceName, p *planned) {
	d.tally = d.tally.minus(d.actual.services[name].tally()).plus(p.tally())
	if p == nil {
		delete(d.actual.services, name)
		return
	}
	d.actual.services[name] = p
}

// fill completes a transaction by texts that are planned late and, if it is a sweep, by what the chain
// has now. If the programs cannot list it, they may still be able to write it: then rules are replaced
// one by one.
func (t *transaction) fill(ctx context.Context, k kernel) error {
	for _, c := range t.later {
		t.chainText(c, c.later.of(c))
	}
	t.later = nil
	if t.sweep == nil {
		return nil
	}
	rules, err := k.list(ctx, t.sweep.in)
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case err != nil:
		for _, r := range t.effect.added {
			t.insertRule(r.in, r.spec)
		}
		for _, r := range t.effect.removed {
			t.removeRule(r.in, r.spec)
		}
		return nil
	}
	t.declareShared(t.sweep.in)
	t.appendRules(t.sweep.in, t.sweep.add)
	t.appendRules(t.sweep.in, t.sweep.rest(rules))
	return nil
}

func (p *planned) lines() int {
	t := p.tally()
	return t.chains + t.rules
}

type tally struct {
	chains, rules int
	filter        int // those of rules in the table filter
}

// entries are how many entries of the legacy variant's tables these are.
func (t tally) entries() int { return t.rules + 2*t.chains }

func (t tally) counts() dataplane.Counts {
	return dataplane.Counts{dataplane.Chains: t.chains, dataplane.Rules: t.rules}
}

func (t tally) plus(o tally) tally {
	return tally{chains: t.chains + o.chains, rules: t.rules + o.rules, filter: t.filter + o.filter}
}

func (t tally) minus(o tally) tally {
	return tally{chains: t.chains - o.chains, rules: t.rules - o.rules, filter: t.filter - o.filter}
}

func (t *tally) add(in table, rules int) {
	t.rules += rules
	if in == filter {
		t.filter += rules
	}
}

func (w *desired) tally() tally {
	var t tally
	for _, s := range w.config.sharedChains() {
		t.chains++
		t.add(s.id.table, len(s.fixed))
	}
	for _, j := range w.config.jumps() {
		t.add(j.Table, 1)
	}
	for _, p := range w.services {
		t = t.plus(p.tally())
	}
	return t
}

func (p *planned) tally() tally {
	var t tally
	if p == nil {
		return t
	}
	t.chains = len(p.chains)
	for i := range p.dispatch {
		t.add(p.dispatch[i].in.table, 1)
	}
	for _, c := range p.chains {
		t.rules += c.rules
	}
	return t
}

// write gives a transaction to the kernel and counts the rules that it takes.
func (d *Dataplane) write(ctx context.Context, t *transaction) error {
	input := t.String()
	if err := d.kernel.apply(ctx, input); err != nil {
		d.failed = true
		return err
	}
	in := filter
	for line := range strings.Lines(input) {
		switch {
		case line[0] == '*':
			in = strings.TrimSpace(line[1:])
		case strings.HasPrefix(line, "-A "), strings.HasPrefix(line, "-I "):
			d.written[in]++
		}
	}
	return nil
}

// count adds to a result how many rules there are and were written.
func (d *Dataplane) count(result *dataplane.Result) {
	result.Counts, result.Failed = d.tally.counts(), d.failed
	result.Tables = map[string]dataplane.TableCount{
		filter: {Rules: d.tally.filter, Written: d.written[filter]},
		nat:    {Rules: d.tally.rules - d.tally.filter, Written: d.written[nat]},
	}
}

// entries are how many the tables nat and filter of the legacy variant should
// have together; see kernelState.entries.
type entries struct {
	total int
	ours  int
}

// expected are the entries by what is ours and by how many others have.
func (d *Dataplane) expected() *entries {
	ours := d.tally.entries()
	return &entries{total: ours + d.unmanaged, ours: ours}
}

// expectEntries expects the tables to stay as they were read, without any difference.
func (d *Dataplane) expectEntries(state *kernelState) {
	if d.actual == nil || !d.kernel.legacy() {
		return
	}
	d.unmanaged = state.entries() - d.tally.entries()
	d.entries.Store(d.expected())
}

// countUnmanaged counts the entries of others after a full pass: in what it has
// read, so that what others change while it writes is noticed.
func (d *Dataplane) countUnmanaged(p *fullPass) {
	if !d.kernel.legacy() {
		return
	}
	d.unmanaged = p.state.entries() - p.state.ours(p.want).entries()
	if len(d.engine.Rejected)+len(d.stuck)+len(p.scope.preserved) == 0 {
		return
	}
	// The kernel has more of ours than is counted.
	if now, known := d.kernel.entries(); known {
		d.unmanaged = now - d.tally.entries()
	}
}
