package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Cleanup removes the virtual servers that are ours, the rules, the device and
// the ipsets of the family. It tells by the kernel's state whose virtual servers
// are, as after a restart; those of others stay, and those in ranges that settings
// have excluded, or o. Where the node has no IPVS there is only the rest to
// remove.
func (d *Dataplane) Cleanup(ctx context.Context, o dataplane.CleanupOptions) error {
	if o.Exclude != nil {
		d.exclude = ofFamily(d.family, o.Exclude)
	}
	d.watched.pause()
	d.forget()
	if !d.present() {
		return d.rules.Cleanup(ctx)
	}
	if missing := d.kernel.Open(); missing != nil {
		return errors.Join(d.rules.Cleanup(ctx), d.cleanWithout(missing))
	}
	addresses, err := d.kernel.Addresses()
	if err != nil {
		return err
	}
	c := d.anyConfig(addresses)
	state, err := d.read(c)
	if err != nil {
		return err
	}
	evidence, err := d.evidence(c, state)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(state.servers), Key.Compare) {
		if evidence.ours(k) && !c.excluded(k.Addr) {
			errs = append(errs, d.kernel.DeleteServer(k))
		}
	}
	clear(d.known)
	clear(d.denied)
	if err := errors.Join(errs...); err != nil {
		return err // by the rest they are known to be ours
	}
	if err := d.rules.Cleanup(ctx); err != nil {
		return err // they use the ipsets
	}
	return errors.Join(d.removeDevice(state), d.reclaim(nil), d.kernel.DeleteSets(d.setNames(c)))
}

// cleanWithout removes what can be there on a node that lacks something. Without
// IPVS that is the device, which may have been made before. Without the device and
// without ipset nothing would say of a virtual server that it is ours. All else is an
// error, and not one of those that are passed over because the node lacks the mode.
func (d *Dataplane) cleanWithout(missing error) error {
	if !errors.Is(missing, dataplane.ErrUnsupported) {
		return missing
	}
	bound, exists, err := d.kernel.Bound()
	_, none := errors.AsType[*NoIPVSError](missing)
	switch {
	case err != nil:
		return err
	case !exists:
		return nil
	case !none:
		return fmt.Errorf("removing what is of mode IPVS: %v", missing) //nolint:errorlint // see above
	}
	state := &snapshot{device: true, bound: map[netip.Addr]struct{}{}}
	for _, a := range bound {
		state.bound[a] = struct{}{}
	}
	return d.removeDevice(state)
}

// forget forgets what the kernel has.
func (d *Dataplane) forget() {
	d.held, d.former, d.conflicts, d.left = nil, nil, conflicts{}, nil
	d.engine.Rejected, d.engine.Kept = nil, nil
	d.others = newStrangers()
	d.warnings = nil
	clear(d.notes)
	clear(d.schedulers)
	d.forgetDrains()
}

// forgetDrains leaves draining real servers to whoever reads the kernel next.
func (d *Dataplane) forgetDrains() {
	clear(d.draining)
	d.lookNext(time.Time{})
}

// anyConfig is what tells whose virtual servers are, and which of them may be
// deleted, whatever else is set.
func (d *Dataplane) anyConfig(addresses []netip.Addr) *config {
	c := &config{family: d.family, exclude: d.exclude}
	for _, a := range addresses {
		if d.family.Of(a) {
			c.addresses = append(c.addresses, a)
		}
	}
	c.addresses = sortedAddrs(c.addresses)
	return c
}

func (d *Dataplane) setNames(c *config) []SetName {
	var out []SetName
	for _, def := range c.sets() {
		out = append(out, def.Name)
	}
	return out
}

// removeDevice takes the addresses of the family off the device, and deletes that
// unless the other family uses it.
func (d *Dataplane) removeDevice(state *snapshot) error {
	if !state.device {
		return nil
	}
	for a := range state.bound {
		if err := d.kernel.Unbind(a); err != nil {
			return err
		}
	}
	return d.kernel.DeleteDevice()
}
