package modes

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long an answer may take. The kernel sends a SYN again after a
// second, which is counted.
const patience = 3 * time.Second

// connection is one from a place, by TCP or UDP. It is made by system calls alone,
// so that it is of the place whatever thread goes on with it.
type connection struct {
	fd  int
	udp bool
}

// dial opens a connection from a place; by UDP that sends nothing.
func (p *place) dial(protocol string, to netip.AddrPort) (*connection, error) {
	c := &connection{udp: protocol == "udp"}
	kind := unix.SOCK_STREAM
	if c.udp {
		kind = unix.SOCK_DGRAM
	}
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	var err error
	p.do(func() { c.fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0) })
	if err != nil {
		return nil, err
	}
	limit := unix.NsecToTimeval(int64(patience))
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	// Sockets that have ended must not use up the node's ports.
	if err := unix.SetsockoptLinger(c.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return nil, errors.Join(err, c.close())
	}
	if err := again(func() error { return unix.Connect(c.fd, sockaddr(to)) }); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// again repeats a system call that a signal has interrupted.
func again(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
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

// ask sends a question and returns the server's name and the client's address as
// the server sees it.
func (c *connection) ask() (name, client string, err error) {
	if err := again(func() error { _, err := unix.Write(c.fd, []byte("?\n")); return err }); err != nil {
		return "", "", err
	}
	buffer := make([]byte, 128)
	var n int
	if err := again(func() (err error) { n, err = unix.Read(c.fd, buffer); return err }); err != nil {
		return "", "", err
	}
	if n == 0 {
		return "", "", errors.New("closed")
	}
	name, client, _ = strings.Cut(strings.TrimSpace(string(buffer[:n])), " ")
	return name, client, nil
}

func (c *connection) close() error { return unix.Close(c.fd) }

// request asks once by a new connection.
func (p *place) request(protocol string, to netip.AddrPort) (name, client string, err error) {
	c, err := p.dial(protocol, to)
	if err != nil {
		return "", "", err
	}
	name, client, err = c.ask()
	return name, client, errors.Join(err, c.close())
}
