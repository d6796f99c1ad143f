package iptables

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
)

func ownChain(c *fixedrules.Chain) chainID { return chainID{c.Table, c.Name} }

// builtIn is the chain that a jump is in.
func builtIn(j *fixedrules.Jump) chainID { return chainID{j.Table, j.Chain} }

type fixedDiff struct {
	chains []chainDiff
	jumps  []fixedrules.Jump // missing ones
}

type chainDiff struct {
	chain *fixedrules.Chain
	have  *kernelChain // nil: missing
	// beside are the rules of other modes in the chain, which stay until these modes are removed.
	// They come after first and before rest, the two parts of the chain's own rules.
	beside, first, rest []string
}

func compareFixed(want *fixedrules.Rules, k *kernelState, o *ownership) fixedDiff {
	d := fixedDiff{jumps: missingJumps(want.Jumps, k)}
	for i := range want.Chains {
		c := &want.Chains[i]
		diff := chainDiff{chain: c, have: k.chains[ownChain(c)]}
		diff.beside = besideFixed(ownChain(c), diff.have, o)
		diff.first, diff.rest = split(c.Rules, func(rule string) bool { return o.own.precedes(ownChain(c), ruleHash(rule)) })
		if !diff.asDesired() {
			d.chains = append(d.chains, diff)
		}
	}
	return d
}

// besideFixed returns the rules of other modes in a shared chain.
func besideFixed(id chainID, have *kernelChain, o *ownership) []string {
	if have == nil || !o.shares(id) {
		return nil
	}
	var out []string
	for _, r := range have.rules {
		if o.others.leads(id, r.spec, &o.own) {
			out = append(out, r.spec)
		}
	}
	return out
}

// rules are those of the chain with those of other modes: these serve until their mode is removed,
// and then ours take over at once.
func (c *chainDiff) rules() []string {
	if len(c.beside) == 0 {
		return c.chain.Rules
	}
	return slices.Concat(c.first, c.beside, []string{untilRemoved}, c.rest)
}

// untilRemoved follows the rules of another mode and is removed with them. Packets that they do not
// translate must not reach ours after it: marked by those, they would pass although they are
// rejected.
const untilRemoved = `-m comment --comment "kubernetes services of the next mode; NOTE: not before the rules above are gone" -j RETURN`

// asDesired accepts both orders of the chain's own rules where there are no others.
func (c *chainDiff) asDesired() bool {
	return c.have != nil && (c.have.equals(c.rules()) || len(c.beside) == 0 && c.have.equals(slices.Concat(c.first, c.rest)))
}

// input is the input of iptables-restore that removes the difference. Each
// table changes at once. Filter comes first: its rules of every mode let pass
// what is translated, and some drop what is not.
func (d *fixedDiff) input() string {
	declare, rules := map[table][]string{}, map[table][]string{}
	for _, c := range d.chains {
		in, name, add := c.chain.Table, c.chain.Name, c.rules()
		if len(c.beside) > 0 && len(c.beside) == c.have.count { // thousands, which are not rewritten
			for _, spec := range slices.Backward(c.first) {
				rules[in] = append(rules[in], "-I "+name+" "+spec)
			}
			add = append([]string{untilRemoved}, c.rest...)
		} else {
			declare[in] = append(declare[in], emptied(name))
		}
		rules[in] = append(rules[in], lines("-A "+name+" ", add, "")...)
	}
	for _, j := range slices.Backward(d.jumps) { // each becomes the first
		rules[j.Table] = append(rules[j.Table], "-I "+j.Chain+" "+j.Rule)
	}
	var out strings.Builder
	for _, in := range []table{filter, nat} { // all are declared first: chains may lead to each other
		if all := slices.Concat(declare[in], rules[in]); len(all) > 0 {
			out.WriteString(sectionOf(in, all))
		}
	}
	return out.String()
}

func (d *fixedDiff) findings() []dataplane.Finding {
	var out []dataplane.Finding
	add := func(f found) {
		out = append(out, dataplane.Finding{Key: "iptables " + f.key(), Text: f.String()})
	}
	for _, c := range d.chains {
		f := found{kind: chainMissing, in: ownChain(c.chain), want: hashOf(c.chain.Rules)}
		if c.have != nil {
			f.kind, f.have = fixedDiffer, c.have.hash
		}
		add(f)
	}
	for _, j := range d.jumps {
		add(found{kind: jumpMissing, in: builtIn(&j), spec: j.Rule})
	}
	return out
}

// FixedRules programs a fixed set of chains and jumps in one IP family, with the variant of
// iptables that the node uses. Modes that need some rules of iptables use it. Beside the rules of
// other modes, which may have served the node before, its own have no effect until those are
// removed. Except for Watch, its methods must not be called concurrently.
type FixedRules struct {
	family  dataplane.Family
	kernel  kernel
	modes   *ownership
	matches []string // of iptables that the rules need
	sysctl  string

	// begin closes begun after the first successful Apply or Compare.
	begin func()
	begun chan struct{}
	// entries are how many the kernel's tables should have, nil while that is
	// unknown. Legacy variant only.
	entries atomic.Pointer[entries]

	supported bool
	// actual is what the kernel has, if since lasts.
	actual *fixedrules.Rules
	since  moment
	// unread counts the comparisons since the rules were read.
	unread  int
	removed removed
}

