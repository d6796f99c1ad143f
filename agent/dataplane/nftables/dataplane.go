package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/engine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
)

// Options configure a Dataplane.
type Options struct {
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	// ProcDirectory is the proc file system. Empty: /proc.
	ProcDirectory string
	// SysctlDirectory is where sysctls are read. Empty: sys in ProcDirectory.
	SysctlDirectory string
}

// Dataplane programs one IP family by nf_tables.
type Dataplane struct {
	family       dataplane.Family
	proc, sysctl string
	open         func() (kernel, error)
	openMonitor  func() (monitor, error)
	ports        sync.Map // of our sockets, by which the kernel names who has changed a table
	interfaces   func() ([]netip.Addr, error)

	kernel  kernel // nil until it is needed, and after an error
	engine  *engine.Engine[servicePlan]
	contest *contest
	// actual is what the table has by the last successful Apply, planned by config; nil: unknown.
	actual *state
	config *config
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
	if o.SysctlDirectory == "" {
		o.SysctlDirectory = filepath.Join(o.ProcDirectory, "sys")
	}
	d := &Dataplane{
		family: family, proc: o.ProcDirectory, sysctl: o.SysctlDirectory, interfaces: dataplane.InterfaceAddresses, contest: newContest(),
		open:        func() (kernel, error) { return nft.Open() },
		openMonitor: func() (monitor, error) { return nft.OpenMonitor() },
	}
	d.engine = engine.New[servicePlan](operations{d}, o.Clock)
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
	err = d.kernel.Commit(&b, 0)
	rejected, ok := errors.AsType[*nft.RejectedError](err)
	switch {
	case ok && rejected.Message == b.Len()-1: // the message that cannot succeed
		return nil
	case ok:
		return fmt.Errorf("%w: the kernel's nf_tables lacks a feature; use Linux 5.13 or newer with its modules nft_*, or another mode: %w", dataplane.ErrUnsupported, err)
	case err == nil:
		return errors.New("the kernel has made a table that was to be discarded")
	}
	return d.failed(err)
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
	d.kernel = k
	d.ports.Store(k.Port(), struct{}{})
	return nil
}

// failed forgets the socket after an error that is no answer of the kernel.
func (d *Dataplane) failed(err error) error {
	if _, answered := errors.AsType[*nft.RejectedError](err); err != nil && !answered && !errors.Is(err, nft.ErrChanged) {
		if c, ok := d.kernel.(interface{ Close() error }); ok {
			err = errors.Join(err, c.Close())
		}
		d.ports.Delete(d.kernel.Port())
		d.kernel = nil
	}
	return err
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
	text, err := os.ReadFile(filepath.Join(d.sysctl, "net/netfilter/nf_conntrack_tcp_be_liberal"))
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// Apply implements dataplane.Dataplane.
func (d *Dataplane) Apply(ctx context.Context, r *dataplane.Ruleset) (dataplane.Result, error) {
	result, err := d.engine.Apply(ctx, r)
	if err != nil {
		d.actual = nil
		return dataplane.Result{}, d.failed(err)
	}
	d.engine.Begin()
	return result, nil
}

// Verify implements dataplane.Dataplane.
func (d *Dataplane) Verify(_ context.Context, r *dataplane.Ruleset, o dataplane.VerifyOptions) (dataplane.Difference, error) {
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
	l, err := d.list(c)
	if err != nil {
		return dataplane.Difference{}, d.failed(err)
	}
	plans := newContest().plans(c, namesOf(r), func(name dataplane.ServiceName) *dataplane.Service { return r.Services[name] },
		func(key) dataplane.ServiceName { return dataplane.ServiceName{} }, func(dataplane.ServiceName) *servicePlan { return nil })
	out := dataplane.DifferenceOf(c.findings(c.compare(l, plans)), o)
	out.Drifted = d.actual != nil && out.Count > 0
	out.Counts = countsOf(l)
	return out, nil
}

// Cleanup implements dataplane.Dataplane.
func (d *Dataplane) Cleanup(context.Context, dataplane.CleanupOptions) error {
	if err := d.connect(); err != nil {
		if errors.Is(err, dataplane.ErrUnsupported) {
			return nil // there is no table
		}
		return err
	}
	d.actual, d.contest = nil, newContest()
	c := &config{family: d.family}
	found, _, err := d.kernel.HasTable(c.table())
	if err != nil || !found {
		return d.failed(err)
	}
	var b nft.Batch
	b.DeleteTable(c.table())
	if err := d.kernel.Commit(&b, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return d.failed(fmt.Errorf("delete table %s: %w", TableName, err))
	}
	return nil
}

// CleanupMode implements dataplane.ModeCleaner. Open connections need no rules.
func (d *Dataplane) CleanupMode(ctx context.Context, _ *dataplane.Ruleset) (pending string, err error) {
	return "", d.Cleanup(ctx, dataplane.CleanupOptions{})
}
