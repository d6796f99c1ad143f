package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
)

const procDirectory = "/proc"

// Options are what a Dataplane or FixedRules is made of.
type Options struct {
	// Modes declare what else may be in the kernel. That of the mode itself is ignored.
	Modes []dataplane.Declaration
	// Programs are those to use; all IP families of a node share them. Nil:
	// what is found in PATH.
	Programs *Programs
	// Commits is shared by the data planes of one network namespace. Nil: this
	// one is the only one.
	Commits *Commits
	// SysctlDirectory is where sysctls are read and written. Empty: /proc/sys; with a Model: nowhere.
	SysctlDirectory string
	// Model stands in for programs and kernel. Nil: the node's own.
	Model Model
}

func (o *Options) complete() {
	if o.SysctlDirectory == "" {
		o.SysctlDirectory = procDirectory + "/sys"
	}
	if o.Programs == nil {
		o.Programs = NewPrograms("", "")
	}
	if o.Commits == nil {
		o.Commits = &Commits{}
	}
}

// kernel reads and writes the rules of one IP family. Tests replace it by a model.
type kernel interface {
	// find finds the programs; only all may be called before it has
	// returned nil.
	find(ctx context.Context) error
	// probe reports whether the kernel has NAT.
	probe() error
	// lacks returns those of the named matches that the programs or the kernel do
	// not know.
	lacks(ctx context.Context, matches []string) ([]string, error)
	// read reads the tables nat and filter.
	read(ctx context.Context) (*kernelState, error)
	// list returns the rules of one chain.
	list(ctx context.Context, in chainID) ([]kernelRule, error)
	// apply runs the input of iptables-restore. Each section is applied as a
	// whole or not at all, and the first that is rejected is the last.
	apply(ctx context.Context, input string) error
	// others returns a number that stays the same as long as no other program writes
	// rules. The second result is false if the kernel does not report it.
	others() (uint32, bool)
	// watch calls changed whenever another program may have changed rules of ours,
	// until ctx is done or it can watch no longer. The entries are nil while the desired
	// number is unknown.
	watch(ctx context.Context, expected *atomic.Pointer[entries], changed func(dataplane.Change)) error
	// unwatched runs do, which reads and then writes many rules, without reporting
	// each of them to watch. What others change meanwhile is noticed all the same.
	unwatched(do func() error) error
	// entries counts the entries of the tables nat and filter. The second result
	// is false if the kernel does not report it: only the legacy one does.
	entries() (int, bool)
	// legacy reports whether each call rewrites a whole table.
	legacy() bool
	// randomFully reports whether MASQUERADE knows --random-fully.
	randomFully() bool
	// warnings are problems of the variant in use.
	warnings(ctx context.Context) []string
	// all returns one kernel for each variant that may have rules, to clean up.
	all(ctx context.Context) ([]kernel, error)
}

// moment is a time up to which everything that other programs have written is known; the zero
// value is none.
type moment struct {
	others uint32
	known  bool
}

func momentOf(k kernel) moment {
	others, known := k.others()
	return moment{others, known}
}

// sameAs reports whether no other program has written in between.
func (m moment) sameAs(now moment) bool { return m.known && m == now }

// Dataplane programs one IP family by iptables.
type Dataplane struct {
	family  dataplane.Family
	modes   *ownership
	kernel  kernel
	proc    string
	sysctl  string // where support of the family is read
	sysctls dataplane.Sysctls
	limits  callLimits
	// interfaceIPs reads the addresses of the node's interfaces. It is called
	// from several goroutines.
	interfaceIPs func() ([]netip.Addr, error)
	// addresses are those of the node that NodePorts answer on.
	addresses engine.Addresses
	engine    *engine.Engine[planned]

	// entries are how many the kernel's tables should have, nil while that is
	// unknown, and unmanaged how many of them are others'. Legacy variant only.
	entries   atomic.Pointer[entries]
	unmanaged int

	// actual is what the kernel has by our last successful Apply, without the Services that it
	// rejects. Nil: unknown, the next Apply is full.
	actual *desired
	// sound is when the kernel had what is in actual and engine.Rejected. Doubted: since the last
	// verification a full pass was made because something was rejected and another program may be
	// why.
	sound   moment
	doubted bool
	// stuck are chains that belong to no Service and could not be deleted.
	stuck sets.Set[string]
	// warnings are those of the last full Apply.
	warnings []string
	tally    tally // of actual
	// seen is when a comparison found no difference since the last full Apply. Unread counts the
	// verifications since.
	seen   moment
	unread int
	// spare is what the last Verify has read, if it found a difference.
	spare *kernelState
	// removed: nothing of this mode was left at the last check.
	removed removed
	// audited is the last comparison beside another proxy; nil: none yet.
	audited *audited
	// written counts the rules that the running Apply has written; failed: the kernel
	// has rejected some.
	written map[table]int
	failed  bool
}

var (
	_ dataplane.ModeCleaner = (*Dataplane)(nil)
	_ dataplane.Observer    = (*Dataplane)(nil)
)

