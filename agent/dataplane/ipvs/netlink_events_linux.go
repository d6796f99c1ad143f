package ipvs

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Events implements Kernel, by two subscriptions, of which each ends the other.
func (d *device) Events(done <-chan struct{}) (<-chan Event, error) {
	// A subscription ends when this is closed: by done, or by the end of the other.
	over := make(chan struct{})
	var once sync.Once
	end := func() { once.Do(func() { close(over) }) }
	links := make(chan netlink.LinkUpdate)
	if err := netlink.LinkSubscribe(links, over); err != nil {
		return nil, fmt.Errorf("following the device %s: %w", deviceName, err)
	}
	addrs := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(addrs, over); err != nil {
		end()
		for range links { // until it is closed
		}
		return nil, fmt.Errorf("following the addresses of the node's interfaces: %w", err)
	}
	out := make(chan Event)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer end()
		for u := range links {
			if u.Header.Type == unix.RTM_DELLINK && u.Attrs().Name == deviceName {
				d.forget()
				out <- Event{Device: true, Removed: true}
			}
		}
	})
	wg.Go(func() {
		defer end()
		for u := range addrs {
			if e, ours := d.eventOf(u); ours {
				out <- e
			}
		}
	})
	go func() {
		select {
		case <-done:
			end()
		case <-over:
		}
	}()
	go func() {
		wg.Wait()
		close(out)
	}()
	return out, nil
}

// forget makes the device be looked up before it is used next: another one has
// another index.
func (d *device) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.link = nil
}

// eventOf says what an update is about; false: about the other family.
func (d *device) eventOf(u netlink.AddrUpdate) (Event, bool) {
	addr, ok := netip.AddrFromSlice(u.LinkAddress.IP)
	if addr = addr.Unmap(); !ok || addr.Is4() != (d.family == netlink.FAMILY_V4) {
		return Event{}, false
	}
	return Event{Device: u.LinkIndex == d.index(), Addr: addr, Removed: !u.NewAddr}, true
}

// index is that of kube-ipvs0; 0, which no interface has, if there is none.
func (d *device) index() int {
	index := 0
	_ = d.onDevice(func(_ *netlink.Handle, link netlink.Link) error { // then there is none
		index = link.Attrs().Index
		return nil
	})
	return index
}
