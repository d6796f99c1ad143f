// Package iptables makes the kernel hold a Ruleset by iptables rules.
//
// Chains, names and hashes are kube-proxy's, so that tools and habits built on
// them keep working and a node can be taken over in place. Planning (plan.go,
// node.go) and comparing (compare.go, transaction.go) are pure; reading and
// writing the kernel (tools_linux.go, apply.go, full.go, isolate.go) is apart from them.
package iptables

import (
	"context"
	"net/netip"
	"path/filepath"
	"reflect"
	"sync/atomic"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
)

// Options are what a Dataplane is made of.
type Options struct {
	// Programs are those to use; all IP families of a node share them. Nil:
	// what NewPrograms finds in Folder.
	Programs *Programs
	// Folder holds the iptables programs. Empty: they are looked up in PATH.
	Folder string
	// ProcFolder is the proc file system. Empty: /proc.
	ProcFolder string
	// Commits is shared by the data planes of one network namespace. Nil: this
	// one is the only one.
	Commits *Commits
	// SysctlFolder is where sysctls are read and written. Empty: sys in
	// ProcFolder; with a Model: nowhere.
	SysctlFolder string
	// Model stands in for programs and kernel. Nil: the node's own.
	Model Model
}

// complete fills in what is left out.
func (o *Options) complete() {
	if o.ProcFolder == "" {
		o.ProcFolder = "/proc"
	}
	if o.SysctlFolder == "" {
		o.SysctlFolder = filepath.Join(o.ProcFolder, "sys")
	}
	if o.Programs == nil {
		o.Programs = NewPrograms(o.Folder, "")
	}
	if o.Commits == nil {
		o.Commits = &Commits{}
	}
}

// kernel reads and writes the rules of one IP family. Tests put a model of the
// kernel in its place.
type kernel interface {
	// find looks for the programs; nothing else may be called before it has
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
	// insert puts a jump at the head of a built-in chain.
	insert(h hook) error
	// others returns a number that stays the same as long as no other program writes
	// rules. The second result is false where the kernel does not report it.
	others() (uint32, bool)
	// watch calls changed whenever another program may have changed rules of ours,
	// until ctx is done or it can watch no longer. The entries are nil while it is
	// not known how many the kernel should hold.
	watch(ctx context.Context, expected *atomic.Pointer[entries], changed func(dataplane.Change)) error
	// unwatched runs do, which reads and then writes many rules, while nobody is
	// told of each of them. What others change meanwhile is noticed all the same.
	unwatched(do func() error) error
	// entries counts the entries of the tables nat and filter. The second result
	// is false where the kernel does not report it: only the legacy one does.
	entries() (int, bool)
	// legacy reports whether each call rewrites a whole table.
	legacy() bool
	// randomFully reports whether MASQUERADE knows --random-fully.
	randomFully() bool
	// warnings say what is wrong about the variant in use.
	warnings(ctx context.Context) []string
	// all returns one for each variant that may hold rules, to clean. It may be
	// called before find.
	all(ctx context.Context) ([]kernel, error)
}

// Dataplane programs one IP family by iptables.
type Dataplane struct {
	family  dataplane.Family
	kernel  kernel
	proc    string
	sysctl  string
	sysctls sysctls
	// interfaceIPs reads the addresses of the node's interfaces. It is called
	// from several goroutines.
	interfaceIPs func() ([]netip.Addr, error)
	// addresses are those of the node that NodePorts answer on.
	addresses engine.Addresses
	engine    *engine.Engine[planned]

	// entries are how many the kernel's tables should hold, nil while that is not
	// known, and foreign how many of them are others'. Legacy variant only.
	entries atomic.Pointer[entries]
	foreign int

	// held is what the kernel has by our last successful Apply, without the Services that it
	// rejects. Nil: unknown, the next Apply is full.
	held *desired
	// sound is kernel.others when the kernel had what is in held and engine.Rejected; nil:
	// that is not known. Doubted: since the last verification a full pass was made
	// because something was rejected and another program may be why.
	sound   *uint32
	doubted bool
	// stuck are chains that belong to no Service and could not be deleted.
	stuck map[string]struct{}
	// warnings are those of the last full Apply.
	warnings []string
	// chains and rules count what is held.
	chains, rules int
	filterRules   int // those of rules that are in the table filter
	// seen is kernel.others of a comparison that found no difference; nil: there
	// was none since the last full Apply. Unread counts the verifications since.
	seen   *uint32
	unread int
	// spare is what the last Verify has read, if it found a difference.
	spare *spare
	// retired: nothing of this mode was left when it was last looked.
	retired retired
	// audited is the last comparison beside another proxy; nil: none yet.
	audited *audited
	// written counts the rules that the running Apply has written, by table; failed: the kernel
	// has rejected some.
	written [2]int
	failed  bool
}

// spare is a state of the kernel that holds as long as no other program writes rules.
type spare struct {
	state  *kernelState
	others uint32
}

