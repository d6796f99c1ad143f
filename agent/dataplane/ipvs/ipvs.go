package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/fixedrules"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Rules programs the fixed iptables rules of one IP family; iptables.FixedRules does.
type Rules interface {
	// Supported returns nil, or an error that wraps dataplane.ErrUnsupported and states what
	// is missing and what to do.
	Supported(ctx context.Context) error
	// Apply writes the rules, and reports whether it had to change anything.
	Apply(ctx context.Context, want fixedrules.Rules) (changed bool, err error)
	// Compare compares the kernel to the rules and writes nothing.
	Compare(ctx context.Context, want fixedrules.Rules) (fixedrules.State, error)
	// CleanupMode removes our rules, except those that modes share, unless the running mode has
	// none of these.
	CleanupMode(ctx context.Context, running v1alpha1.ProxyMode) error
	// Cleanup removes all chains of the mode and the jumps to them.
	Cleanup(ctx context.Context) error
	// Watch calls changed whenever another program may have changed what the last Apply
	// left in the kernel, until ctx is done.
	Watch(ctx context.Context, changed func(dataplane.Change))
}

// Options configure a Dataplane.
type Options struct {
	// Kernel is the node's, of the family; see NewKernel. Rules are of the same family.
	Kernel Kernel
	Rules  Rules
	// Clock times the draining of real servers. Nil: the real one.
	Clock clock.WithTicker
	// ProcDirectory is the proc file system. Empty: /proc.
	ProcDirectory string
	// SysctlDirectory is where sysctls are read. Empty: sys in ProcDirectory.
	SysctlDirectory string
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
	// nodePorts determine where NodePorts answer, and answering on which addresses of the
	// node, as last planned.
	nodePorts dataplane.NodePorts
	answering []netip.Addr

	// actual is the kernel state after our last successful Apply. If it is nil, the state is
	// unknown and the next Apply is full. Previous is the same, but stays after an error.
	actual, previous *desired
	// next is the config by which the running Apply plans all Services.
	next *config
	// fixed are the fixed rules in the kernel.
	fixed fixedrules.Rules
	// known are the virtual servers that we have added, and for which Service.
	known map[Key]dataplane.ServiceName
	// denied are virtual servers of another program that look like ours because we had
	// begun to write them.
	denied sets.Set[Key]
	// unmanaged are the virtual servers that are not ours, as of the last full Apply.
	unmanaged unmanaged
	// left are our virtual servers that belong to no Service and had to stay, as of the
	// last full Apply.
	left sets.Set[Key]
	// conflicts are those of Services that do not have everything that they ask for. The
	// rest of these Services is in actual.
	conflicts conflicts
	// schedulers has the probed ones: whether the kernel has them.
	schedulers map[string]bool
	// warnings are those of the last full Apply, notes those about Services.
	warnings []string
	notes    map[dataplane.ServiceName][]string
	// untunable are the sysctls, and the timeouts, that could not be set.
	untunable sets.Set[string]

	// draining are the real servers that drain, and nextCheck is when they are checked; zero:
	// never. Checks has the last nextCheck that followDrains has not seen.
	draining  drains
	nextCheck time.Time
	checks    chan time.Time

	// exclude are the ranges in which virtual servers must stay, by the last settings.
	exclude []netip.Prefix
	// cleanupUntil is how long CleanupMode waits for connections; zero: it has not begun.
	cleanupUntil time.Time
	// yields: the kernel may have something of Kernel.Yield.
	yields bool

	watched watched
}

var (
	_ dataplane.ModeCleaner = (*Dataplane)(nil)
	_ dataplane.Observer    = (*Dataplane)(nil)
)

// New returns a Dataplane for one IP family. It touches nothing yet.
func New(family dataplane.Family, o Options) *Dataplane {
	o.ProcDirectory = cmp.Or(o.ProcDirectory, "/proc")
	o.SysctlDirectory = cmp.Or(o.SysctlDirectory, filepath.Join(o.ProcDirectory, "sys"))
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	d := &Dataplane{
		family: family, kernel: o.Kernel, rules: o.Rules, clock: o.Clock, proc: o.ProcDirectory, sysctl: o.SysctlDirectory,
		yields: true,
		checks: make(chan time.Time, 1),
		known:  map[Key]dataplane.ServiceName{}, denied: sets.Set[Key]{}, unmanaged: newUnmanaged(),
		schedulers: map[string]bool{}, notes: map[dataplane.ServiceName][]string{}, draining: drains{},
	}
	d.engine = engine.New[servicePlan](operations{d}, d.clock)
	return d
}

