package iptables

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Keeper keeps a fixed set of chains and jumps in one IP family, by whichever
// variant of iptables the node uses: those of mode IPVS. Beside the rules of mode
// IPTables, which may have served the node before, its own have no effect until
// that mode is retired. Its methods but for Watch are not called concurrently.
type Keeper struct {
	family dataplane.Family
	kernel kernel
	proc   string
	sysctl string

	// applied is closed after the first successful Apply or Compare.
	applied chan struct{}
	// entries are how many the kernel's tables should hold, nil while that is not
	// known. Legacy variant only.
	entries atomic.Pointer[entries]

	// known: the programs and the kernel know what our rules need.
	known bool
	// held is what the kernel has, by others' count then; nil: not known.
	held   *Fixed
	others uint32
	// unread counts the comparisons since the rules were read.
	unread int
	// retired: nothing of ours was left when it was last looked.
	retired retired
}

// NewKeeper makes a Keeper for one IP family. It runs nothing yet.
func NewKeeper(family dataplane.Family, o Options) *Keeper {
	o.complete()
	return &Keeper{
		family: family, kernel: newKernel(family, modeIPVS, &o), proc: o.ProcFolder, sysctl: o.SysctlFolder,
		applied: make(chan struct{}),
	}
}

// matches are those of our rules that mode IPTables does without, and what the
// kernel calls their modules.
var matches = []string{"set", "ipvs", "physdev"}

// Supported reports whether the node has the family at all, and programs and a
// kernel that know what the rules of mode IPVS need.
func (k *Keeper) Supported(ctx context.Context) error {
	if err := dataplane.HasFamily(k.family, k.proc, k.sysctl); err != nil {
		return err
	}
	if err := k.kernel.find(ctx); err != nil || k.known {
		return err
	}
	if err := k.kernel.probe(); err != nil {
		return err
	}
	missing, err := k.kernel.lacks(ctx, matches)
	switch {
	case err != nil:
		return fmt.Errorf("ask iptables which matches it knows: %w", err)
	case len(missing) > 0:
		return fmt.Errorf("%w: %s lacks the match %s; load the kernel module xt_%s (modprobe -a xt_%s), and install the complete iptables package on the node",
			dataplane.ErrUnsupported, commandOf(k.family), strings.Join(missing, ", "), strings.Join(missing, ", xt_"), strings.Join(missing, " xt_"))
	}
	k.known = true
	return nil
}

// Apply makes the kernel hold the desired state, and writes only what differs. It
// reports whether that was anything. Rules of mode IPTables in nat KUBE-SERVICES
// stay and go on serving; everything else in our chains that is not desired goes.
func (k *Keeper) Apply(ctx context.Context, want Fixed) (changed bool, err error) {
	if err := k.kernel.find(ctx); err != nil {
		return false, err
	}
	want = k.understood(want)
	others, known := k.kernel.others() // before reading: what comes later is noticed next time
	if k.unchanged(&want, others, known) {
		return false, nil
	}
	k.forget()
	state, err := k.kernel.read(ctx)
	if err != nil {
		return false, err
	}
	d := compareFixed(&want, state)
	input := d.input()
	if err := k.kernel.apply(ctx, input); err != nil {
		return false, fmt.Errorf("write the fixed rules of mode IPVS: %w", err)
	}
	k.hold(&want, others, known)
	return input != "", nil
}

// understood is the desired state without what the programs do not know.
func (k *Keeper) understood(want Fixed) Fixed {
	if k.kernel.randomFully() {
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

// unchanged reports whether the kernel has the desired state because no other program
// has written rules since it did.
func (k *Keeper) unchanged(want *Fixed, others uint32, known bool) bool {
	return known && k.held != nil && k.others == others && reflect.DeepEqual(k.held, want)
}

// forget notes that it is not known what the kernel has.
func (k *Keeper) forget() {
	k.held, k.retired = nil, retired{}
	k.entries.Store(nil)
}

// hold notes what the kernel has.
func (k *Keeper) hold(want *Fixed, others uint32, known bool) {
	k.unread = 0
	if known {
		k.held, k.others = want, others
	}
	if total, ok := k.kernel.entries(); ok {
		k.entries.Store(&entries{total: total, ours: entriesOf(want.Counts())})
	}
	select {
	case <-k.applied:
	default:
		close(k.applied)
	}
}

// Compare compares the kernel to the desired state and writes nothing. Where the
// kernel reports that no other program has written rules since it held just that, it is
// not read. What mode IPTables has besides is no difference.
func (k *Keeper) Compare(ctx context.Context, want Fixed) (FixedState, error) {
	if err := k.kernel.find(ctx); err != nil {
		return FixedState{}, err
	}
	want = k.understood(want)
	var out FixedState
	others, known := k.kernel.others()
	if k.unchanged(&want, others, known) && k.unread < maxUnread {
		k.unread++
		out.Chains, out.Rules = want.Counts()
		out.Warnings = k.kernel.warnings(ctx)
		return out, nil
	}
	state, err := k.kernel.read(ctx)
	if err != nil {
		return FixedState{}, err
	}
	d := compareFixed(&want, state)
	out.Findings = d.findings()
	out.Chains, out.Rules = countFixed(&want, state, &d)
	out.Warnings = k.kernel.warnings(ctx)
	k.forget()
	if len(out.Findings) == 0 {
		k.hold(&want, others, known)
	}
	return out, nil
}

// Watch calls changed whenever another program may have changed our chains or
// jumps, until ctx is done; see dataplane.Observer. It begins after the first
// successful Apply or Compare that found no difference.
func (k *Keeper) Watch(ctx context.Context, changed func(dataplane.Change)) {
	select {
	case <-ctx.Done():
	case <-k.applied:
		watchRules(ctx, k.kernel, &k.entries, changed)
	}
}
