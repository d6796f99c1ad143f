package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/signs"
)

// variantOf reads the flag --iptables-variant. Empty: any.
func variantOf(flag string) (iptables.Variant, error) {
	switch v := iptables.Variant(flag); v {
	case "auto":
		return "", nil
	case iptables.NFTables, iptables.Legacy:
		return v, nil
	default:
		return "", fmt.Errorf("--iptables-variant %q: not known; give auto, nf_tables or legacy", flag)
	}
}

// node is what the agent uses of its node.
type node struct {
	planes map[dataplane.Family]dataplane.Dataplane
	// version tells which iptables the planes use.
	version func() string
	spotter dataplane.Spotter
}

func newNode(variant iptables.Variant, sysctlFolder string) node {
	programs := iptables.NewPrograms("", variant)
	commits := &iptables.Commits{}
	n := node{planes: map[dataplane.Family]dataplane.Dataplane{}, version: programs.Version}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		n.planes[family] = iptables.New(family, iptables.Options{Programs: programs, Commits: commits, SysctlFolder: sysctlFolder})
	}
	n.spotter = signs.New(signs.Options{Now: time.Now, Remove: func(ctx context.Context, canaries []signs.Canary) error {
		return removeCanaries(ctx, programs, commits, canaries)
	}})
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
