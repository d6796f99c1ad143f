package nftables

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft/unix"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// eventPatience is less than reading everything takes on a large node.
const eventPatience = 25 * time.Millisecond

// maxUnread is how many comparisons in a row may rely on the generation of nf_tables.
const maxUnread = 10

// Options configure a Dataplane.
type Options struct {
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	// ProcDirectory is the proc file system. Empty: /proc.
	ProcDirectory string
	// SysctlDirectory is where sysctls are read. Empty: sys in ProcDirectory; with a Model: nowhere.
	SysctlDirectory string
	// Modes are those of the node: NodePorts do not answer on what another one binds.
	Modes []dataplane.Declaration
	// Model stands in for the kernel. Nil: the node's own.
	Model Model
	// Shared: the table has no owner, even if the kernel has that, so that any program may change it.
	Shared bool
}

// Dataplane programs one IP family by nf_tables.
type Dataplane struct {
	family       dataplane.Family
	proc, sysctl string
	open         func() (kernel, error)
	openMonitor  func() (monitor, error)
	ports        sync.Map // of our sockets, by which the kernel names who has changed a table
	interfaces   func() ([]netip.Addr, error)
	// openAddressMonitor opens a monitor of the addresses of interfaces.
	openAddressMonitor func() (monitor, error)
	shared             bool // see Options
	batch              int  // how many elements of Services go into one batch

	kernel kernel // nil until it is needed, and after an error
	// progress reports a step of the running method; see dataplane.Progress.
	progress func()
	// owns: the table belongs to the socket, so that the kernel rejects changes by other programs.
	owns bool
	// addresses are those of the node that NodePorts answer on.
	addresses engine.Addresses
	engine    *engine.Engine[servicePlan]
	contest   *contest
	// actual is what the table has by the last successful Apply, planned by config; nil: unknown.
	actual *state
	config *config
	// last is what the table had when actual was last known; nil: it never was. It outlives errors.
	last *state
	// clean is the generation of nf_tables at which a comparison found no difference; 0: unknown.
	clean uint32
	// unread counts the comparisons since that have not read the table, but for those of suspects.
	unread int
	// listed is the table in which the last comparison found changes by another program: the repair
	// that follows reads it again only if nf_tables has changed since.
	listed *listing
	// journal has what other programs have changed, and suspicion how the table differs by it: the repair
	// that follows compares nothing again.
	journal   journal
	suspicion *suspicion
	// next is the config by which the running Apply plans all Services.
	next *config
	// services are those of the Ruleset of the running, or the last, Apply.
	services map[dataplane.ServiceName]*dataplane.Service
}

var _ dataplane.ModeCleaner = (*Dataplane)(nil)

// New returns a Dataplane for one IP family. It touches nothing yet.
func New(family dataplane.Family, o Options) *Dataplane {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.ProcDirectory == "" {
		o.ProcDirectory = "/proc"
	}
	if o.SysctlDirectory == "" && o.Model == nil {
		o.SysctlDirectory = filepath.Join(o.ProcDirectory, "sys")
	}
	d := &Dataplane{
		family: family, proc: o.ProcDirectory, sysctl: o.SysctlDirectory, contest: newContest(), shared: o.Shared, batch: 20_000,
		interfaces: func() ([]netip.Addr, error) { return dataplane.NodeAddresses(o.Modes) },
		open:       openKernel, openMonitor: openMonitor, journal: journal{patience: eventPatience}, progress: func() {},
	}
	if o.Model != nil {
		d.open, d.interfaces = func() (kernel, error) { return o.Model, nil }, func() ([]netip.Addr, error) { return o.Model.Addresses(), nil }
	}
	d.openAddressMonitor = func() (monitor, error) {
		return openAddressMonitor((&config{family: family}).table().Family)
	}
	d.engine = engine.New[servicePlan](operations{d}, o.Clock)
	d.engine.Repair = operations{d}.Repair
	return d
}

