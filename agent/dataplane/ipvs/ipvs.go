package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
)

// Rules programs the fixed iptables rules of one IP family; iptables.FixedRules does.
type Rules interface {
	// Supported returns nil, or an error that wraps dataplane.ErrUnsupported and
	// says what is missing and what to do.
	Supported(ctx context.Context) error
	// Apply makes the kernel hold want, and reports whether it had to change
	// anything.
	Apply(ctx context.Context, want iptables.Fixed) (changed bool, err error)
	// Compare compares the kernel to want and writes nothing.
	Compare(ctx context.Context, want iptables.Fixed) (iptables.FixedState, error)
	// Retire removes what of ours the mode iptables does not have as well.
	Retire(ctx context.Context) error
	// Cleanup removes all chains of the mode and the jumps to them.
	Cleanup(ctx context.Context) error
	// Watch calls changed whenever another program may have changed what the last
	// Apply left in the kernel, until ctx is done.
	Watch(ctx context.Context, changed func(dataplane.Change))
}

// Options are what a Dataplane is made of.
type Options struct {
	// Kernel is the node's, of the family; see NewKernel. Rules are of the same
	// family.
	Kernel Kernel
	Rules  Rules
	// Clock times real servers that drain. Nil: the real one.
	Clock clock.WithTicker
	// ProcFolder is the proc file system. Empty: /proc.
	ProcFolder string
	// SysctlFolder is where sysctls are read. Empty: sys in ProcFolder.
	SysctlFolder string
}

// Dataplane programs one IP family by IPVS.
type Dataplane struct {
	family       dataplane.Family
	kernel       Kernel
	rules        Rules
	clock        clock.WithTicker
	proc, sysctl string

	engine    *engine.Engine[servicePlan]
	addresses engine.Addresses
	// nodePorts say where NodePorts answer, answering on which addresses of the node that is, as
	// last planned.
	nodePorts dataplane.NodePorts
	answering []netip.Addr

	// held is what the kernel has by our last successful Apply. Nil: unknown,
	// the next Apply is full. Former is the same, but stays after an error.
	held, former *desired
	// next is the config to plan all Services by in the running Apply.
	next  *config
	fixed fixedCount
	// known are the virtual servers that we have made, and for whom.
	known map[Key]dataplane.ServiceName
	// denied are virtual servers that another program has made on what looks ours,
	// because we had begun to write it.
	denied map[Key]struct{}
	// others are the virtual servers that are not ours, as of the last full Apply.
	others strangers
	// left are the virtual servers that are ours by what the kernel has, belong to
	// no Service and were not to be deleted, as of the last full Apply.
	left map[Key]struct{}
	// conflicts say which Services do not have all that they ask for. The rest of
	// them is in held.
	conflicts conflicts
	// schedulers are those that have been asked for: whether the kernel has them.
	schedulers map[string]bool
	// warnings are those of the last full Apply. Notes are those about Services.
	warnings []string
	notes    map[dataplane.ServiceName][]string
	// untunable are the sysctls, and the timeouts, that could not be set.
	untunable map[string]struct{}

	// draining are the real servers that drain, and nextLook when they are to be
	// looked at; zero: never. Wake holds one when it has changed.
	draining drains
	lookMu   sync.Mutex // guards nextLook
	nextLook time.Time
	wake     chan struct{}

	// exclude are the ranges whose virtual servers are not to be deleted, by the
	// settings that were given last.
	exclude []netip.Prefix
	// retireUntil is until when connections of a mode that has ended are waited
	// for; zero: it has not.
	retireUntil time.Time
	// yields: the kernel may have something of Kernel.Yield.
	yields bool

	watched watched
}

var (
	_ dataplane.Retirer  = (*Dataplane)(nil)
	_ dataplane.Observer = (*Dataplane)(nil)
)

