package ipvs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// dumpTries bounds how often a list is read that changes meanwhile.
	dumpTries = 10
	// yieldProtocol marks the routes of yielded addresses, to distinguish them from those of the
	// kernel and other programs.
	yieldProtocol = 78
	// yieldPriority places a route after the kernel's own for a bound address.
	yieldPriority = 1024
	// loopback is the index of the interface lo.
	loopback = 1
)

// device is kube-ipvs0, and the addresses of the node's interfaces. Its methods are safe for
// concurrent use.
type device struct {
	family uint8

	mu sync.Mutex
	// handle is nil until it is needed, and after an error.
	handle *netlink.Handle
	// link is the device when it was last looked up; nil: not yet.
	link netlink.Link
}

// find makes the kernel load the driver, by a request that the driver must reject: no
// interface may have this hardware address, so it creates nothing.
func (d *device) find() error {
	multicast := net.HardwareAddr{1, 0, 0, 0, 0, 0}
	if err := d.add(multicast); !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	return nil
}

// CreateDevice implements Kernel.
func (d *device) CreateDevice() error {
	if err := d.add(nil); err != nil {
		return err
	}
	return d.do(func(h *netlink.Handle) error {
		link, err := d.lookUp(h)
		if err != nil {
			return err
		}
		if link.Type() != "dummy" {
			return fmt.Errorf("the device %s has type %s, not dummy, and cannot have addresses of Services: delete or rename it (ip link)", deviceName, link.Type())
		}
		return nil
	})
}

// add adds the device; it may exist.
func (d *device) add(address net.HardwareAddr) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = deviceName, address
	err := d.do(func(h *netlink.Handle) error { return h.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}) })
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM):
		return unsupported("driver for the device "+deviceName, "load the module dummy (modprobe dummy) on the node, or choose another mode", err)
	case err != nil && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create the device %s: %w", deviceName, err)
	}
	return nil
}

// do runs f with an open handle. An error that is not the kernel's answer closes it.
func (d *device) do(f func(*netlink.Handle) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handle == nil {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		d.handle, d.link = h, nil
	}
	err := f(d.handle)
	_, missing := errors.AsType[netlink.LinkNotFoundError](err)
	if err != nil && !isAnswer(err) && !missing && !errors.Is(err, netlink.ErrDumpInterrupted) {
		d.handle.Close()
		d.handle = nil
	}
	return err
}

// onDevice runs f with the device, which it looks up again if it has been deleted. The error
// wraps fs.ErrNotExist if it is missing.
func (d *device) onDevice(f func(*netlink.Handle, netlink.Link) error) error {
	return d.do(func(h *netlink.Handle) error {
		if d.link != nil {
			if err := f(h, d.link); !errors.Is(err, unix.ENODEV) {
				return err
			}
			d.link = nil // another program has deleted it, and may have created another one
		}
		link, err := d.lookUp(h)
		if err != nil {
			return err
		}
		return f(h, link)
	})
}

