// Package iptables makes the kernel hold a Ruleset by iptables rules.
//
// Chains, names and hashes are kube-proxy's, so that tools and habits built on
// them keep working and a node can be taken over in place. Planning (plan.go,
// node.go) and comparing (compare.go, transaction.go) are pure; reading and
// writing the kernel (tools.go, apply.go, full.go, isolate.go) is apart from them.
package iptables

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Options are what a Dataplane is made of.
type Options struct {
	// Folder holds the iptables programs. Empty: they are looked up in PATH.
	Folder string
	// SysctlFolder is where sysctls are read and written. Empty: /proc/sys.
	SysctlFolder string
}

// kernel reads and writes the rules of one IP family. Tests put a model of the
// kernel in its place.
type kernel interface {
	// find looks for the programs; nothing else may be called before it has
	// returned nil.
	find(ctx context.Context) error
	// probe reports whether the kernel has NAT.
	probe() error
	// read reads the tables nat and filter.
	read(ctx context.Context) (*kernelState, error)
	// apply runs the input of iptables-restore. Each section is applied as a
	// whole or not at all, and the first that is refused is the last.
	apply(ctx context.Context, input string) error
	// insert puts a jump at the head of a built-in chain.
	insert(h hook) error
	// describe returns version and variant, such as "1.8.9 (nf_tables)".
	describe() string
	// legacy reports whether each call rewrites a whole table.
	legacy() bool
	// randomFully reports whether MASQUERADE knows --random-fully.
	randomFully() bool
}

// Dataplane programs one IP family by iptables.
type Dataplane struct {
	family dataplane.Family
	kernel kernel
	sysctl string

	// held is what the kernel holds by our last successful Apply. Nil: unknown,
	// the next Apply is full.
	held *wanted
	// refused are the Services that the kernel would not take. What the kernel
	// holds of them is not in held.
	refused map[dataplane.ServiceName]refusal
	// stuck are chains that belong to no Service and could not be deleted.
	stuck map[string]struct{}
	// warnings are those of the last full Apply.
	warnings []string
	// chains and rules count what is held.
	chains, rules int
}

var _ dataplane.Dataplane = (*Dataplane)(nil)

// New makes a Dataplane for one IP family. It runs nothing yet.
func New(family dataplane.Family, o Options) *Dataplane {
	if o.SysctlFolder == "" {
		o.SysctlFolder = "/proc/sys"
	}
	return &Dataplane{
		family:  family,
		kernel:  newTools(family, o.Folder),
		sysctl:  o.SysctlFolder,
		refused: map[dataplane.ServiceName]refusal{},
	}
}

// Version is the version and variant of the programs, such as "1.8.9
// (nf_tables)"; empty until they have been found.
func (d *Dataplane) Version() string { return d.kernel.describe() }

// Supported reports whether the programs are there and the kernel has NAT.
func (d *Dataplane) Supported(ctx context.Context) error {
	if err := d.kernel.find(ctx); err != nil {
		return err
	}
	return d.kernel.probe()
}

// facts reads what the rules depend on besides Services and settings.
func (d *Dataplane) facts() (kernelFacts, error) {
	f := kernelFacts{randomFully: d.kernel.randomFully()}
	// Absent where the kernel has no connection tracking yet: not liberal.
	if value, err := os.ReadFile(d.sysctl + "/net/netfilter/nf_conntrack_tcp_be_liberal"); err == nil {
		f.liberal = strings.TrimSpace(string(value)) != "0"
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return f, fmt.Errorf("read the addresses of the node's interfaces: %w", err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				f.interfaceIPs = append(f.interfaceIPs, ip.Unmap())
			}
		}
	}
	return f, nil
}

// Verify compares the kernel to what the last Apply left there.
func (d *Dataplane) Verify(ctx context.Context, r *dataplane.Ruleset) (dataplane.Difference, error) {
	if err := d.kernel.find(ctx); err != nil {
		return dataplane.Difference{}, err
	}
	want, err := d.want(r)
	if err != nil {
		return dataplane.Difference{}, err
	}
	state, err := d.kernel.read(ctx)
	if err != nil {
		return dataplane.Difference{}, err
	}
	return difference(want, state, &scope{prune: r.Prune, refused: d.refused, stuck: d.stuck}), nil
}

// want is what the kernel should hold: what the last Apply planned, or a fresh
// plan where there is none or something has changed since, be it only that an
// interface has a new address.
func (d *Dataplane) want(r *dataplane.Ruleset) (*wanted, error) {
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
