package iptables

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// subscribe tells of changes of addresses of the family until done is closed or
// the kernel ends the subscription.
func (d *Dataplane) subscribe(done <-chan struct{}) (<-chan struct{}, error) {
	updates := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return nil, fmt.Errorf("follow the addresses of the node's interfaces: %w", err)
	}
	events := make(chan struct{})
	go func() {
		defer close(events)
		for u := range updates {
			if ip, ok := netip.AddrFromSlice(u.LinkAddress.IP); ok && d.family.Of(ip.Unmap()) {
				events <- struct{}{}
			}
		}
	}()
	return events, nil
}
