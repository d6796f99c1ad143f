package iptables

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Limits of one call of iptables-restore in the nf_tables variant, where the
// time of a call grows with the square of what it carries. One Service may need more: see
// calls.
const (
	batchRules  = 3000
	batchChains = 2000
	// largeRules is the same where one call can be made to take less: see
	// listAll. It bounds the memory of iptables-restore to about 100 MB.
	largeRules = 60000
)

// Apply makes the kernel hold r: by the changed Services alone where what the
// kernel holds is known, else by reading and comparing all of it.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	d.written, d.failed = [2]int{}, false
	d.entries.Store(nil) // until it is known again
	d.audited = nil      // it plans every Service a second time
	d.retired = retired{}
	result, err := d.apply(ctx, r)
	if err == nil {
		d.settle()
	}
	return result, err
}

// settle notes that what the kernel holds is known.
func (d *Dataplane) settle() {
	if d.kernel.legacy() {
		d.entries.Store(d.expected())
	}
	select {
	case <-d.applied:
	default:
		close(d.applied)
	}
}

func (d *Dataplane) apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	if err := d.kernel.find(ctx); err != nil {
		return dataplane.Result{}, err
	}
	partial, full := 0, r.Full || d.held == nil
	if !full && r.Recheck {
		done, err := d.applyAddresses(ctx, r)
		if err != nil && !isRefusal(err) {
			d.held = nil
			return dataplane.Result{}, err
		}
		full = !done
	}
	if !full {
		changed, known, err := d.applyChanged(ctx, r)
		switch {
		case err == nil && known:
			return d.result(r, v1alpha1.SyncPartial, changed), nil
		case err == nil:
			partial = changed // the others need not wait for what is not known
		case !errors.Is(err, errDoubt):
			d.held = nil
			return dataplane.Result{}, err
		}
		// The kernel may not hold what we think it does: look, then find out
		// which Service it is that is refused.
	}
	var result dataplane.Result
	err := d.kernel.unwatched(func() (err error) {
		result, err = d.applyAll(ctx, r, full)
		return err
	})
	result.ServicesChanged += partial
	return result, err
}

// applyAll reads the kernel, compares all of it and writes the difference. Asked
// is false where what somebody else has changed may be why.
func (d *Dataplane) applyAll(ctx context.Context, r *dataplane.Ruleset, asked bool) (dataplane.Result, error) {
	d.seen = nil
	others, known := d.kernel.others() // before reading
	state, err := d.readAgain(ctx)
	if err != nil {
		return dataplane.Result{}, d.applyUnread(ctx, r, err)
	}
	d.sound = nil
	if known {
		d.sound = &others
	}
	var found dataplane.Difference
	if !asked {
		found = d.undone(r, state)
	}
	d.held = nil
	changed, err := d.applyFull(ctx, r, state)
	if err != nil {
		return dataplane.Result{}, err
	}
	result := d.result(r, v1alpha1.SyncFull, changed)
	result.Repaired = found
	return result, nil
}

// readAgain reads the kernel, unless it still holds what the last verification
// has read.
func (d *Dataplane) readAgain(ctx context.Context) (*kernelState, error) {
	spare := d.spare
	d.spare = nil
	if spare != nil {
		if others, known := d.kernel.others(); known && others == spare.others {
			return spare.state, nil
		}
	}
	return d.kernel.read(ctx)
}

// undone says what somebody else has changed of what is held. The dirty Services
// do not count: they may have been written in part.
func (d *Dataplane) undone(r *dataplane.Ruleset, state *kernelState) dataplane.Difference {
	unknown := maps.Clone(d.refused)
	for name := range r.Dirty {
		unknown[name] = refusal{}
	}
	return difference(d.held, state, &scope{refused: unknown, kept: d.kept})
}

// applyUnread writes what has changed although the kernel cannot be read, and
// returns why that is: what the kernel held is known, and Services must not wait
// until somebody has mended the node.
func (d *Dataplane) applyUnread(ctx context.Context, r *dataplane.Ruleset, why error) error {
	if d.held == nil {
		return why
	}
	if _, _, err := d.applyChanged(ctx, r); err != nil {
		d.held = nil
		return errors.Join(why, err)
	}
	return why
}

func (d *Dataplane) result(r *dataplane.Ruleset, kind v1alpha1.SyncKind, changed int) dataplane.Result {
	refused := make(map[dataplane.ServiceName]string, len(d.refused))
	suspected := map[dataplane.ServiceName]struct{}{}
	for name, why := range d.refused {
		refused[name] = why.reason
		if !why.proven {
			suspected[name] = struct{}{}
		}
	}
	warnings := slices.Clone(d.warnings)
	if w := d.addressWarning(r); w != "" && len(warnings) < dataplane.MaxExamples {
		warnings = append(warnings, w)
	}
	result := dataplane.Result{
		Kind: kind, ServicesChanged: changed, Refused: refused, Suspected: suspected, Warnings: warnings,
	}
	d.count(&result)
	return result
}

// hold records what the kernel holds of a Service; nil for nothing.
func (d *Dataplane) hold(name dataplane.ServiceName, p *planned) {
	d.filterRules += p.inFilter() - d.held.services[name].inFilter()
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

// fill completes a transaction that is a sweep by what the chain has now. Where the programs
// cannot list it, they may well write it: then rules are replaced one by one.
func (t *transaction) fill(ctx context.Context, k kernel) error {
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

// perCall is how much one call of iptables-restore may carry, given the limit
// of the nf_tables variant.
func perCall(k kernel, limit int) int {
	if k.legacy() {
		return 1 << 30 // each call rewrites the table: as few as can be
	}
	return limit
}

// lines is how many lines of iptables-restore make a Service.
func (p *planned) lines() int {
	chains, rules := p.counts()
	return chains + rules
}
