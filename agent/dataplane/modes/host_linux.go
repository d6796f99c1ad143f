package modes

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership/detection"
)

// Options configure the data planes of a node. The zero value is for the node of the calling
// thread.
type Options struct {
	// Variant of iptables to use. Empty: the one that the node uses.
	Variant iptables.Variant
	// ProgramsDirectory is the directory of the programs. Empty: they are looked up in PATH.
	ProgramsDirectory string
	// SysctlDirectory is where sysctls are read and written. Empty: /proc/sys.
	SysctlDirectory string
	// Clock times the waiting of modes. Nil: the real one.
	Clock clock.WithTicker
	// WrapIPVS, if not nil, wraps the kernel of mode IPVS.
	WrapIPVS func(dataplane.Family, ipvs.Kernel) ipvs.Kernel
}

// Node has the data planes of a node, one for each IP family, with all modes. They share programs,
// and know each other's writes.
type Node struct {
	Planes map[dataplane.Family]*Dataplane

	programs *iptables.Programs
	commits  *iptables.Commits
}

// NewNode returns the data planes of a node. It touches nothing yet.
func NewNode(o Options) *Node {
	n := &Node{Planes: map[dataplane.Family]*Dataplane{}, programs: iptables.NewPrograms(o.ProgramsDirectory, o.Variant), commits: &iptables.Commits{}}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		n.Planes[family] = n.newFamily(family, &o)
	}
	return n
}

// newFamily joins the modes of one IP family.
func (n *Node) newFamily(family dataplane.Family, o *Options) *Dataplane {
	rules := iptables.Options{Modes: Declarations(), Programs: n.programs, Commits: n.commits, SysctlDirectory: o.SysctlDirectory}
	kernel := ipvs.NewKernel(family, o.SysctlDirectory)
	if o.WrapIPVS != nil {
		kernel = o.WrapIPVS(family, kernel)
	}
	plane := New(
		Plane{nftables.Declaration(), nftables.New(family, nftables.Options{Modes: Declarations(), Clock: o.Clock, SysctlDirectory: o.SysctlDirectory})},
		Plane{iptables.Declaration(), iptables.New(family, rules)},
		Plane{ipvs.Declaration(), ipvs.New(family, ipvs.Options{
			Kernel: kernel, Rules: iptables.NewFixedRules(ipvs.Declaration(), family, rules), Clock: o.Clock, SysctlDirectory: o.SysctlDirectory,
		})},
	)
	if o.Clock != nil {
		plane.Clock = o.Clock
	}
	return plane
}

// Version returns the version and variant of iptables that the planes use.
func (n *Node) Version() string { return n.programs.Version() }

// Spotter returns the detector of other proxies on the node.
func (n *Node) Spotter() dataplane.Spotter {
	return detection.New(detection.Options{
		Now: time.Now,
		OwnLink: func(name string) bool {
			return slices.ContainsFunc(slices.Collect(maps.Values(n.Planes)), func(d *Dataplane) bool { return d.ownsLink(name) })
		},
		Remove: n.removeCanaries,
	})
}

func (n *Node) removeCanaries(ctx context.Context, canaries []detection.Canary) error {
	for _, c := range canaries {
		variant, tables := iptables.VariantNFT, []string{c.Table}
		if c.Legacy { // reported for one table, but it may be in all
			variant, tables = iptables.VariantLegacy, []string{"mangle", "nat", "filter"}
		}
		if err := n.programs.RemoveChain(ctx, n.commits, c.Family, variant, detection.CanaryChain, tables...); err != nil {
			return err
		}
	}
	return nil
}