var (
	_ dataplane.Retirer  = (*Dataplane)(nil)
	_ dataplane.Observer = (*Dataplane)(nil)
)

// New makes a Dataplane for one IP family. It runs nothing yet.
func New(family dataplane.Family, o Options) *Dataplane {
	values := o.sysctls()
	o.complete()
	d := &Dataplane{
		family:  family,
		kernel:  newKernel(family, modeIPTables, &o),
		proc:    o.ProcFolder,
		sysctl:  o.SysctlFolder,
		sysctls: values,

		interfaceIPs: dataplane.InterfaceAddresses,
	}
	d.engine = engine.New[planned](operations{d}, clock.RealClock{})
	if o.Model != nil {
		d.interfaceIPs = func() ([]netip.Addr, error) { return o.Model.Addresses(), nil }
	}
	return d
}

// Supported reports whether the node has the family at all, the programs are
// there and the kernel has NAT.
func (d *Dataplane) Supported(ctx context.Context, _ *dataplane.Ruleset) error {
	if err := d.hasFamily(); err != nil {
		return err
	}
	if err := d.kernel.find(ctx); err != nil {
		return err
	}
	if d.held != nil {
		return nil // it has taken our rules
	}
	return d.kernel.probe()
}

func (d *Dataplane) hasFamily() error {
	return dataplane.HasFamily(d.family, d.proc, d.sysctl)
}

// facts reads what the rules depend on besides Services and settings.
func (d *Dataplane) facts() (kernelFacts, error) {
	f := kernelFacts{randomFully: d.kernel.randomFully()}
	// Absent where the kernel has no connection tracking yet: not liberal.
	if value, err := d.sysctls.read("net/netfilter/nf_conntrack_tcp_be_liberal"); err == nil {
		f.liberal = value != "0"
	}
	var err error
	f.interfaceIPs, err = d.interfaceIPs()
	return f, err
}

// counts are those of what is held.
func (d *Dataplane) counts() dataplane.Counts {
	return countsOf(d.chains, d.rules)
}

func countsOf(chains, rules int) dataplane.Counts {
	return dataplane.Counts{dataplane.Chains: chains, dataplane.Rules: rules}
}

// maxUnread is how many verifications in a row may go by without reading the
// rules, because no other program has changed any.
const maxUnread = 9

// Verify compares the kernel to what the last Apply left there or, for an audit, to r alone.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	if err := d.hasFamily(); err != nil {
		return dataplane.Difference{}, err
	}
	if err := d.kernel.find(ctx); err != nil {
		return dataplane.Difference{}, err
	}
	if o.Audit {
		return d.audit(ctx, r)
	}
	return d.verify(ctx, r)
}

// verify does not read the kernel where that reports that no other program has written rules
// since a comparison that found no difference: then it has what we have written since.
func (d *Dataplane) verify(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	want, err := d.want(r)
	if err != nil {
		return dataplane.Difference{}, err
	}
	d.doubted = false
	others, known := d.kernel.others() // before reading: what comes later is noticed next time
	if known && want == d.held && d.seen != nil && *d.seen == others && d.unread < maxUnread {
		d.unread++
		return dataplane.Difference{Counts: d.counts(), Warnings: d.kernel.warnings(ctx)}, nil
	}
	state, err := d.kernel.read(ctx)
	if err != nil {
		return dataplane.Difference{}, err
	}
	scope := &scope{prune: r.Prune, rejected: d.engine.Rejected, stuck: d.stuck, kept: engine.KeptOf(r)}
	out := difference(want, state, scope)
	switch {
	case out.Count == 0:
		d.expectEntries(state)
	case want == d.held:
		out.Drifted = true
	case d.held != nil:
		drift := difference(d.held, state, scope)
		out.Drifted = drift.Count > 0
	}
	out.Warnings = d.kernel.warnings(ctx)
	d.seen, d.unread, d.spare = nil, 0, nil
	if known && out.Count > 0 {
		d.spare = &spare{state, others}
	}
	if known && want == d.held && out.Count == 0 {
		d.seen, d.sound = &others, &others
	}
	return out, nil
}

// want is the desired state of the kernel: what the last Apply planned, or a fresh
// plan where there is none or something has changed since, be it only that an
// interface has a new address.
func (d *Dataplane) want(r *dataplane.Ruleset) (*desired, error) {
	facts, err := d.facts()
	if err != nil {
		return nil, err
	}
	c, err := d.configFor(r, facts)
	if err != nil {
		return nil, err
	}
	if d.held != nil && !r.Full && len(r.Dirty) == 0 {
		c.terse = d.held.config.terse // comments make no difference
		if reflect.DeepEqual(c, d.held.config) {
			return d.held, nil
		}
	}
	return c.plan(r.Services), nil
}

// terseAbove is the number of endpoints above which rules of endpoints carry no
// comments. They cost time to load and to list.
const terseAbove = 1000

func (d *Dataplane) configFor(r *dataplane.Ruleset, facts kernelFacts) (*config, error) {
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
