package connections

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// place is a network namespace of its own. It is that of a thread, so that it
// goes with the test whatever happens.
type place struct {
	name  string
	steps chan func()
	tid   int
}

// newPlace makes an empty network namespace.
func newPlace(t *testing.T, name string) *place {
	t.Helper()
	p := &place{name: name, steps: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this function
		p.tid = unix.Gettid()
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for step := range p.steps {
			step()
		}
	}()
	t.Cleanup(func() { close(p.steps) })
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	p.must(t, prepare())
	return p
}

// do runs a step in the place.
func (p *place) do(step func()) {
	if p.steps == nil { // the test's own
		step()
		return
	}
	done := make(chan struct{})
	p.steps <- func() { defer close(done); step() }
	<-done
}

func (p *place) must(t *testing.T, steps ...func() error) {
	t.Helper()
	for _, step := range steps {
		var err error
		p.do(func() { err = step() })
		if err != nil {
			t.Fatalf("in %s: %v", p.name, err)
		}
	}
}

func (p *place) path() string { return fmt.Sprintf("/proc/%d/ns/net", p.tid) }

// ip runs the program ip, or ip -6 for a command with IPv6 addresses.
func ip(format string, args ...any) func() error {
	return func() error {
		words := strings.Fields(fmt.Sprintf(format, args...))
		if strings.Contains(strings.Join(words, " "), "::") {
			words = append([]string{"-6"}, words...)
		}
		out, err := exec.Command("ip", words...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(words, " "), err, out)
		}
		return nil
	}
}

// prepare lets a new network namespace forward, whatever the machine's defaults.
func prepare() func() error {
	return func() error {
		for name, value := range map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
			"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
			"ipv4/conf/all/send_redirects": "0", "ipv4/conf/default/send_redirects": "0",
			"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0",
			"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0",
			"ipv6/conf/all/disable_ipv6": "0", "ipv6/conf/default/disable_ipv6": "0",
		} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return ip("link set lo up")()
	}
}

const port = 80

// serve answers on an address by TCP, UDP and, where the kernel can, SCTP: with
// the place's name and the client's address.
func (p *place) serve(t *testing.T, on netip.Addr) {
	t.Helper()
	p.must(t, func() error {
		address := netip.AddrPortFrom(on, port)
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.AcceptTCP()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, p.name+" "+c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().String())
				c.Close()
			}
		}()
		u, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		if err != nil {
			return err
		}
		t.Cleanup(func() { u.Close() })
		go func() {
			for {
				_, from, err := u.ReadFromUDPAddrPort(make([]byte, 16))
				if err != nil {
					return
				}
				_, _ = u.WriteToUDPAddrPort([]byte(p.name+" "+from.Addr().String()), from)
			}
		}()
		return p.serveSCTP(t, address)
	})
}

func (p *place) serveSCTP(t *testing.T, address netip.AddrPort) error {
	fd, err := unix.Socket(domain(address), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	t.Cleanup(func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR) // wakes the accept
		unix.Close(fd)
	})
	if err := unix.Bind(fd, sockaddr(address)); err != nil {
		return err
	}
	if err := unix.Listen(fd, 8); err != nil {
		return err
	}
	go func() {
		for {
			c, from, err := unix.Accept(fd)
			if err != nil {
				return
			}
			_, _ = unix.Write(c, []byte(p.name+" "+peer(from)))
			unix.Close(c)
		}
	}()
	return nil
}

func peer(a unix.Sockaddr) string {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr).String()
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr).String()
	}
	return "?"
}

func domain(a netip.AddrPort) int {
	if a.Addr().Is4() {
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

// dial connects from an address of the place and reads the answer. The error
// wraps syscall.ECONNREFUSED or os.ErrDeadlineExceeded.
func (p *place) dial(protocol string, from netip.Addr, to netip.AddrPort, wait time.Duration) (answer string, err error) {
	p.do(func() {
		if protocol == "sctp" {
			answer, err = dialSCTP(from, to, wait)
			return
		}
		local := net.Addr(net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0)))
		switch {
		case !from.IsValid():
			local = nil
		case protocol == "udp":
			local = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		}
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		d := net.Dialer{LocalAddr: local}
		c, dialErr := d.DialContext(ctx, protocol, to.String())
		if dialErr != nil {
			err = dialErr
			if ctx.Err() != nil {
				err = os.ErrDeadlineExceeded
			}
			return
		}
		defer c.Close()
		if err = c.SetDeadline(time.Now().Add(wait)); err != nil {
			return
		}
		if protocol == "udp" {
			if _, err = c.Write([]byte("x")); err != nil {
				return
			}
		}
		buffer := make([]byte, 128)
		n, readErr := c.Read(buffer)
		answer, err = string(buffer[:n]), readErr
	})
	return answer, err
}

// dialSCTP must run on the thread of the place, so it makes the socket itself.
func dialSCTP(from netip.Addr, to netip.AddrPort, wait time.Duration) (string, error) {
	fd, err := unix.Socket(domain(to), unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(wait))
	for _, option := range []int{unix.SO_SNDTIMEO, unix.SO_RCVTIMEO} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, option, &limit); err != nil {
			return "", err
		}
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0))); err != nil {
		return "", err
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		if errors.Is(err, syscall.EINPROGRESS) || errors.Is(err, syscall.EAGAIN) {
			err = os.ErrDeadlineExceeded
		}
		return "", err
	}
	buffer := make([]byte, 128)
	n, err := unix.Read(fd, buffer)
	return string(buffer[:max(n, 0)]), err
}
