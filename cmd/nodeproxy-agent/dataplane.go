package main

import (
	"fmt"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
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