// New makes a Dataplane for one IP family. It runs nothing yet.
func New(family dataplane.Family, o Options) *Dataplane {
	sysctls := dataplane.Sysctls(o.SysctlDirectory)
	o.complete()
	d := &Dataplane{
		family:  family,
		modes:   newOwnership(Declaration(), o.Modes, chainFirewall),
		proc:    procDirectory,
		sysctl:  o.SysctlDirectory,
		sysctls: sysctls,
		limits:  usualLimits(),
		written: map[table]int{},

		interfaceIPs: dataplane.InterfaceAddresses,
	}
	d.kernel = newKernel(family, d.modes, &o)
	d.engine = engine.New[planned](operations{d}, clock.RealClock{})
	if o.Model == nil {
		d.sysctls = dataplane.Sysctls(o.SysctlDirectory)
	} else {
		d.interfaceIPs = func() ([]netip.Addr, error) { return o.Model.Addresses(), nil }
	}
	return d
}

// Supported reports whether the node has the family at all, the programs are
// there and the kernel has NAT.
func (d *Dataplane) Supported(ctx context.Context, _ *dataplane.Ruleset) error {
	if err := d.find(ctx); err != nil || d.actual != nil { // then it has taken our rules
		return err
	}
	return d.kernel.probe()
}

// find finds the family and the programs.
func (d *Dataplane) find(ctx context.Context) error {
	if err := dataplane.HasFamily(d.family, d.proc, d.sysctl); err != nil {
		return err
	}
	return d.kernel.find(ctx)
}

// maxUnread is how many verifications in a row may skip reading the
// rules, because no other program has changed any.
const maxUnread = 9

// Verify compares the kernel to what the last Apply left there or, for an audit, to r alone. It does
// not read the kernel if that reports that no other program has written rules
// since a comparison that found no difference: then it has what we have written since.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	if err := d.find(ctx); err != nil {
		return dataplane.Difference{}, err
	}
	if o.Audit {
		return d.audit(ctx, r)
	}
	want, err := d.want(r)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.doubted = false
	now := momentOf(d.kernel) // before reading: what comes later is noticed next time
	if want == d.actual && d.seen.sameAs(now) && d.unread < maxUnread {
		d.unread++
		return dataplane.Difference{Counts: d.tally.counts(), Unread: true, Warnings: d.kernel.warnings(ctx)}, nil
	}
	state, err := d.kernel.read(ctx)
	if err != nil {
		return dataplane.Difference{}, err
	}
	scope := &scope{modes: d.modes, prune: r.Prune, rejected: d.engine.Rejected, stuck: d.stuck, preserved: engine.PreservedOf(r)}
	out := difference(want, state, scope)
	switch {
	case out.Count == 0:
		d.expectEntries(state)
	case want == d.actual:
		out.Drifted = true
	case d.actual != nil:
		drift := difference(d.actual, state, scope)
		out.Drifted = drift.Count > 0
	}
	out.Warnings = d.kernel.warnings(ctx)
	d.seen, d.unread, d.spare = moment{}, 0, nil
	switch {
	case !now.known:
	case out.Count > 0:
		d.spare, state.since = state, now
	case want == d.actual:
		d.seen, d.sound = now, now
	}
	return out, nil
}

// want is the desired state of the kernel: what the last Apply planned, or a new
// plan if there is none or something has changed since, even if only an
// interface has a new address.
func (d *Dataplane) want(r *dataplane.Ruleset) (*desired, error) {
	c, err := d.config(r)
	if err != nil {
		return nil, err
	}
	if d.actual != nil && !r.Full && len(r.Dirty) == 0 {
		c.terse = d.actual.config.terse // comments make no difference
		if reflect.DeepEqual(c, d.actual.config) {
			return d.actual, nil
		}
	}
	return c.plan(r.Services), nil
}

// terseAbove is the number of endpoints above which rules of endpoints carry no
// comments. They cost time to load and to list.
const terseAbove = 1000

// config reads what the rules depend on besides Services.
func (d *Dataplane) config(r *dataplane.Ruleset) (*config, error) {
	facts := kernelFacts{randomFully: d.kernel.randomFully()}
	// Absent if the kernel has no connection tracking yet: not liberal.
	if value, err := d.sysctls.Read("net/netfilter/nf_conntrack_tcp_be_liberal"); err == nil {
		facts.liberal = value != "0"
	}
	var err error
	if facts.interfaceIPs, err = d.interfaceIPs(); err != nil {
		return nil, err
	}
	c, err := newConfig(d.family, &r.Node, facts)
	if err != nil {
		return nil, err
	}
	endpoints := 0
	for _, s := range r.Services {
		for i := range s.Ports {
			endpoints += max(len(s.Ports[i].Cluster), len(s.Ports[i].Local))
		}
	}
	c.terse = endpoints > terseAbove
	return c, nil
}

// tune sets the sysctls that the rules need. It returns warnings of those that it cannot set.
func (d *Dataplane) tune(c *config) []string {
	var warnings []string
	for _, s := range nodeSysctls() {
		if !s.needed(c) {
			continue
		}
		if value, err := d.sysctls.Read(s.name); err == nil && value == s.value {
			continue
		}
		if err := d.sysctls.Write(s.name, s.value); err != nil {
			warnings = append(warnings, fmt.Sprintf("%s: %v; let the agent write it (in a container by --sysctl-directory, as config/agent/daemonset.yaml does), or %s", s.without, err, s.instead))
		}
	}
	return warnings
}
