package ipvs

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Cleanup removes the virtual servers that are ours, the rules, the device and
// the ipsets of the family. It tells by the kernel's state whose virtual servers
// are, as after a restart; those of others stay. Where the node has no IPVS there
// is only the rest to remove.
func (d *Dataplane) Cleanup(ctx context.Context) error {
	d.watched.pause()
	d.forget()
	if !d.present() {
		return d.rules.Cleanup(ctx)
	}
	missing := d.kernel.Open()
	if missing != nil {
		return errors.Join(d.rules.Cleanup(ctx), missing)
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
		if evidence.ours(k) {
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

// forget forgets what the kernel holds.
func (d *Dataplane) forget() {
	d.held, d.former, d.kept, d.failed, d.conflicts, d.contested, d.left = nil, nil, nil, nil, nil, nil, nil
	d.others = newStrangers()
	d.warnings = nil
	clear(d.notes)
	clear(d.schedulers)
	d.forgetDrains()
}

// forgetDrains leaves draining real servers to whoever reads the kernel next.
func (d *Dataplane) forgetDrains() {
	clear(d.leaving)
	d.lookNext(time.Time{})
}

// anyConfig is what tells whose virtual servers are, whatever the settings.
func (d *Dataplane) anyConfig(addresses []netip.Addr) *config {
	c := &config{family: d.family}
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