// Supported reports whether the node has the family, IPVS, ipsets and iptables, and the
// scheduler of its settings.
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
	if isMissing(err) {
		return fmt.Errorf("%w: %w", dataplane.ErrUnsupported, err)
	}
	return err
}

// open checks for what everything else needs.
func (d *Dataplane) open() error {
	if err := dataplane.HasFamily(d.family, d.proc, d.sysctl); err != nil {
		return err
	}
	return d.kernel.Open()
}

// probe checks whether the kernel has a scheduler, and remembers it.
func (d *Dataplane) probe(scheduler string) error {
	err := d.kernel.Probe(scheduler)
	if err == nil || isMissing(err) {
		d.schedulers[scheduler] = err == nil
	}
	return err
}

// probeNew probes a scheduler of a Service if it has not been probed. If the scheduler is
// missing, it returns no error.
func (d *Dataplane) probeNew(scheduler string) error {
	if _, known := d.schedulers[scheduler]; known || scheduler == "" {
		return nil
	}
	if err := d.probe(scheduler); !isMissing(err) {
		return err
	}
	return nil
}

func isMissing(err error) bool {
	_, missing := errors.AsType[*SchedulerError](err)
	return missing
}

// missing returns the schedulers that the kernel lacks, sorted.
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
	c, err := newConfig(d.family, n, addresses, d.missing())
	if err == nil {
		d.exclude = c.exclude
	}
	return c, err
}

// observe reads the kernel, without real servers, and what the plan depends on.
func (d *Dataplane) observe(n *dataplane.Node) (*evidence, error) {
	c, err := d.configFor(n)
	if err != nil {
		return nil, err
	}
	return d.read(c)
}

// observeAny reads the kernel, without real servers, whatever the settings are, for the
// removal of what is ours.
func (d *Dataplane) observeAny() (*evidence, error) {
	addresses, err := d.kernel.Addresses()
	if err != nil {
		return nil, err
	}
	ofFamily := slices.DeleteFunc(addresses, func(a netip.Addr) bool { return !d.family.Of(a) })
	return d.read(&config{family: d.family, exclude: d.exclude, addresses: sortedAddrs(ofFamily)})
}

// read reads the kernel, without real servers, and identifies our virtual servers.
func (d *Dataplane) read(c *config) (*evidence, error) {
	state := &snapshot{bound: sets.Set[netip.Addr]{}, reals: map[Key]map[netip.AddrPort]Real{}, sets: map[SetName]sets.Set[Entry]{}}
	var err error
	if state.servers, err = d.kernel.Servers(); err != nil {
		return nil, err
	}
	bound, exists, err := d.kernel.Bound()
	if err != nil {
		return nil, err
	}
	state.device = exists
	state.bound.Insert(bound...)
	ipsets, err := d.kernel.Sets(SetNames(d.family))
	if err != nil {
		return nil, err
	}
	for name, entries := range ipsets {
		state.sets[name] = sets.New(entries...)
	}
	maps.DeleteFunc(d.denied, func(k Key, _ sets.Empty) bool {
		_, found := state.servers[k]
		return !found
	})
	out := &evidence{config: c, state: state, known: d.known, denied: d.denied, stranded: sets.Set[Key]{}}
	return out, d.findStranded(out)
}

// findStranded identifies the virtual servers for NodePorts on addresses that the node no
// longer has: they equal one on an address that it has.
func (d *Dataplane) findStranded(e *evidence) error {
	for k := range e.state.servers {
		for _, twin := range e.twins(k) {
			same, err := d.sameReals(k, twin)
			if err != nil {
				return err
			}
			if same {
				e.stranded[k] = struct{}{}
				break
			}
		}
	}
	return nil
}

// sameReals reports whether two virtual servers have the same real servers, apart from
// draining ones.
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

// readReals reads the real servers of the desired virtual servers.
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

// counts counts our objects in the kernel.
func (d *Dataplane) counts() (dataplane.Counts, map[string]dataplane.TableCount) {
	rules := map[string]int{}
	for _, c := range d.fixed.Chains {
		rules[c.Table] += len(c.Rules)
	}
	for _, j := range d.fixed.Jumps {
		rules[j.Table]++
	}
	out := dataplane.Counts{
		dataplane.Chains: len(d.fixed.Chains), dataplane.SetEntries: len(d.actual.needs.entries),
		dataplane.VirtualServers: len(d.actual.needs.servers), dataplane.RealServers: d.actual.needs.reals + d.draining.count(),
		dataplane.Draining: d.draining.count(),
	}
	tables := map[string]dataplane.TableCount{}
	for table, n := range rules {
		out[dataplane.Rules] += n
		tables[table] = dataplane.TableCount{Rules: n}
	}
	return out, tables
}
