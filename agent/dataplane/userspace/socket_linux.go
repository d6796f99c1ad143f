package userspace

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// originalDst is SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST of netfilter.
	originalDst = 80
	// backlog is limited further by the sysctl net.core.somaxconn.
	backlog = 1 << 16
	// Keepalive finds out that a client or an endpoint has vanished without a word.
	keepaliveIdle, keepaliveInterval, keepaliveProbes = 60, 15, 8 // seconds, seconds, probes
)

// domainOf returns the address family of a socket.
func domainOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// addressOf returns the zero AddrPort for a family that we never use.
func addressOf(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port)) //nolint:gosec // the kernel's
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port)) //nolint:gosec // the kernel's
	}
	return netip.AddrPort{}
}

// socket returns a socket bound to an address. Only of TCP may several have the same one, as the listeners of
// all workers do: the kernel would give two of UDP that allow it the same free port.
func socket(kind int, address netip.AddrPort) (fd int, bound netip.AddrPort, err error) {
	fd, err = unix.Socket(domainOf(address.Addr()), kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, bound, os.NewSyscallError("socket", err)
	}
	err = func() error {
		if kind == unix.SOCK_STREAM {
			if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
				return os.NewSyscallError("setsockopt SO_REUSEPORT", err)
			}
		}
		if err := unix.Bind(fd, sockaddr(address)); err != nil {
			return fmt.Errorf("bind %s: %w", address, err)
		}
		if kind == unix.SOCK_STREAM {
			if err := unix.Listen(fd, backlog); err != nil {
				return os.NewSyscallError("listen", err)
			}
		}
		name, err := unix.Getsockname(fd)
		if err != nil {
			return os.NewSyscallError("getsockname", err)
		}
		bound = addressOf(name)
		return nil
	}()
	if err != nil {
		return -1, bound, errors.Join(err, unix.Close(fd))
	}
	return fd, bound, nil
}

// originalDestination returns where a client has connected before the kernel redirected it.
func originalDestination(fd int, a netip.Addr) (netip.AddrPort, error) {
	if a.Is4() {
		// x/sys has no call for this option; the type is only large enough for it.
		m, err := unix.GetsockoptIPv6Mreq(fd, unix.IPPROTO_IP, originalDst)
		if err != nil {
			return netip.AddrPort{}, os.NewSyscallError("getsockopt SO_ORIGINAL_DST", err)
		}
		raw := (*unix.RawSockaddrInet4)(unsafe.Pointer(m))
		return netip.AddrPortFrom(netip.AddrFrom4(raw.Addr), hostOrder(raw.Port)), nil
	}
	m, err := unix.GetsockoptIPv6MTUInfo(fd, unix.IPPROTO_IPV6, originalDst)
	if err != nil {
		return netip.AddrPort{}, os.NewSyscallError("getsockopt IP6T_SO_ORIGINAL_DST", err)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), hostOrder(m.Addr.Port)), nil
}

// hostOrder converts a port in network byte order.
func hostOrder(port uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&port))
	return uint16(b[0])<<8 | uint16(b[1])
}

// tune sets the options of a connection's socket. That they cannot be set is no reason to lose the
// connection.
func tune(fd int) {
	for _, o := range [...]struct{ level, name, value int }{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepaliveIdle},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepaliveInterval},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepaliveProbes},
	} {
		_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)
	}
}

// reset closes a connection so that its peer sees that it was not served.
func reset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(fd)
}

// errorOf returns the pending error of a socket.
func errorOf(fd int) error {
	number, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return os.NewSyscallError("getsockopt SO_ERROR", err)
	case number != 0:
		return unix.Errno(number)
	}
	return nil
}

// outOfDescriptors reports whether an error means that the process or the node has no file descriptor left.
func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}
