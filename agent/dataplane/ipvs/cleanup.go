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
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// CleanupMode implements dataplane.ModeCleaner. The rules of the other mode meet packets first, so
// virtual servers get no new connections; existing ones depend on IPVS alone, so virtual
// servers with connections stay, with their addresses and the rules, until these end, or
// for drainBound since the first call. What there is, it finds in the kernel, as after a
// restart or after kube-proxy.
func (d *Dataplane) CleanupMode(ctx context.Context, r *dataplane.Ruleset) (string, error) {
	d.watched.pause()
	d.forget()
	if err := dataplane.HasFamily(d.family, d.proc, d.sysctl); err != nil || !d.present() {
		return "", nil //nolint:nilerr // then the kernel has nothing of the mode
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
	e, err := d.observeAny()
	if err != nil {
		return "", err
	}
	p := &modeCleanup{Dataplane: d, evidence: e, ctx: ctx, running: r.Mode}
	p.source = p.sourceOf(&r.Node)
	if d.cleanupUntil.IsZero() {
		d.cleanupUntil = d.clock.Now().Add(drainBound)
	}
	for _, step := range []func() error{p.inspect, p.quiesce, p.release} {
		if err := step(); err != nil {
			return "", err
		}
	}
	if len(p.stay) == 0 {
		// Those in excluded ranges stay known: nothing else identifies them as ours any
		// more, and the mode may come back.
		maps.DeleteFunc(d.known, func(k Key, _ dataplane.ServiceName) bool { return !p.config.excluded(k.Addr) })
		clear(d.denied)
		d.cleanupUntil = time.Time{} // another proxy may leave connections again
		return "", p.rest()
	}
	return fmt.Sprintf("%s of %s, such as %s, may continue until %s",
		text.Count(p.connections, "connection"), text.Count(len(p.stay), "virtual server"), slices.MinFunc(p.stay, Key.Compare), d.cleanupUntil.UTC().Format(time.RFC3339)), nil
}

// present reports whether the kernel may have something of this mode. Unlike Kernel.Open it
// loads no module: most nodes never run the mode.
func (d *Dataplane) present() bool {
	if _, err := d.kernel.Sysctl("net/ipv4/vs/expire_nodest_conn"); !errors.Is(err, fs.ErrNotExist) {
		return true // the module is there, or it is unknown
	}
	_, exists, err := d.kernel.Bound()
	return exists || err != nil
}

// modeCleanup is one call of CleanupMode.
type modeCleanup struct {
	*Dataplane
	*evidence
	ctx context.Context //nolint:containedctx // it lives for one call
	// running is the mode that runs now.
	running v1alpha1.ProxyMode
	// own are the virtual servers of the mode, and stay those of them with connections.
	own, stay   []Key
	connections int
	// source becomes the source of the node's own connections; invalid if it has no address
	// of the family.
	source netip.Addr
}

// inspect finds our virtual servers, and those with connections.
func (p *modeCleanup) inspect() error {
	over := !p.clock.Now().Before(p.cleanupUntil)
	for _, k := range slices.SortedFunc(maps.Keys(p.state.servers), Key.Compare) {
		if !p.ours(k) {
			continue
		}
		p.own = append(p.own, k)
		if over {
			continue
		}
		if err := p.ctx.Err(); err != nil {
			return fmt.Errorf("check virtual servers for connections: %w", err)
		}
		reals, err := p.kernel.Reals(k)
		if err != nil {
			return err
		}
		n := 0
		for _, r := range reals {
			n += r.connections()
		}
		if n > 0 {
			p.stay, p.connections = append(p.stay, k), p.connections+n
		}
	}
	return nil
}

// quiesce ends new connections to virtual servers with source ranges. They would get
// packets that the other mode does not translate because of their source, and our rules
// identify the node's processes by a source that is about to be removed.
func (p *modeCleanup) quiesce() error {
	for _, k := range p.own {
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

// release removes addresses from the device, then deletes the virtual servers. All those on
// an address that connections need stay: without them, the node's own servers would get
// the packets that they reject.
func (p *modeCleanup) release() (err error) {
	var needed []netip.Addr
	for _, k := range p.stay {
		if !p.config.onNode(k.Addr) {
			needed = append(needed, k.Addr)
		}
	}
	needed = sortedAddrs(needed)
	for _, a := range slices.SortedFunc(maps.Keys(p.state.bound), netip.Addr.Compare) {
		switch {
		case !slices.Contains(needed, a):
			err = p.kernel.Unbind(a)
		case p.source.IsValid():
			// It stays local, but not as the source of new connections of the node: these
			// belong to the other mode, and would end when the address is removed.
			p.yields = true
			err = p.kernel.Yield(a, p.source)
		}
		if err != nil {
			return err
		}
	}
	if err := p.reclaim(needed); err != nil {
		return err
	}
	for _, k := range p.own {
		if slices.Contains(needed, k.Addr) || slices.Contains(p.stay, k) || p.config.excluded(k.Addr) {
			continue
		}
		if err := p.kernel.DeleteServer(k); err != nil {
			return err
		}
		delete(p.Dataplane.known, k)
	}
	return nil
}

// reclaim undoes Kernel.Yield for all addresses except some.
func (d *Dataplane) reclaim(except []netip.Addr) error {
	if !d.yields {
		return nil
	}
	if err := d.kernel.Reclaim(except); err != nil {
		return err
	}
	d.yields = len(except) > 0
	return nil
}

// sourceOf returns the address for the node's own connections.
func (p *modeCleanup) sourceOf(n *dataplane.Node) netip.Addr {
	for _, a := range slices.Concat(n.Addresses, p.config.addresses) {
		if p.config.onNode(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

// rest removes the device, the rules that protected the node's own servers, and the ipsets
// that these use.
func (p *modeCleanup) rest() error {
	if p.state.device {
		if err := p.removeDevice(); err != nil {
			return err
		}
	}
	if err := p.rules.CleanupMode(p.ctx, p.running); err != nil {
		return err
	}
	if len(p.state.sets) == 0 {
		return nil
	}
	return p.kernel.DeleteSets(slices.Sorted(maps.Keys(p.state.sets)))
}

// Relinquish implements dataplane.Dataplane: another proxy takes over what the mode has.
func (*Dataplane) Relinquish(context.Context, bool) (string, error) { return "", nil }

// Cleanup removes our virtual servers, the rules, the device and the ipsets of the family.
// It identifies our virtual servers by the kernel's state, as after a restart. Others stay,
// and those in ranges that the settings, or o, exclude. Without IPVS there is only the rest
// to remove.
func (d *Dataplane) Cleanup(ctx context.Context, o dataplane.CleanupOptions) error {
	if o.PreservedRanges != nil {
		d.exclude = ofFamily(d.family, o.PreservedRanges)
	}
	d.watched.pause()
	d.forget()
	if !d.present() {
		return d.rules.Cleanup(ctx)
	}
	if missing := d.kernel.Open(); missing != nil {
		return errors.Join(d.rules.Cleanup(ctx), d.cleanWithout(missing))
	}
	e, err := d.observeAny()
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(e.state.servers), Key.Compare) {
		if e.ours(k) && !e.config.excluded(k.Addr) {
			errs = append(errs, d.kernel.DeleteServer(k))
		}
	}
	clear(d.known)
	clear(d.denied)
	if err := errors.Join(errs...); err != nil {
		return err // the rest identifies them as ours
	}
	if err := d.rules.Cleanup(ctx); err != nil {
		return err // they use the ipsets
	}
	return errors.Join(d.removeDevice(), d.reclaim(nil), d.kernel.DeleteSets(SetNames(d.family)))
}

// cleanWithout cleans up a node that lacks something. Without IPVS there may be the device,
// which was created first. Without ipsets and the device nothing would identify our virtual
// servers, so all else is an error, and not one that is ignored because the node lacks the
// mode.
func (d *Dataplane) cleanWithout(missing error) error {
	if !errors.Is(missing, dataplane.ErrUnsupported) {
		return missing
	}
	_, exists, err := d.kernel.Bound()
	_, none := errors.AsType[*NoIPVSError](missing)
	switch {
	case err != nil:
		return err
	case exists && !none:
		return fmt.Errorf("clean up mode IPVS: %v", missing) //nolint:errorlint // see above
	}
	return d.removeDevice()
}

// forget forgets the kernel state.
func (d *Dataplane) forget() {
	d.actual, d.previous, d.conflicts, d.left = nil, nil, conflicts{}, nil
	d.engine.Rejected, d.engine.Preserved = nil, nil
	d.unmanaged = newUnmanaged()
	d.warnings = nil
	clear(d.notes)
	clear(d.schedulers)
	d.forgetDrains()
}

// removeDevice removes the addresses of the family from the device, and deletes that unless
// the other family uses it.
func (d *Dataplane) removeDevice() error {
	bound, exists, err := d.kernel.Bound()
	if err != nil || !exists {
		return err
	}
	for _, a := range bound {
		if err := d.kernel.Unbind(a); err != nil {
			return err
		}
	}
	return d.kernel.DeleteDevice()
}