// lookUp asks the kernel for the device. The error wraps fs.ErrNotExist if it is missing.
func (d *device) lookUp(h *netlink.Handle) (netlink.Link, error) {
	link, err := h.LinkByName(deviceName)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		d.link = nil
		return nil, fmt.Errorf("the device %s: %w", deviceName, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	d.link = link
	return link, nil
}

// DeleteDevice implements Kernel.
func (d *device) DeleteDevice() error {
	err := d.onDevice(func(h *netlink.Handle, link netlink.Link) error {
		list, err := list(h, link, unix.AF_UNSPEC)
		ofOther := func(a address) bool { // which a program has added
			return a.addr.Is4() != (d.family == unix.AF_INET) && !a.addr.IsLinkLocalUnicast()
		}
		if err != nil || slices.ContainsFunc(list, ofOther) {
			return err
		}
		return h.LinkDel(link)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete the device %s: %w", deviceName, err)
	}
	return nil
}

// Bind implements Kernel.
func (d *device) Bind(a netip.Addr) error {
	err := d.onDevice(func(h *netlink.Handle, link netlink.Link) error { return h.AddrAdd(link, hostAddress(a)) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("bind %s to the device %s: %w", a, deviceName, err)
	}
	return nil
}

// Unbind implements Kernel.
func (d *device) Unbind(a netip.Addr) error {
	err := d.onDevice(func(h *netlink.Handle, link netlink.Link) error { return h.AddrDel(link, hostAddress(a)) })
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove %s from the device %s: %w", a, deviceName, err)
	}
	return nil
}

func hostAddress(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
}

// Bound implements Kernel.
func (d *device) Bound() (bound []netip.Addr, exists bool, err error) {
	err = d.do(func(h *netlink.Handle) error {
		link, err := d.lookUp(h)
		if err != nil {
			return err
		}
		list, err := list(h, link, int(d.family))
		for _, a := range list {
			if !a.addr.IsLinkLocalUnicast() && !a.addr.IsLoopback() {
				bound = append(bound, a.addr)
			}
		}
		return err
	})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("read the addresses of the device %s: %w", deviceName, err)
	}
	return bound, true, nil
}

// Addresses implements Kernel.
func (d *device) Addresses() ([]netip.Addr, error) {
	var others []netip.Addr
	err := d.do(func(h *netlink.Handle) error {
		ours := 0 // no interface has this index
		link, err := d.lookUp(h)
		switch {
		case err == nil:
			ours = link.Attrs().Index
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
		list, err := list(h, nil, int(d.family))
		for _, a := range list {
			if a.link != ours {
				others = append(others, a.addr)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the node's interfaces: %w", err)
	}
	return others, nil
}

// address is one of an interface.
type address struct {
	addr netip.Addr
	link int
}

// list reads the addresses of an interface; nil: of all.
func list(h *netlink.Handle, link netlink.Link, family int) ([]address, error) {
	all, err := dump(func() ([]netlink.Addr, error) { return h.AddrList(link, family) })
	if err != nil {
		return nil, err
	}
	out := make([]address, 0, len(all))
	for _, a := range all {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			out = append(out, address{addr.Unmap(), a.LinkIndex})
		}
	}
	return out, nil
}

// dump reads a list until it does not change meanwhile.
func dump[T any](read func() ([]T, error)) (list []T, err error) {
	for range dumpTries {
		if list, err = read(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// Yield implements Kernel: by a route like the kernel's for each local address, but with
// another source.
func (d *device) Yield(a, source netip.Addr) error {
	host := hostAddress(a)
	err := d.do(func(h *netlink.Handle) error {
		return h.RouteAdd(&netlink.Route{
			Dst: host.IPNet, Src: source.AsSlice(), LinkIndex: loopback, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL,
			Scope: netlink.SCOPE_HOST, Protocol: yieldProtocol, Priority: yieldPriority,
		})
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add a local route to %s for existing connections: %w", a, err)
	}
	return d.Unbind(a)
}

// Reclaim implements Kernel.
func (d *device) Reclaim(except []netip.Addr) error {
	err := d.do(func(h *netlink.Handle) error {
		ours := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: yieldProtocol}
		routes, err := dump(func() ([]netlink.Route, error) {
			return h.RouteListFiltered(int(d.family), ours, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		})
		if err != nil {
			return err
		}
		for i := range routes {
			if a, ok := netip.AddrFromSlice(routes[i].Dst.IP); ok && slices.Contains(except, a.Unmap()) {
				continue
			}
			if err := h.RouteDel(&routes[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove routes of table local for previous connections: %w", err)
	}
	return nil
}

// Events implements Kernel, by two subscriptions, each of which ends the other.
func (d *device) Events(done <-chan struct{}) (<-chan Event, error) {
	// Closed by done, or by the end of a subscription.
	over := make(chan struct{})
	var once sync.Once
	end := func() { once.Do(func() { close(over) }) }
	links := make(chan netlink.LinkUpdate)
	if err := netlink.LinkSubscribe(links, over); err != nil {
		return nil, fmt.Errorf("subscribe to changes of the device %s: %w", deviceName, err)
	}
	addrs := make(chan netlink.AddrUpdate)
	if err := netlink.AddrSubscribe(addrs, over); err != nil {
		end()
		for range links { // until the library closes it
		}
		return nil, fmt.Errorf("subscribe to changes of addresses: %w", err)
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

// forget makes the next use look up the device: a new one has another index.
func (d *device) forget() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.link = nil
}

// eventOf converts an update; false: it is about the other family.
func (d *device) eventOf(u netlink.AddrUpdate) (Event, bool) {
	addr, ok := netip.AddrFromSlice(u.LinkAddress.IP)
	if addr = addr.Unmap(); !ok || addr.Is4() != (d.family == netlink.FAMILY_V4) {
		return Event{}, false
	}
	return Event{Device: u.LinkIndex == d.index(), Addr: addr, Removed: !u.NewAddr}, true
}

// index returns the index of kube-ipvs0; 0, which no interface has, if it is missing.
func (d *device) index() int {
	index := 0
	_ = d.onDevice(func(_ *netlink.Handle, link netlink.Link) error { // otherwise it is missing
		index = link.Attrs().Index
		return nil
	})
	return index
}
