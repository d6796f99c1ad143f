package iptables

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Cleanup removes the jumps from built-in chains, then the chains they led to
// and those of Services. KUBE-FIREWALL stays: the kubelet shares it.
func (d *Dataplane) Cleanup(ctx context.Context) error {
	if err := d.kernel.find(ctx); err != nil {
		return err
	}
	state, err := d.kernel.read(ctx)
	if err != nil {
		return err
	}
	d.held = nil
	if err := d.kernel.apply(ctx, cleanup(state)); err != nil {
		return fmt.Errorf("remove our jumps and chains: %w", err)
	}
	return nil
}

// cleanup is the input of iptables-restore that removes what is ours.
func cleanup(k *kernelState) string {
	var out strings.Builder
	for _, in := range []table{filter, nat} {
		var jumps, empty, remove []string
		for id, c := range k.chains {
			switch {
			case id.table != in:
			case isOurs(id):
				empty = append(empty, ":"+id.name+" - [0:0]")
				remove = append(remove, "-X "+id.name)
			default:
				for _, r := range c.rules {
					if target, ok := jumpTarget(r.spec); ok && isOurs(chainID{in, target}) {
						jumps = append(jumps, "-D "+id.name+" "+r.spec)
					}
				}
			}
		}
		if len(jumps)+len(empty) == 0 {
			continue
		}
		slices.Sort(jumps)
		slices.Sort(empty)
		slices.Sort(remove)
		out.WriteString("*" + in.String() + "\n")
		for _, line := range slices.Concat(jumps, empty, remove) {
			out.WriteString(line + "\n")
		}
		out.WriteString("COMMIT\n")
	}
	return out.String()
}

// isOurs reports whether a chain belongs to the proxy alone.
func isOurs(id chainID) bool {
	switch id.name {
	case chainServices, chainNodePorts:
		return true
	case chainPostrouting, chainMarkMasq:
		return id.table == nat
	case chainExternalServices, chainForward, chainProxyFirewall:
		return id.table == filter
	default:
		return id.table == nat && isServiceChain(id.name)
	}
}

// jumpTarget returns the chain that a rule jumps to.
func jumpTarget(spec string) (string, bool) {
	t := tokens{rest: spec}
	for word, ok := t.next(); ok; word, ok = t.next() {
		if word == "-j" || word == "-g" {
			return t.value()
		}
	}
	return "", false
}
