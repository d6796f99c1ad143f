package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Retire implements dataplane.Retirer. New connections do not come to virtual
// servers any more, because the rules of the other mode meet their packets first;
// those that are held go on by IPVS alone. So virtual servers with connections
// stay, with their addresses and the rules, until those have ended, or for
// drainBound since this was first called. It tells by the kernel's state what there
// is, as after a restart, or after kube-proxy.
func (d *Dataplane) Retire(ctx context.Context, r *dataplane.Ruleset) (string, error) {
	d.watched.pause()
	d.forget()
	if err := dataplane.HasFamily(d.family, d.proc, d.sysctl); err != nil {
		return "", nil //nolint:nilerr // then there is nothing of it
	}
	if !d.present() {
		return "", nil
	}
	switch err := d.kernel.Open(); {
	case errors.Is(err, dataplane.ErrUnsupported):
		return "", nil // likewise
	case err != nil:
		return "", err
	}
	exclude, err := excludedBy(d.family, r.Node.Settings.IPVS.ExcludeCIDRs)
	if err != nil {
		return "", err
	}
	d.exclude = exclude
	addresses, err := d.kernel.Addresses()
	if err != nil {
		return "", err
	}
	p := &retirement{Dataplane: d, ctx: ctx, config: d.anyConfig(addresses)}
	if p.state, err = d.read(p.config); err != nil {
		return "", err
	}
	p.source = p.sourceOf(&r.Node)
	if d.retireUntil.IsZero() {
		d.retireUntil = d.clock.Now().Add(drainBound)
	}
	if err := p.look(); err != nil {
		return "", err
	}
	if err := p.quiesce(); err != nil {
		return "", err
	}
	if err := p.release(); err != nil {
		return "", err
	}
	if len(p.stay) == 0 {
		// Those in excluded ranges stay known: nothing else says any more that they
		// are ours, and the mode may come back.
		maps.DeleteFunc(d.known, func(k Key, _ dataplane.ServiceName) bool { return !p.config.excluded(k.Addr) })
		clear(d.denied)
		d.retireUntil = time.Time{} // another proxy may leave connections again
		return "", p.rest()
	}
	return fmt.Sprintf("%d connections by %d virtual servers, such as %s, are waited for until %s",
		p.connections, len(p.stay), slices.MinFunc(p.stay, Key.Compare), d.retireUntil.UTC().Format(time.RFC3339)), nil
}

// present reports whether the kernel may have something of this mode. Unlike
// Kernel.Open this has no module be loaded: most nodes never run the mode.
func (d *Dataplane) present() bool {
	if _, err := d.kernel.Sysctl("net/ipv4/vs/expire_nodest_conn"); !errors.Is(err, fs.ErrNotExist) {
		return true // the module is there, or it cannot be told
	}
	_, exists, err := d.kernel.Bound()
	return exists || err != nil
}

// retirement is one call of Retire.
type retirement struct {
	*Dataplane
	ctx    context.Context //nolint:containedctx // it lives for one call
	config *config
	state  *snapshot
	// ours are the virtual servers of the mode, and stay those of them with
	// connections that are waited for.
	ours, stay  []Key
	connections int
	// source is what the node's own connections are to have as their source; invalid
	// if it has no address of the family.
	source netip.Addr
}

// look looks which virtual servers of ours have connections that are waited for.
func (p *retirement) look() error {
	over := !p.clock.Now().Before(p.retireUntil)
	evidence, err := p.evidence(p.config, p.state)
	if err != nil {
		return err
	}
	for _, k := range slices.SortedFunc(maps.Keys(p.state.servers), Key.Compare) {
		if !evidence.ours(k) {
			continue
		}
		p.ours = append(p.ours, k)
		if over {
			continue
		}
		if err := p.ctx.Err(); err != nil {
			return fmt.Errorf("look at virtual servers: %w", err)
		}
		reals, err := p.kernel.Reals(k)
		if err != nil {
			return err
		}
		n := 0
		for _, r := range reals {
			n += r.Active + r.Inactive
		}
		if n > 0 {
			p.stay, p.connections = append(p.stay, k), p.connections+n
		}
	}
	return nil
}

// quiesce lets virtual servers with source ranges take no new connections. What the
// other mode does not translate, because it comes from elsewhere, would come to
// them, and rules here know a process of the node by a source that is about to go.
func (p *retirement) quiesce() error {
	for _, k := range p.ours {
		if !p.state.has(p.config.set(setLoadBalancerFW), keyEntry(k)) {
			continue
		}
		reals, err := p.kernel.Reals(k)
		if err != nil {
			return err
		}
		for real, r := range reals {
			if r.Weight == 0 {
				continue
			}
			if err := p.kernel.ChangeReal(k, real, 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// release takes the addresses off the device, then deletes the virtual servers.
// Those on an address that connections need stay as well: what they did not refuse
// any more would come to the node's own servers.
func (p *retirement) release() error {
	var needed []netip.Addr
	for _, k := range p.stay {
		if !p.config.onNode(k.Addr) {
			needed = append(needed, k.Addr)
		}
	}
	needed = sortedAddrs(needed)
	for _, a := range slices.SortedFunc(maps.Keys(p.state.bound), netip.Addr.Compare) {
		if err := p.takeOff(a, slices.Contains(needed, a)); err != nil {
			return err
		}
	}
	if err := p.reclaim(needed); err != nil {
		return err
	}
	for _, k := range p.ours {
		if slices.Contains(needed, k.Addr) || slices.Contains(p.stay, k) || p.config.excluded(k.Addr) {
			continue
		}
		if err := p.kernel.DeleteServer(k); err != nil {
			return err
		}
		delete(p.known, k)
	}
	return nil
}

// takeOff takes an address off the device. Connections that are held may need it
// on. New ones of the node itself must not get it as their source then: they are
// the other mode's, and would end with it.
func (p *retirement) takeOff(a netip.Addr, needed bool) error {
	if !needed {
		return p.kernel.Unbind(a)
	}
	if !p.source.IsValid() {
		return nil
	}
	p.yields = true
	return p.kernel.Yield(a, p.source)
}

// reclaim ends the yielding of addresses but for some.
func (d *Dataplane) reclaim(but []netip.Addr) error {
	if !d.yields {
		return nil
	}
	if err := d.kernel.Reclaim(but); err != nil {
		return err
	}
	d.yields = len(but) > 0
	return nil
}

// sourceOf is the address that the node's own connections are to have.
func (p *retirement) sourceOf(n *dataplane.Node) netip.Addr {
	for _, a := range slices.Concat(n.Addresses, p.config.addresses) {
		if p.config.onNode(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

// rest removes the device, the rules that kept the node's own servers from being
// reached by its addresses, and the ipsets that they ask.
func (p *retirement) rest() error {
	if err := p.removeDevice(p.state); err != nil {
		return err
	}
	if err := p.rules.Retire(p.ctx); err != nil {
		return err
	}
	if len(p.state.sets) == 0 {
		return nil
	}
	return p.kernel.DeleteSets(slices.Sorted(maps.Keys(p.state.sets)))
}
