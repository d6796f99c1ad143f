package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// removed remembers that nothing of a mode was left.
type removed struct {
	done  bool
	since moment
}

// lasts reports whether nothing is left. If the kernel does not report who has
// written, that is assumed unless check asks for certainty.
func (r *removed) lasts(k kernel, check bool) bool {
	if !r.since.known {
		return r.done && !check
	}
	return r.since.sameAs(momentOf(k))
}

// CleanupMode implements dataplane.ModeCleaner, after another mode has been applied. That mode takes over
// at the moment in which the rules of Services are removed from nat KUBE-SERVICES.
// Connections that are translated already go on: the kernel remembers them.
// KUBE-FIREWALL stays, for the kubelet.
func (d *Dataplane) CleanupMode(ctx context.Context, r *dataplane.Ruleset) (string, error) {
	if err := d.kernel.find(ctx); err != nil {
		return "", err
	}
	if d.removed.lasts(d.kernel, r.Full) {
		return "", nil
	}
	// The shared chains are the other mode's.
	d.actual, d.seen, d.spare, d.audited = nil, moment{}, nil, nil
	d.entries.Store(nil)
	d.removed = removed{}
	err := d.kernel.unwatched(func() (err error) {
		d.removed, err = removeMode(ctx, d.kernel, d.modes, r.Mode)
		return err
	})
	return "", err
}

// Relinquish implements dataplane.Dataplane: another proxy takes over what the mode has.
func (*Dataplane) Relinquish(context.Context, bool) (string, error) { return "", nil }

// CleanupMode removes what only this mode has, after the running one has been applied in full. The
// caller first removes what makes packets need these rules. It costs little if there is nothing to
// remove.
func (f *FixedRules) CleanupMode(ctx context.Context, running v1alpha1.ProxyMode) error {
	if err := f.kernel.find(ctx); err != nil {
		return err
	}
	if f.removed.lasts(f.kernel, true) {
		return nil
	}
	f.forget()
	var err error
	f.removed, err = removeMode(ctx, f.kernel, f.modes, running)
	return err
}

// removeMode removes what only a mode has. If the running mode has nothing in iptables, the last
// mode to be removed takes with it what several share.
func removeMode(ctx context.Context, k kernel, o *ownership, running v1alpha1.ProxyMode) (removed, error) {
	since := momentOf(k) // before reading: what comes later is noticed next time
	state, err := k.read(ctx)
	if err != nil {
		return removed{}, err
	}
	if o.without[running] && !slices.ContainsFunc(slices.Collect(maps.Keys(state.chains)), o.othersAlone) {
		return removed{done: true, since: since}, removeAll(ctx, k, state, o)
	}
	p := planRemoval(state, o)
	for _, input := range p.inputs(usualLimits().of(k).chains) {
		if err := k.apply(ctx, input); err != nil {
			return removed{}, fmt.Errorf("remove the rules of mode %s: %w", o.mode, err)
		}
	}
	for _, in := range []table{filter, nat} {
		for names := range slices.Chunk(p.chains[in], usualLimits().of(k).chains) {
			// Chains to which rules of other programs jump stay. They are empty.
			if _, err := deleteChains(ctx, k, in, names); err != nil {
				return removed{}, fmt.Errorf("delete the chains of mode %s: %w", o.mode, err)
			}
		}
	}
	return removed{done: true, since: since}, nil
}

// removal is what is removed with a mode, by table.
type removal struct {
	rules  map[table][]string // lines that remove rules from chains that stay
	chains map[table][]string // names of chains
	full   map[table][]string // those that have rules
}

func planRemoval(k *kernelState, o *ownership) removal {
	p := removal{rules: map[table][]string{}, chains: map[table][]string{}, full: map[table][]string{}}
	sorted := slices.SortedFunc(maps.Keys(k.chains), func(a, b chainID) int { return cmp.Compare(a.name, b.name) })
	for _, id := range sorted {
		have, in := k.chains[id], id.table
		if !o.ownsAlone(id) {
			p.rules[in] = append(p.rules[in], o.linesWithout(id, have)...)
			continue
		}
		p.chains[in] = append(p.chains[in], id.name)
		if have.count > 0 {
			p.full[in] = append(p.full[in], id.name)
		}
	}
	return p
}

// linesWithout are the lines that remove the rules of a mode from a chain that stays.
func (o *ownership) linesWithout(id chainID, have *kernelChain) []string {
	var gone, stay []string
	for _, r := range have.rules {
		if o.ours(id, r) {
			gone = append(gone, "-D "+id.name+" "+r.spec)
		} else {
			stay = append(stay, "-A "+id.name+" "+r.spec)
		}
	}
	if len(gone) > len(stay) && o.shares(id) {
		return append([]string{emptied(id.name)}, stay...)
	}
	return gone
}

