package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// yieldProtocol marks the routes of addresses that are yielded, which tells them
	// from the kernel's and other programs'.
	yieldProtocol = 78
	// yieldPriority has a route come after the kernel's own of a bound address.
	yieldPriority = 1024
	// loopback is the index of the interface lo.
	loopback = 1
)

// Yield implements Kernel: by a route as the kernel has one for each address of the
// node, but with another source.
func (d *device) Yield(a, source netip.Addr) error {
	host := hostAddress(a)
	err := d.do(func(h *netlink.Handle) error {
		return h.RouteAdd(&netlink.Route{
			Dst: host.IPNet, Src: source.AsSlice(), LinkIndex: loopback, Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL,
			Scope: netlink.SCOPE_HOST, Protocol: yieldProtocol, Priority: yieldPriority,
		})
	})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("keeping the packets to %s while its connections last: %w", a, err)
	}
	return d.Unbind(a)
}

// Reclaim implements Kernel.
func (d *device) Reclaim(but []netip.Addr) error {
	err := d.do(func(h *netlink.Handle) error {
		var routes []netlink.Route
		var err error
		for range dumpTries {
			routes, err = h.RouteListFiltered(int(d.family),
				&netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: yieldProtocol}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
			if !errors.Is(err, netlink.ErrDumpInterrupted) {
				break
			}
		}
		if err != nil {
			return err
		}
		for i := range routes {
			if a, ok := netip.AddrFromSlice(routes[i].Dst.IP); ok && slices.Contains(but, a.Unmap()) {
				continue
			}
			if err := h.RouteDel(&routes[i]); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("removing routes of table local that held connections needed: %w", err)
	}
	return nil
}
