package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// noteAddresses notes what changes of addresses are to be compared to.
func (d *Dataplane) noteAddresses(c *config, n *dataplane.Node) {
	nodePorts, err := dataplane.NodePortsOf(d.family, n)
	if err != nil {
		return // newConfig has read the same
	}
	d.nodePorts, d.answering = nodePorts, c.nodePortIPs
	both := func(c *config) []netip.Addr { return slices.Concat(c.addresses, []netip.Addr{{}}, c.nodePortIPs) }
	d.addresses.Note(both(c), func(interfaces []netip.Addr) []netip.Addr {
		now := &config{family: d.family}
		now.setAddresses(nodePorts, interfaces)
		return both(now)
	})
}

// Follow implements dataplane.Observer: it calls changed when NodePorts have to
// answer on other addresses, when an address of a Service has come to or left
// another interface, and when it is time to look at draining real servers.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	var wg sync.WaitGroup
	wg.Go(func() { d.followDrains(ctx, changed) })
	d.addresses.Follow(ctx, d.clock, d.subscribe, d.kernel.Addresses, changed)
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