// NewFixedRules makes the FixedRules of a mode for one IP family. It runs nothing yet.
func NewFixedRules(mode dataplane.Declaration, family dataplane.Family, o Options) *FixedRules {
	o.complete()
	modes, begun := newOwnership(mode, o.Modes), make(chan struct{})
	return &FixedRules{
		family: family, kernel: newKernel(family, modes, &o), modes: modes, matches: mode.Matches, sysctl: o.SysctlDirectory,
		begun: begun, begin: sync.OnceFunc(func() { close(begun) }),
	}
}

// Supported reports whether the node has the family at all, and programs and a
// kernel that know what the rules need.
func (f *FixedRules) Supported(ctx context.Context) error {
	if err := dataplane.HasFamily(f.family, procDirectory, f.sysctl); err != nil {
		return err
	}
	if err := f.kernel.find(ctx); err != nil || f.supported {
		return err
	}
	if err := f.kernel.probe(); err != nil {
		return err
	}
	missing, err := f.kernel.lacks(ctx, f.matches)
	switch {
	case err != nil:
		return fmt.Errorf("ask iptables which matches it knows: %w", err)
	case len(missing) > 0:
		return fmt.Errorf("%w: %s lacks the match %s; load the kernel module xt_%s (modprobe -a xt_%s), and install the complete iptables package on the node",
			dataplane.ErrUnsupported, commandOf(f.family), strings.Join(missing, ", "), strings.Join(missing, ", xt_"), strings.Join(missing, " xt_"))
	}
	f.supported = true
	return nil
}

// Apply writes what differs from the desired state and reports whether that was anything. Rules of
// other modes in shared chains stay and go on serving; everything else in our chains that is not
// desired is removed.
func (f *FixedRules) Apply(ctx context.Context, want fixedrules.Rules) (changed bool, err error) {
	if err := f.kernel.find(ctx); err != nil {
		return false, err
	}
	want = f.understood(want)
	since := momentOf(f.kernel) // before reading: what comes later is noticed next time
	if f.unchanged(&want, since) {
		return false, nil
	}
	f.forget()
	state, err := f.kernel.read(ctx)
	if err != nil {
		return false, err
	}
	d := compareFixed(&want, state, f.modes)
	input := d.input()
	if err := f.kernel.apply(ctx, input); err != nil {
		return false, fmt.Errorf("write the fixed rules of mode %s: %w", f.modes.mode, err)
	}
	f.note(&want, since)
	return input != "", nil
}

// understood is the desired state without what the programs do not know.
func (f *FixedRules) understood(want fixedrules.Rules) fixedrules.Rules {
	if f.kernel.randomFully() {
		return want
	}
	want.Chains = slices.Clone(want.Chains)
	for i := range want.Chains {
		rules := slices.Clone(want.Chains[i].Rules)
		for j := range rules {
			rules[j] = strings.TrimSuffix(rules[j], " --random-fully")
		}
		want.Chains[i].Rules = rules
	}
	return want
}

// unchanged reports whether the kernel had the desired state, and no other program has written
// since.
func (f *FixedRules) unchanged(want *fixedrules.Rules, now moment) bool {
	return f.since.sameAs(now) && reflect.DeepEqual(f.actual, want)
}

func (f *FixedRules) forget() {
	f.actual, f.since, f.removed = nil, moment{}, removed{}
	f.entries.Store(nil)
}

// note notes that the kernel has the desired state.
func (f *FixedRules) note(want *fixedrules.Rules, since moment) {
	f.unread, f.actual, f.since = 0, want, since
	if total, ok := f.kernel.entries(); ok {
		chains, rules := want.Counts()
		f.entries.Store(&entries{total: total, ours: tally{chains: chains, rules: rules}.entries()})
	}
	f.begin()
}

// Compare compares the kernel to the desired state and writes nothing. The kernel is not read if no
// other program has written rules since it had that state. Rules of other modes are no difference.
func (f *FixedRules) Compare(ctx context.Context, want fixedrules.Rules) (fixedrules.State, error) {
	if err := f.kernel.find(ctx); err != nil {
		return fixedrules.State{}, err
	}
	want = f.understood(want)
	var out fixedrules.State
	since := momentOf(f.kernel)
	if f.unchanged(&want, since) && f.unread < maxUnread {
		f.unread++
		out.Chains, out.Rules = want.Counts()
		out.Warnings = f.kernel.warnings(ctx)
		return out, nil
	}
	state, err := f.kernel.read(ctx)
	if err != nil {
		return fixedrules.State{}, err
	}
	d := compareFixed(&want, state, f.modes)
	out.Findings, out.Rules = d.findings(), len(want.Jumps)-len(d.jumps)
	for i := range want.Chains {
		id := ownChain(&want.Chains[i])
		if have := state.chains[id]; have != nil {
			out.Chains++
			out.Rules += have.count - len(besideFixed(id, have, f.modes))
		}
	}
	out.Warnings = f.kernel.warnings(ctx)
	f.forget()
	if len(out.Findings) == 0 {
		f.note(&want, since)
	}
	return out, nil
}

// Watch calls changed whenever another program may have changed our chains or
// jumps, until ctx is done; see dataplane.Observer. It begins after the first
// successful Apply or Compare that found no difference.
func (f *FixedRules) Watch(ctx context.Context, changed func(dataplane.Change)) {
	watchRules(ctx, f.begun, f.kernel, &f.entries, changed)
}
