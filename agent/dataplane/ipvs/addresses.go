package ipvs

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// followed is what the node's addresses were last derived to be. It is not
// changed any more.
type followed struct {
	config    *config
	nodePorts dataplane.NodePorts
}

// follow notes what changes of addresses are to be compared to.
func (d *Dataplane) follow(c *config, n *dataplane.Node) {
	nodePorts, err := dataplane.NodePortsOf(d.family, n)
	if err != nil {
		return // newConfig has read the same
	}
	d.followed.Store(&followed{c, nodePorts})
}

// Follow implements dataplane.Observer: it calls changed when NodePorts have to
// answer on other addresses, when an address of a Service has come to or left
// another interface, and when it is time to look at draining real servers.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	var wg sync.WaitGroup
	wg.Go(func() { d.followDrains(ctx, changed) })
	dataplane.FollowEvents(ctx, d.clock, d.subscribe, func() {
		if d.addressesChanged() {
			changed()
		}
	})
	wg.Wait()
}

// subscribe tells of changes of the addresses of other interfaces than
// kube-ipvs0.
func (d *Dataplane) subscribe(done <-chan struct{}) (<-chan struct{}, error) {
	events, err := d.kernel.Events(done)
	if err != nil {
		return nil, err
	}
	out := make(chan struct{})
	go func() {
		defer close(out)
		for e := range events {
			if !e.Device {
				out <- struct{}{}
			}
		}
	}()
	return out, nil
}

// addressesChanged reports whether the node's addresses are others than was last
// planned for. It may be called beside the other methods.
func (d *Dataplane) addressesChanged() bool {
	last := d.followed.Load()
	if last == nil {
		return false
	}
	all, err := d.kernel.Addresses()
	if err != nil {
		return false
	}
	now := config{family: d.family}
	now.setAddresses(last.nodePorts, all)
	return !slices.Equal(now.addresses, last.config.addresses) || !slices.Equal(now.nodePortIPs, last.config.nodePortIPs)
}

// addressWarning says that NodePorts answer nowhere, where a Service has one.
func (d *Dataplane) addressWarning(r *dataplane.Ruleset) string {
	last := d.followed.Load()
	if last == nil || len(last.config.nodePortIPs) > 0 {
		return ""
	}
	where := ""
	if len(last.nodePorts.Ranges) > 0 {
		where = fmt.Sprintf(" inside %v", last.nodePorts.Ranges)
	}
	for _, s := range r.Services {
		if slices.ContainsFunc(s.Ports, func(p dataplane.Port) bool { return p.NodePort != 0 }) {
			return fmt.Sprintf("NodePorts answer on no %s address: no interface of the node has an address%s; see spec.settings.nodePorts", d.family, where)
		}
	}
	return ""
}
