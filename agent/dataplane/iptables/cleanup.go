package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Cleanup removes the jumps from built-in chains, then the chains they led to
// and those of Services, in both variants of iptables. KUBE-FIREWALL stays: the
// kubelet shares it.
func (d *Dataplane) Cleanup(ctx context.Context, _ dataplane.CleanupOptions) error {
	// Whatever Supported says: where IPv6 is switched off, rules from before may be left.
	d.held = nil
	kernels, err := d.kernel.all(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range kernels {
		errs = append(errs, clean(ctx, k))
	}
	return errors.Join(errs...)
}

func clean(ctx context.Context, k kernel) error {
	if err := k.find(ctx); err != nil {
		return err
	}
	state, err := k.read(ctx)
	if err != nil {
		return err
	}
	return cleanState(ctx, k, state, modeIPTables)
}

// cleanState removes what is a mode's, of which the kernel has state.
func cleanState(ctx context.Context, k kernel, state *kernelState, mode owner) error {
	for _, input := range cleanup(state, mode, perCall(k, batchChains)) {
		if err := k.apply(ctx, input); err != nil {
			return fmt.Errorf("remove our jumps and chains: %w", err)
		}
	}
	return nil
}

// cleanup returns the inputs of iptables-restore that remove what is a mode's, with
// at most limit lines for a table each: first the jumps of others, so that all is
// out of force at once, then the rules, by which chains lead to each other, last
// the chains.
func cleanup(k *kernelState, mode owner, limit int) []string {
	var steps [3]map[table][]string
	for i := range steps {
		steps[i] = map[table][]string{}
	}
	for id, c := range k.chains {
		if mode.owns(id) {
			steps[1][id.table] = append(steps[1][id.table], ":"+id.name+" - [0:0]")
			steps[2][id.table] = append(steps[2][id.table], "-X "+id.name)
			continue
		}
		for _, r := range c.rules {
			if target, ok := jumpTarget(r.spec); ok && mode.owns(chainID{id.table, target}) {
				steps[0][id.table] = append(steps[0][id.table], "-D "+id.name+" "+r.spec)
			}
		}
	}
	var inputs []string
	for _, step := range steps {
		for _, in := range []table{filter, nat} {
			slices.Sort(step[in])
			for lines := range slices.Chunk(step[in], limit) {
				inputs = append(inputs, sectionOf(in, lines))
			}
		}
	}
	return inputs
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
		switch word {
		case "--comment":
			t.next() // which may look like an option
		case "-j", "-g":
			return t.value()
		}
	}
	return "", false
}
