package place

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Target is what a client connects to, and how.
type Target struct {
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string
	// To is the address.
	To netip.AddrPort
	// From is the client's address; the kernel chooses one if it is not valid.
	From netip.Addr
	// Patience is how long a connection, and then each answer, may take.
	Patience time.Duration
}

// Conn is a connection from a place to a server by Serve. It is made by system calls
// alone, so that it is of the place whatever thread goes on with it.
type Conn struct{ fd int }

// Dial opens a connection from the place; by UDP that sends nothing. The error is that
// of the system call, or os.ErrDeadlineExceeded.
func (p *Place) Dial(to Target) (*Conn, error) {
	kind, protocol, family := unix.SOCK_STREAM, 0, unix.AF_INET
	switch to.Protocol {
	case "udp":
		kind = unix.SOCK_DGRAM
	case "sctp":
		protocol = unix.IPPROTO_SCTP
	}
	if to.To.Addr().Is6() {
		family = unix.AF_INET6
	}
	c := &Conn{}
	err := p.Do(func() (err error) {
		c.fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := c.connect(to); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Conn) connect(to Target) error {
	limit := unix.NsecToTimeval(int64(to.Patience))
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} { // once it blocks
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return err
		}
	}
	// Sockets that have ended must not use up the place's ports.
	if err := unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return err
	}
	if to.From.IsValid() {
		if err := unix.Bind(c.fd, sockaddr(netip.AddrPortFrom(to.From, 0))); err != nil {
			return err
		}
	}
	if to.Protocol == "tcp" && to.To.Addr().Is6() {
		// Errors that come while the kernel is at work are kept, as with IPv4.
		if err := unix.SetsockoptInt(c.fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1); err != nil {
			return err
		}
	}
	err := unix.Connect(c.fd, sockaddr(to.To))
	if errors.Is(err, syscall.EINPROGRESS) {
		err = c.connected(time.Now().Add(to.Patience))
	}
	return errors.Join(err, unix.SetNonblock(c.fd, false))
}

// connected waits for a connection. To wait by poll and not in connect shows errors at
// once: an answer to the first SYN comes while connect has the socket, and would be
// lost until the second SYN, a second later.
func (c *Conn) connected(deadline time.Time) error {
	polled := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}} //nolint:gosec // it fits
	err := call(func() error {
		n, err := unix.Poll(polled, int(max(time.Until(deadline), 0).Milliseconds()))
		if err == nil && n == 0 {
			err = os.ErrDeadlineExceeded
		}
		return err
	})
	if err != nil {
		return err
	}
	switch failure, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR); {
	case err != nil:
		return err
	case failure != 0:
		return syscall.Errno(failure)
	}
	return nil
}

// Ask sends a question and returns the server's name and the client's address as the
// server sees it.
func (c *Conn) Ask() (server, client string, err error) {
	if err := call(func() error { _, err := unix.Write(c.fd, []byte("?\n")); return err }); err != nil {
		return "", "", err
	}
	buffer := make([]byte, 128)
	var n int
	if err := call(func() (err error) { n, err = unix.Read(c.fd, buffer); return err }); err != nil {
		return "", "", err
	}
	if n == 0 {
		return "", "", io.ErrUnexpectedEOF
	}
	server, client, _ = strings.Cut(strings.TrimSpace(string(buffer[:n])), " ")
	return server, client, nil
}

// Close ends the connection at once.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Ask asks once by a new connection.
func (p *Place) Ask(to Target) (server, client string, err error) {
	c, err := p.Dial(to)
	if err != nil {
		return "", "", err
	}
	server, client, err = c.Ask()
	return server, client, errors.Join(err, c.Close())
}

// call makes a system call, again when a signal has interrupted it, and states when it
// has taken too long.
func call(f func() error) error {
	for {
		switch err := f(); {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.EAGAIN):
			return os.ErrDeadlineExceeded
		default:
			return err
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