// inputs are those of iptables-restore, with at most limit lines each except for the
// first ones: nat before filter, so that one mode takes over from the other at once.
// Only what rejects external addresses goes before nat: the next mode rejects for itself, and
// serves pods where those rules drop what nat does not translate for them any more.
func (p *removal) inputs(limit int) []string {
	var out []string
	section := func(in table, lines []string) {
		if len(lines) > 0 {
			out = append(out, sectionOf(in, lines))
		}
	}
	first, rest := split(p.rules[filter], func(line string) bool { return strings.HasSuffix(line, " -j "+chainExternalServices) })
	section(filter, first)
	section(nat, p.rules[nat])
	section(filter, rest)
	for _, in := range []table{nat, filter} {
		for names := range slices.Chunk(p.full[in], limit) {
			section(in, lines(":", names, " - [0:0]"))
		}
	}
	return out
}

// split parts a list into those for which first is true and the rest.
func split[T any](list []T, first func(T) bool) (those, rest []T) {
	for _, x := range list {
		if first(x) {
			those = append(those, x)
		} else {
			rest = append(rest, x)
		}
	}
	return those, rest
}

func sectionOf(in table, lines []string) string {
	return "*" + in + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}

func lines(before string, names []string, after string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = before + name + after
	}
	return out
}

// deleteChains empties and deletes chains except for those to which rules of another program
// jump, which it returns.
func deleteChains(ctx context.Context, k kernel, in table, names []string) (stuck []string, err error) {
	err = k.apply(ctx, sectionOf(in, append(lines(":", names, " - [0:0]"), lines("-X ", names, "")...)))
	switch {
	case !isRejection(err):
		return nil, err
	case len(names) == 1:
		return names, nil
	}
	half := len(names) / 2
	first, err := deleteChains(ctx, k, in, names[:half])
	if err != nil {
		return nil, err
	}
	second, err := deleteChains(ctx, k, in, names[half:])
	return append(first, second...), err
}

// Cleanup removes the jumps from built-in chains, then the chains they led to
// and those of Services, in both variants of iptables. KUBE-FIREWALL stays: the
// kubelet shares it.
func (d *Dataplane) Cleanup(ctx context.Context, _ dataplane.CleanupOptions) error {
	// Not only if Supported: where IPv6 is switched off, rules from before may be left.
	d.actual = nil
	return cleanVariants(ctx, d.kernel, d.modes, false)
}

// Cleanup removes our jumps and chains in both variants of iptables. Chains that other modes share
// stay while those have chains of their own.
func (f *FixedRules) Cleanup(ctx context.Context) error {
	f.forget()
	return cleanVariants(ctx, f.kernel, f.modes, true)
}

func cleanVariants(ctx context.Context, k kernel, o *ownership, leaveShared bool) error {
	kernels, err := k.all(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, one := range kernels {
		errs = append(errs, clean(ctx, one, o, leaveShared))
	}
	return errors.Join(errs...)
}

func clean(ctx context.Context, k kernel, o *ownership, leaveShared bool) error {
	if err := k.find(ctx); err != nil {
		return err
	}
	state, err := k.read(ctx)
	if err != nil {
		return err
	}
	if leaveShared && slices.ContainsFunc(slices.Collect(maps.Keys(state.chains)), o.othersAlone) {
		_, err := removeMode(ctx, k, o, o.mode)
		return err
	}
	return removeAll(ctx, k, state, o)
}

// removeAll removes all that is a mode's, alone or not.
func removeAll(ctx context.Context, k kernel, state *kernelState, o *ownership) error {
	for _, input := range cleanup(state, o, usualLimits().of(k).chains) {
		if err := k.apply(ctx, input); err != nil {
			return fmt.Errorf("remove our jumps and chains: %w", err)
		}
	}
	return nil
}

// cleanup returns the inputs of iptables-restore that remove what is a mode's, with
// at most limit lines for a table each: first the jumps of others, so that all
// loses its effect at once, then the rules, by which chains lead to each other, last
// the chains.
func cleanup(k *kernelState, o *ownership, limit int) []string {
	var steps [3]map[table][]string
	for i := range steps {
		steps[i] = map[table][]string{}
	}
	for id, c := range k.chains {
		if o.own.has(id) {
			steps[1][id.table] = append(steps[1][id.table], emptied(id.name))
			steps[2][id.table] = append(steps[2][id.table], "-X "+id.name)
			continue
		}
		for _, r := range c.rules {
			if target, ok := jumpTarget(r.spec); ok && o.own.has(chainID{id.table, target}) {
				steps[0][id.table] = append(steps[0][id.table], "-D "+id.name+" "+r.spec)
			}
		}
	}
	var inputs []string
	for _, step := range steps {
		for _, in := range []table{filter, nat} {
			slices.Sort(step[in])
			for lines := range slices.Chunk(step[in], limit) {
				inputs = append(inputs, sectionOf(in, lines))
			}
		}
	}
	return inputs
}
