package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// followed is what the addresses that NodePorts answer on were last derived to
// be. It is not changed any more.
type followed struct {
	config *config
	ips    []netip.Addr
}

// follow notes what changes of addresses are to be compared to.
func (d *Dataplane) follow(c *config) {
	d.followed.Store(&followed{config: c, ips: slices.Clone(c.nodePortIPs)})
}

// Follow implements dataplane.Observer: it calls changed when NodePorts have to
// answer on other addresses. Most changes of addresses, such as those of pods,
// have no such effect.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	dataplane.FollowEvents(ctx, clock.RealClock{}, d.subscribe, func() {
		if d.addressesChanged() {
			changed()
		}
	})
}

// addressesChanged reports whether NodePorts have to answer on other addresses
// than was last planned. It may be called beside the other methods.
func (d *Dataplane) addressesChanged() bool {
	last := d.followed.Load()
	if last == nil || last.config.nodePorts.Ranges == nil {
		return false
	}
	now, err := d.interfaceIPs()
	return err == nil && !slices.Equal(last.ips, last.config.inNodePortRanges(now))
}

// applyAddresses writes the rules that follow from the node's addresses anew if
// those have changed. It reports false if more has changed than that.
func (d *Dataplane) applyAddresses(ctx context.Context, r *dataplane.Ruleset) (bool, error) {
	facts, err := d.facts()
	if err != nil {
		return false, err
	}
	c, err := d.configFor(r, facts)
	if err != nil {
		return false, err
	}
	c.terse = d.held.config.terse // as in any sync that is not full
	d.follow(c)
	same := *c
	same.nodePortIPs = d.held.config.nodePortIPs
	if !reflect.DeepEqual(&same, d.held.config) {
		return false, nil
	}
	old, tail := d.held.config.nodePortTail(), c.nodePortTail()
	if slices.Equal(old, tail) {
		return true, nil
	}
	var t transaction
	t.replaceTail(chainID{nat, chainServices}, old, tail)
	if err := d.write(ctx, &t); err != nil {
		return false, err
	}
	d.held.config = c
	d.rules += len(tail) - len(old)
	return true, nil
}

// addressWarning says that NodePorts answer nowhere, where a Service has one.
func (d *Dataplane) addressWarning(r *dataplane.Ruleset) string {
	c := d.held.config
	if c.nodePorts.Ranges == nil || len(c.nodePortIPs) > 0 {
		return ""
	}
	for _, s := range r.Services {
		if slices.ContainsFunc(s.Ports, func(p dataplane.Port) bool { return p.NodePort != 0 }) {
			return fmt.Sprintf("NodePorts answer on no %s address: no interface of the node has an address inside %v; see spec.settings.nodePorts", d.family, c.nodePorts.Ranges)
		}
	}
	return ""
}
