package sctp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// backlog is how many connections may wait to be accepted.
const backlog = 128

// Listen listens at an address, "IP:port". The network has no meaning: it makes this
// a function as net.Listen is.
func Listen(_, address string) (net.Listener, error) {
	fd, to, err := open(address)
	if err != nil {
		return nil, fmt.Errorf("listening over SCTP: %w", err)
	}
	file := os.NewFile(uintptr(fd), "sctp "+address)
	defer file.Close() // the listener has a file of its own
	if err := unix.Bind(fd, to); err != nil {
		return nil, fmt.Errorf("listening over SCTP at %s: %w", address, err)
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, fmt.Errorf("listening over SCTP at %s: %w", address, err)
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("listening over SCTP at %s: %w", address, err)
	}
	return listener, nil
}

// Dial connects to an address, "IP:port", until a deadline. It stays on the calling
// thread, and with it in its network namespace.
func Dial(address string, deadline time.Time) (net.Conn, error) {
	fd, to, err := open(address)
	if err != nil {
		return nil, fmt.Errorf("connecting over SCTP: %w", err)
	}
	file := os.NewFile(uintptr(fd), "sctp "+address)
	defer file.Close() // the connection has a file of its own
	// A connection that is not there in time is given up by the kernel.
	patience := unix.NsecToTimeval(max(time.Until(deadline), time.Millisecond).Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		return nil, fmt.Errorf("connecting over SCTP to %s: %w", address, err)
	}
	if err := unix.Connect(fd, to); err != nil {
		if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EAGAIN) {
			err = os.ErrDeadlineExceeded
		}
		return nil, fmt.Errorf("connecting over SCTP to %s: %w", address, err)
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("connecting over SCTP to %s: %w", address, err)
	}
	return conn, nil
}

// open makes a socket for an address.
func open(address string) (int, unix.Sockaddr, error) {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return 0, nil, err
	}
	family, to := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(parsed.Port()), Addr: parsed.Addr().As16()})
	if parsed.Addr().Is4() {
		family, to = unix.AF_INET, &unix.SockaddrInet4{Port: int(parsed.Port()), Addr: parsed.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return 0, nil, fmt.Errorf("making a socket: %w", err)
	}
	return fd, to, nil
}

// Available reports whether the kernel has SCTP.
func Available() bool {
	fd, _, err := open("127.0.0.1:0")
	if err != nil {
		return false
	}
	_ = unix.Close(fd) // nothing was done with it
	return true
}
