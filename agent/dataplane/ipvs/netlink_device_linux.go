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

// dumpTries bound how often a list is read that changes while it is read.
const dumpTries = 10

// device is kube-ipvs0, and the addresses of the node's interfaces. Its methods
// may be called from several goroutines.
type device struct {
	family uint8

	mu sync.Mutex
	// handle is nil until it is needed, and after an error.
	handle *netlink.Handle
	// link is the device when it was last looked up; nil: not yet.
	link netlink.Link
}

// find makes the kernel load the driver. The request is one that it refuses,
// because no interface may have this hardware address, but only if it has the
// driver whose business that is: so nothing is made.
func (d *device) find() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = deviceName
	attrs.HardwareAddr = net.HardwareAddr{1, 0, 0, 0, 0, 0} // a multicast address
	err := d.do(func(h *netlink.Handle) error { return h.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}) })
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM):
		return unsupported("driver for the device "+deviceName, "load the module dummy (modprobe dummy) on the node, or choose another mode", err)
	case err == nil, errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EEXIST):
		return nil
	default:
		return fmt.Errorf("looking for the driver of the device %s: %w", deviceName, err)
	}
}

// do runs f with an open handle. An error that is no answer of the kernel to the
// request closes it.
func (d *device) do(f func(*netlink.Handle) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.handle == nil {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("opening a netlink socket: %w", err)
		}
		d.handle, d.link = h, nil
	}
	err := f(d.handle)
	var missing netlink.LinkNotFoundError
	if err != nil && !isAnswer(err) && !errors.As(err, &missing) && !errors.Is(err, netlink.ErrDumpInterrupted) {
		d.handle.Close()
		d.handle = nil
	}
	return err
}

// onDevice runs f with the device, which is looked up anew if it is not there any
// more. The error wraps fs.ErrNotExist if there is none.
func (d *device) onDevice(f func(*netlink.Handle, netlink.Link) error) error {
	return d.do(func(h *netlink.Handle) error {
		if d.link != nil {
			if err := f(h, d.link); !errors.Is(err, unix.ENODEV) {
				return err
			}
			d.link = nil // another program has deleted it, and may have made another one
		}
		link, err := d.lookUp(h)
		if err != nil {
			return err
		}
		return f(h, link)
	})
}

// lookUp asks the kernel for the device. The error wraps fs.ErrNotExist if there
// is none.
func (d *device) lookUp(h *netlink.Handle) (netlink.Link, error) {
	link, err := h.LinkByName(deviceName)
	var missing netlink.LinkNotFoundError
	switch {
	case errors.As(err, &missing):
		d.link = nil
		return nil, fmt.Errorf("the device %s: %w", deviceName, fs.ErrNotExist)
	case err != nil:
		return nil, err
	}
	d.link = link
	return link, nil
}

// CreateDevice implements Kernel.
func (d *device) CreateDevice() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = deviceName
	err := d.do(func(h *netlink.Handle) error { return h.LinkAdd(&netlink.Dummy{LinkAttrs: attrs}) })
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EPERM):
		return unsupported("driver for the device "+deviceName, "load the module dummy (modprobe dummy) on the node, or choose another mode", err)
	case err != nil && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("making the device %s: %w", deviceName, err)
	}
	return d.do(func(h *netlink.Handle) error {
		link, err := d.lookUp(h)
		if err != nil {
			return err
		}
		if link.Type() != "dummy" {
			return fmt.Errorf("the device %s is one of type %s, not dummy, so it is not one for Services: delete or rename it (ip link)", deviceName, link.Type())
		}
		return nil
	})
}

// DeleteDevice implements Kernel.
func (d *device) DeleteDevice() error {
	err := d.onDevice(func(h *netlink.Handle, link netlink.Link) error {
		list, err := d.list(h, link, unix.AF_UNSPEC)
		if err != nil || slices.ContainsFunc(list, d.ofOther) {
			return err
		}
		return h.LinkDel(link)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deleting the device %s: %w", deviceName, err)
	}
	return nil
}

// ofOther reports whether an address of kube-ipvs0 is one of the other family that
// another program has put there.
func (d *device) ofOther(a address) bool {
	return a.addr.Is4() != (d.family == unix.AF_INET) && !a.addr.IsLinkLocalUnicast()
}

// Bind implements Kernel.
func (d *device) Bind(a netip.Addr) error {
	err := d.onDevice(func(h *netlink.Handle, link netlink.Link) error { return h.AddrAdd(link, hostAddress(a)) })
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("binding %s to the device %s: %w", a, deviceName, err)
	}
	return nil
}

// Unbind implements Kernel.
func (d *device) Unbind(a netip.Addr) error {
	err := d.onDevice(func(h *netlink.Handle, link netlink.Link) error { return h.AddrDel(link, hostAddress(a)) })
	if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("taking %s off the device %s: %w", a, deviceName, err)
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
		list, err := d.addresses(h, link)
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
		return nil, false, fmt.Errorf("reading the addresses of the device %s: %w", deviceName, err)
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
		list, err := d.addresses(h, nil)
		for _, a := range list {
			if a.link != ours {
				others = append(others, a.addr)
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the addresses of the node's interfaces: %w", err)
	}
	return others, nil
}

// address is one of an interface.
type address struct {
	addr netip.Addr
	link int
}

// addresses reads those of an interface; nil: of all.
func (d *device) addresses(h *netlink.Handle, link netlink.Link) ([]address, error) {
	return d.list(h, link, int(d.family))
}

func (d *device) list(h *netlink.Handle, link netlink.Link, family int) ([]address, error) {
	var list []netlink.Addr
	var err error
	for range dumpTries {
		if list, err = h.AddrList(link, family); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	out := make([]address, 0, len(list))
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			out = append(out, address{addr.Unmap(), a.LinkIndex})
		}
	}
	return out, nil
}

// isAnswer reports whether an error is what the kernel says to a request, and not
// one of the socket.
func isAnswer(err error) bool {
	for _, no := range []unix.Errno{
		unix.EEXIST, unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.EADDRNOTAVAIL, unix.EINVAL, unix.ERANGE,
		unix.EPERM, unix.EACCES, unix.ENOMEM, unix.EBUSY, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.ENOSPC,
	} {
		if errors.Is(err, no) {
			return true
		}
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist)
}