// New makes a Dataplane for one IP family. It touches nothing yet.
func New(family dataplane.Family, o Options) *Dataplane {
	if o.ProcFolder == "" {
		o.ProcFolder = "/proc"
	}
	if o.SysctlFolder == "" {
		o.SysctlFolder = filepath.Join(o.ProcFolder, "sys")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	d := &Dataplane{
		family: family, kernel: o.Kernel, rules: o.Rules, clock: o.Clock, proc: o.ProcFolder, sysctl: o.SysctlFolder,
		yields: true,
		wake:   make(chan struct{}, 1),
		known:  map[Key]dataplane.ServiceName{}, denied: map[Key]struct{}{}, others: newStrangers(),
		schedulers: map[string]bool{}, notes: map[dataplane.ServiceName][]string{}, draining: drains{},
	}
	d.engine = engine.New[servicePlan](operations{d}, d.clock)
	return d
}

// Supported reports whether the node has the family, IPVS, ipsets and iptables,
// and the scheduler of its settings.
func (d *Dataplane) Supported(ctx context.Context, r *dataplane.Ruleset) error {
	if err := d.open(); err != nil {
		return err
	}
	if err := d.rules.Supported(ctx); err != nil {
		return err
	}
	scheduler := *r.Node.Settings.IPVS.Scheduler
	if d.schedulers[scheduler] {
		return nil
	}
	err := d.probe(scheduler)
	if _, missing := errors.AsType[*SchedulerError](err); missing {
		return fmt.Errorf("%w: %w", dataplane.ErrUnsupported, err)
	}
	return err
}

// open looks for what everything else needs.
func (d *Dataplane) open() error {
	if err := dataplane.HasFamily(d.family, d.proc, d.sysctl); err != nil {
		return err
	}
	return d.kernel.Open()
}

// probe looks whether the kernel has a scheduler and remembers it.
func (d *Dataplane) probe(scheduler string) error {
	err := d.kernel.Probe(scheduler)
	if _, missing := errors.AsType[*SchedulerError](err); missing || err == nil {
		d.schedulers[scheduler] = err == nil
	}
	return err
}

// probeNew looks for a scheduler of a Service that has not been looked for. That
// it is missing is no error.
func (d *Dataplane) probeNew(scheduler string) error {
	if _, known := d.schedulers[scheduler]; known || scheduler == "" {
		return nil
	}
	err := d.probe(scheduler)
	if _, missing := errors.AsType[*SchedulerError](err); missing {
		return nil
	}
	return err
}

// missing are the schedulers that the kernel lacks, sorted.
func (d *Dataplane) missing() []string {
	var out []string
	for s, has := range d.schedulers {
		if !has {
			out = append(out, s)
		}
	}
	slices.Sort(out)
	return out
}

// configFor reads what the plan depends on besides Services.
func (d *Dataplane) configFor(n *dataplane.Node) (*config, error) {
	addresses, err := d.kernel.Addresses()
	if err != nil {
		return nil, err
	}
	c, err := newConfig(d.family, n, facts{addresses: addresses, missing: d.missing()})
	if err == nil {
		d.exclude = c.exclude
	}
	return c, err
}

// read reads what the kernel has, without real servers.
func (d *Dataplane) read(c *config) (*snapshot, error) {
	out := &snapshot{bound: map[netip.Addr]struct{}{}, reals: map[Key]map[netip.AddrPort]Real{}, sets: map[SetName]map[Entry]struct{}{}}
	var err error
	if out.servers, err = d.kernel.Servers(); err != nil {
		return nil, err
	}
	bound, exists, err := d.kernel.Bound()
	if err != nil {
		return nil, err
	}
	out.device = exists
	for _, a := range bound {
		out.bound[a] = struct{}{}
	}
	var names []SetName
	for _, def := range c.sets() {
		names = append(names, def.Name)
	}
	sets, err := d.kernel.Sets(names)
	if err != nil {
		return nil, err
	}
	for name, entries := range sets {
		set := make(map[Entry]struct{}, len(entries))
		for _, e := range entries {
			set[e] = struct{}{}
		}
		out.sets[name] = set
	}
	return out, nil
}

// readReals reads the real servers of those virtual servers that are desired.
func (d *Dataplane) readReals(ctx context.Context, state *snapshot, w *desired) error {
	for k := range state.servers {
		if _, desired := w.needs.servers[k]; !desired {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read real servers: %w", err)
		}
		reals, err := d.kernel.Reals(k)
		if err != nil {
			return err
		}
		state.reals[k] = reals
	}
	return nil
}

// evidence tells whose the virtual servers of a snapshot are.
func (d *Dataplane) evidence(c *config, state *snapshot) (*evidence, error) {
	for k := range d.denied {
		if _, stands := state.servers[k]; !stands {
			delete(d.denied, k)
		}
	}
	out := &evidence{config: c, state: state, known: d.known, denied: d.denied, stranded: map[Key]struct{}{}}
	for k := range state.servers {
		for _, twin := range out.twins(k) {
			same, err := d.sameReals(k, twin)
			if err != nil {
				return nil, err
			}
			if same {
				out.stranded[k] = struct{}{}
				break
			}
		}
	}
	return out, nil
}

// sameReals reports whether two virtual servers have the same real servers, but
// for those that drain.
func (d *Dataplane) sameReals(a, b Key) (bool, error) {
	var lists [2]map[netip.AddrPort]Real
	for i, k := range []Key{a, b} {
		var err error
		if lists[i], err = d.kernel.Reals(k); err != nil {
			return false, err
		}
		maps.DeleteFunc(lists[i], func(_ netip.AddrPort, r Real) bool { return r.Weight == 0 })
	}
	return maps.EqualFunc(lists[0], lists[1], func(Real, Real) bool { return true }), nil
}

// counts are those of what is held.
func (d *Dataplane) counts() (dataplane.Counts, map[string]dataplane.TableCount) {
	out := dataplane.Counts{
		dataplane.Chains: d.fixed.chains, dataplane.SetEntries: len(d.held.needs.entries),
		dataplane.VirtualServers: len(d.held.needs.servers), dataplane.RealServers: d.held.needs.reals + d.draining.count(),
		dataplane.Draining: d.draining.count(),
	}
	tables := map[string]dataplane.TableCount{}
	for table, n := range d.fixed.rules {
		out[dataplane.Rules] += n
		tables[table] = dataplane.TableCount{Rules: n}
	}
	return out, tables
}

// uncertain reports whether it is not known what the kernel has of a Service,
// or whether that is all it asks for.
func (d *Dataplane) uncertain(name dataplane.ServiceName) bool {
	_, conflict := d.conflicts.of[name]
	return conflict || d.engine.Unknown(name)
}

// sameButAddresses reports whether two differ in the node's addresses at most.
func sameButAddresses(a, b *config) bool {
	c := *a
	c.addresses, c.nodePortIPs = b.addresses, b.nodePortIPs
	return reflect.DeepEqual(&c, b)
}
