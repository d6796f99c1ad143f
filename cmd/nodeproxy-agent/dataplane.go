package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/signs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// variantOf parses the flag --iptables-variant. Empty: any.
func variantOf(flag string) (iptables.Variant, error) {
	switch v := iptables.Variant(flag); v {
	case "auto":
		return "", nil
	case iptables.NFTables, iptables.Legacy:
		return v, nil
	default:
		return "", fmt.Errorf("--iptables-variant %q: unknown; use auto, nf_tables or legacy", flag)
	}
}

// node is the interface to the node.
type node struct {
	planes map[dataplane.Family]dataplane.Dataplane
	// version returns which iptables the planes use.
	version func() string
	spotter dataplane.Spotter
}

// newNode returns the data planes of a node: each mode for each IP family. They share the
// programs, and know each other's writes. It does not access the kernel yet.
func newNode(variant iptables.Variant, sysctlFolder string) node {
	programs := iptables.NewPrograms("", variant)
	commits := &iptables.Commits{}
	options := iptables.Options{Programs: programs, Commits: commits, SysctlFolder: sysctlFolder}
	n := node{planes: map[dataplane.Family]dataplane.Dataplane{}, version: programs.Version}
	var joined []*modes.Dataplane
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		plane := modes.New(map[v1alpha1.ProxyMode]dataplane.Dataplane{
			v1alpha1.ModeIPTables: iptables.New(family, options),
			v1alpha1.ModeIPVS: ipvs.New(family, ipvs.Options{
				Kernel:       ipvs.NewKernel(family, ipvs.KernelOptions{SysctlFolder: sysctlFolder}),
				Rules:        iptables.NewKeeper(family, options),
				SysctlFolder: sysctlFolder,
			}),
		})
		n.planes[family] = plane
		joined = append(joined, plane)
	}
	n.spotter = signs.New(signs.Options{
		Now: time.Now,
		OwnDevice: func() bool {
			for _, plane := range joined {
				if plane.Uses(v1alpha1.ModeIPVS) {
					return true
				}
			}
			return false
		},
		Remove: func(ctx context.Context, canaries []signs.Canary) error {
			return removeCanaries(ctx, programs, commits, canaries)
		},
	})
	return n
}

func removeCanaries(ctx context.Context, programs *iptables.Programs, commits *iptables.Commits, canaries []signs.Canary) error {
	for _, c := range canaries {
		variant, tables := iptables.NFTables, []string{c.Table}
		if c.Legacy { // of which one table stands for all
			variant, tables = iptables.Legacy, []string{"mangle", "nat", "filter"}
		}
		if err := programs.RemoveChain(ctx, commits, c.Family, variant, signs.CanaryChain, tables...); err != nil {
			return err
		}
	}
	return nil
}