// Supported has the kernel check a table with everything that Services may need, and discard it.
func (d *Dataplane) Supported(_ context.Context, r *dataplane.Ruleset) error {
	if err := dataplane.HasFamily(d.family, d.proc, d.sysctl); err != nil {
		return err
	}
	if err := d.connect(); err != nil {
		return err
	}
	c, err := d.configFor(&r.Node)
	if err != nil {
		return err
	}
	var b nft.Batch
	c.addProbe(&b)
	err = d.discard(&b)
	if rejected, ok := errors.AsType[*nft.RejectedError](err); ok {
		return fmt.Errorf("%w: the kernel's nf_tables lacks %s; use Linux 5.13 or newer with its modules nft_*, or another mode: %w", dataplane.ErrUnsupported, b.Describe(rejected), err)
	}
	return d.failed(err)
}

// discard has the kernel check a batch whose last message cannot succeed, so that it does nothing.
func (d *Dataplane) discard(b *nft.Batch) error {
	err := d.kernel.Commit(b, 0)
	rejected, ok := errors.AsType[*nft.RejectedError](err)
	switch {
	case err == nil:
		return errors.New("the kernel has made a table that was to be discarded")
	case ok && rejected.Message == b.Len()-1:
		return nil
	default:
		return err
	}
}

// connect opens the socket.
func (d *Dataplane) connect() error {
	if d.kernel != nil {
		return nil
	}
	k, err := d.open()
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", dataplane.ErrUnsupported, err)
	}
	if err != nil {
		return err
	}
	d.kernel = &reporting{k, d}
	d.ports.Store(k.Port(), struct{}{})
	if !d.shared {
		c := config{family: d.family, probe: true}
		var b nft.Batch
		b.AddTable(c.table(), "", true)
		c.addFailure(&b)
		err := d.discard(&b)
		if d.owns = err == nil; err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
			return errors.Join(fmt.Errorf("probe whether a table may have an owner: %w", err), d.Close()) // the next call probes again
		}
	}
	return nil
}

// report has the steps of a method reported to its context.
func (d *Dataplane) report(ctx context.Context) { d.progress = func() { dataplane.Progress(ctx) } }

// reporting is a kernel that reports each batch and each listed set as progress.
type reporting struct {
	kernel
	of *Dataplane
}

// Commit implements kernel.
func (k *reporting) Commit(b *nft.Batch, generation uint32) error {
	defer k.of.progress()
	return k.kernel.Commit(b, generation) //nolint:wrapcheck // the callers do
}

// Elements implements kernel.
func (k *reporting) Elements(t nft.Table, set string, yield func(*nft.Element)) error {
	defer k.of.progress()
	return k.kernel.Elements(t, set, yield) //nolint:wrapcheck // the callers do
}

// Close implements io.Closer.
func (k *reporting) Close() error {
	if c, ok := k.kernel.(io.Closer); ok {
		return c.Close() //nolint:wrapcheck // it names the call
	}
	return nil
}

// failed closes the socket after an error that is no answer of the kernel.
func (d *Dataplane) failed(err error) error {
	if _, answered := errors.AsType[*nft.RejectedError](err); err != nil && !answered && !errors.Is(err, nft.ErrChanged) && !errors.Is(err, nft.ErrInterrupted) {
		err = errors.Join(err, d.Close())
	}
	return err
}

// Close closes the socket, after which another agent may own the table. It is not called concurrently
// with other methods, which open the socket again.
func (d *Dataplane) Close() error {
	if d.kernel == nil {
		return nil
	}
	k := d.kernel
	d.ports.Delete(k.Port())
	d.kernel, d.actual, d.listed, d.suspicion = nil, nil, nil, nil
	if c, ok := k.(io.Closer); ok {
		return c.Close() //nolint:wrapcheck // it names the call
	}
	return nil
}

// configFor derives what the rules depend on besides Services.
func (d *Dataplane) configFor(n *dataplane.Node) (*config, error) {
	addresses, err := d.interfaces()
	if err != nil {
		return nil, err
	}
	return newConfig(d.family, n, facts{addresses: addresses, liberal: d.liberal()})
}

