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
)

// retired is what is remembered of a mode that was retired: as long as nobody
// else writes rules, nothing of it is left.
type retired struct {
	done   bool
	others uint32
	known  bool // others is
}

// holds reports whether nothing is left. Where the kernel does not report who has
// written, that is believed until look asks for more.
func (r *retired) holds(k kernel, look bool) bool {
	if !r.done || look && !r.known {
		return false
	}
	if !r.known {
		return true
	}
	others, known := k.others()
	return known && others == r.others
}

// Retire implements dataplane.Retirer, after mode IPVS has been applied: at the
// moment in which the rules of Services go from nat KUBE-SERVICES, IPVS takes over.
// Connections that are translated already go on: the kernel remembers them.
// KUBE-FIREWALL stays, for the kubelet.
func (d *Dataplane) Retire(ctx context.Context, r *dataplane.Ruleset) (string, error) {
	if err := d.kernel.find(ctx); err != nil {
		return "", err
	}
	if d.retired.holds(d.kernel, r.Full) {
		return "", nil
	}
	// The shared chains are the other mode's.
	d.held, d.seen, d.spare, d.audited = nil, nil, nil, nil
	d.entries.Store(nil)
	d.retired = retired{}
	err := d.kernel.unwatched(func() (err error) {
		d.retired, err = retire(ctx, d.kernel, modeIPTables)
		return err
	})
	return "", err
}

// Retire removes what mode IPTables does not have, after that mode has been
// applied in full and the node has no Service's address any more: what is in force
// until then keeps the node's own servers from being reached by those. It costs
// little where there is nothing to remove.
func (k *Keeper) Retire(ctx context.Context) error {
	if err := k.kernel.find(ctx); err != nil {
		return err
	}
	if k.retired.holds(k.kernel, true) {
		return nil
	}
	k.forget()
	var err error
	k.retired, err = retire(ctx, k.kernel, modeIPVS)
	return err
}

// retire removes what only one mode has.
func retire(ctx context.Context, k kernel, mode owner) (retired, error) {
	others, known := k.others() // before reading: what comes later is noticed next time
	state, err := k.read(ctx)
	if err != nil {
		return retired{}, err
	}
	p := planRetirement(state, mode)
	for _, input := range p.inputs(perCall(k, batchChains)) {
		if err := k.apply(ctx, input); err != nil {
			return retired{}, fmt.Errorf("remove the rules of the mode that was left: %w", err)
		}
	}
	for _, in := range []table{filter, nat} {
		// Others' jumps to them may keep some: they are empty.
		for names := range slices.Chunk(p.chains[in], perCall(k, batchChains)) {
			if _, err := deleteChains(ctx, k, in, names); err != nil {
				return retired{}, fmt.Errorf("delete the chains of the mode that was left: %w", err)
			}
		}
	}
	return retired{done: true, others: others, known: known}, nil
}

// retirement is what one mode leaves behind, by table.
type retirement struct {
	rules  [2][]string // lines that take rules from chains that stay
	chains [2][]string // names of chains
	full   [2][]string // those that hold rules
}

// planRetirement plans what goes with a mode: first what leads to its chains.
func planRetirement(k *kernelState, mode owner) retirement {
	var p retirement
	for _, id := range slices.SortedFunc(maps.Keys(k.chains), compareChainIDs) {
		have := k.chains[id]
		if mode.ownsAlone(id) {
			p.chains[id.table] = append(p.chains[id.table], id.name)
			if have.count > 0 {
				p.full[id.table] = append(p.full[id.table], id.name)
			}
			continue
		}
		p.rules[id.table] = append(p.rules[id.table], mode.without(id, have)...)
	}
	return p
}

func compareChainIDs(a, b chainID) int {
	return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.name, b.name))
}

// without returns the lines that take the rules of a mode from a chain that
// stays.
func (o owner) without(id chainID, have *kernelChain) []string {
	var gone, stay []string
	for _, r := range have.rules {
		if o.leaves(id, r) {
			gone = append(gone, "-D "+id.name+" "+r.spec)
		} else {
			stay = append(stay, "-A "+id.name+" "+r.spec)
		}
	}
	if len(gone) > len(stay) && isShared(id) {
		return append([]string{":" + id.name + " - [0:0]"}, stay...)
	}
	return gone
}

// leaves reports whether a rule of a chain that stays goes with a mode.
func (o owner) leaves(id chainID, r kernelRule) bool {
	target, jumps := jumpTarget(r.spec)
	switch {
	case jumps && o.ownsAlone(chainID{id.table, target}):
		return true
	case isHooked(id):
		return o.isFirewallJump(r.spec)
	case o == modeIPTables:
		return id == chainID{nat, chainServices} && r.hash == ruleHash(untilRetired)
	default:
		return isShared(id) && isIPVSRule(r)
	}
}

// inputs are those of iptables-restore, with at most limit lines each but for the
// first ones: nat before filter, so that one mode takes over from the other at once.
// Only what refuses external addresses goes before nat: IPVS refuses for itself, and
// serves pods where those rules drop what nat does not translate for them any more.
func (p *retirement) inputs(limit int) []string {
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

// split parts lines into those for which first is true and the rest.
func split(lines []string, first func(string) bool) (those, rest []string) {
	for _, l := range lines {
		if first(l) {
			those = append(those, l)
		} else {
			rest = append(rest, l)
		}
	}
	return those, rest
}

// sectionOf is the part of an input of iptables-restore that changes a table.
func sectionOf(in table, lines []string) string {
	return "*" + in.String() + "\n" + strings.Join(lines, "\n") + "\nCOMMIT\n"
}

// lines puts each name between two texts.
func lines(before string, names []string, after string) []string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = before + name + after
	}
	return out
}

// deleteChains empties and deletes chains but for those to which another program's rules
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

// Cleanup removes our jumps and chains in both variants of iptables. What mode
// IPTables uses as well stays where that mode has rules.
func (k *Keeper) Cleanup(ctx context.Context) error {
	k.forget()
	kernels, err := k.kernel.all(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, one := range kernels {
		errs = append(errs, cleanKept(ctx, one))
	}
	return errors.Join(errs...)
}

func cleanKept(ctx context.Context, k kernel) error {
	if err := k.find(ctx); err != nil {
		return err
	}
	state, err := k.read(ctx)
	if err != nil {
		return err
	}
	for id := range state.chains {
		if modeIPTables.ownsAlone(id) {
			_, err := retire(ctx, k, modeIPVS)
			return err
		}
	}
	return cleanState(ctx, k, state, modeIPVS)
}
