package place

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/sctp"
)

// Serve answers at an address of the place by TCP, UDP and, where the kernel can, SCTP:
// each line or datagram with the place's name and the client's address.
func (p *Place) Serve(t *testing.T, at netip.AddrPort) {
	t.Helper()
	var listeners []net.Listener
	var u *net.UDPConn
	err := p.Do(func() error {
		l, err := listen(at)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		if sctp.Available() {
			if l, err = sctp.Listen("sctp", at.String()); err != nil {
				return err
			}
			listeners = append(listeners, l)
		}
		u, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	open := &closers{}
	t.Cleanup(open.close)
	for _, l := range listeners {
		open.add(l)
		go p.accept(l, open)
	}
	if err != nil {
		t.Fatalf("serving at %s in %s: %v", at, p.Name, err)
	}
	open.add(u)
	go p.answerDatagrams(u)
}

// listen listens at an address that may just have been added: even without duplicate address
// detection, an IPv6 address is tentative for a moment.
func listen(at netip.AddrPort) (net.Listener, error) {
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
		l, err := net.Listen("tcp", at.String())
		if !errors.Is(err, unix.EADDRNOTAVAIL) || time.Now().After(deadline) {
			return l, err
		}
	}
}

// accept serves connections until the listener is closed.
func (p *Place) accept(l net.Listener, open *closers) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		open.add(c)
		go func() {
			defer open.remove(c)
			for lines := bufio.NewScanner(c); lines.Scan(); {
				if _, err := io.WriteString(c, p.answer(c.RemoteAddr())); err != nil {
					return
				}
			}
		}()
	}
}

func (p *Place) answerDatagrams(u *net.UDPConn) {
	for {
		_, from, err := u.ReadFrom(make([]byte, 16))
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			_, _ = u.WriteTo([]byte(p.answer(from)), from) // a client without an answer reports it
		}
	}
}

// answer is what a client gets.
func (p *Place) answer(client net.Addr) string {
	from := netip.MustParseAddrPort(client.String()) // of a kind that the net package has made
	return p.Name + " " + from.Addr().Unmap().String() + "\n"
}

// closers are what has to be closed at the end.
type closers struct {
	mu   sync.Mutex // guards open
	open map[io.Closer]struct{}
	done bool
}

// add takes one in, and closes it when the end has come already.
func (c *closers) add(one io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done {
		_ = one.Close() // nothing is lost by that
		return
	}
	if c.open == nil {
		c.open = map[io.Closer]struct{}{}
	}
	c.open[one] = struct{}{}
}

// remove closes one before the end.
func (c *closers) remove(one io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, one)
	_ = one.Close() // nothing is lost by that
}

func (c *closers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = true
	for one := range c.open {
		_ = one.Close() // nothing is lost by that
	}
}