// liberal reports whether nf_conntrack_tcp_be_liberal is on.
func (d *Dataplane) liberal() bool {
	value, err := dataplane.Sysctls(d.sysctl).Read("net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && value == "1"
}

// Apply implements dataplane.Dataplane.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	d.report(ctx)
	result, err := d.engine.Apply(ctx, r)
	if err != nil {
		d.actual = nil
		return dataplane.Result{}, d.failed(err)
	}
	d.engine.Begin()
	if result.Kind == v1alpha1.SyncFull && r.Prune && len(result.Rejected) == len(result.Reduced) { // it may serve the rejected ones
		if err := d.removeFormer(ctx); err != nil && len(result.Warnings) < dataplane.MaxExamples {
			result.Warnings = append(result.Warnings, err.Error()+"; its rules act beside nodeproxy's until the next full pass removes it")
		}
	}
	return result, nil
}

// Verify implements dataplane.Dataplane.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
	d.report(ctx)
	if err := dataplane.HasFamily(d.family, d.proc, d.sysctl); err != nil {
		return dataplane.Difference{}, err
	}
	if err := d.connect(); err != nil {
		return dataplane.Difference{}, err
	}
	c, err := d.configFor(&r.Node)
	if err != nil {
		return dataplane.Difference{}, err
	}
	applied := d.actual != nil && reflect.DeepEqual(c, d.config)
	current := applied && !o.Audit && !r.Full && len(r.Dirty) == 0
	if current && d.clean != 0 && d.unread < maxUnread {
		period := d.journal.now()
		if now, err := d.kernel.Generation(); err == nil && now == d.clean { // no program has changed anything
			d.journal.known(period, now)
			d.unread++
			return dataplane.Difference{Counts: d.actual.counts(c), Unread: true}, nil
		}
	}
	if d.suspicion = nil; current && o.Suspected {
		if out, err := d.verifySuspects(c, r); !errors.Is(err, errUnsure) {
			return out, d.failed(err)
		}
	}
	plans, rejected := newContest().all(c, r), map[dataplane.ServiceName]engine.Rejection[servicePlan]{}
	if d.actual != nil {
		rejected = maps.Clone(d.engine.Rejected)
	}
	takeOut(plans, rejected)
	addRetained(plans, d.last.retained(r, rejected), d.last)
	if o.Audit {
		if found, beside, err := d.auditFormer(ctx, c, plans); err != nil || beside {
			return dataplane.DifferenceOf(found, o), d.failed(err)
		}
	}
	l, difference, err := d.compare(c, plans)
	if err != nil {
		return dataplane.Difference{}, d.failed(err)
	}
	c.limit(l, difference, r, plans, rejected)
	out := dataplane.DifferenceOf(c.findings(difference), o)
	if d.clean, d.unread = 0, 0; current && out.Count == 0 {
		d.clean = l.generation
		if r.Prune && len(r.Preserve) == 0 {
			// The order of endpoints, and what no Service uses, may be another than that of the last Apply.
			difference.desired.countAll(c)
			d.actual, d.last = difference.desired, difference.desired
			d.journal.known(l.period, l.generation)
		}
	}
	if applied && out.Count > 0 {
		out.Drifted = !d.drift(c, l, d.actual, r).equal()
	}
	if out.Drifted {
		d.listed = l
	}
	out.Counts = l.counts()
	return out, nil
}

// Cleanup implements dataplane.Dataplane.
func (d *Dataplane) Cleanup(ctx context.Context, _ dataplane.CleanupOptions) error {
	d.report(ctx)
	if err := d.connect(); err != nil {
		if errors.Is(err, dataplane.ErrUnsupported) {
			return nil // there is no table
		}
		return err
	}
	d.actual, d.last, d.listed, d.suspicion, d.contest = nil, nil, nil, nil, newContest()
	return d.deleteTable(tableOf(d.family, TableName))
}

// CleanupMode implements dataplane.ModeCleaner. Open connections need no rules.
func (d *Dataplane) CleanupMode(ctx context.Context, _ *dataplane.Ruleset) (pending string, err error) {
	if err := d.Cleanup(ctx, dataplane.CleanupOptions{}); err != nil {
		return "", err
	}
	if err := d.removeFormer(ctx); err != nil {
		return err.Error(), nil
	}
	return "", nil
}
