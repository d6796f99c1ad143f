package userspace

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// udpServer answers each datagram with its name and the datagram.
func udpServer(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1<<16)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = c.WriteTo(append([]byte(name), b[:n]...), from)
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// udpRejecting is an address where nothing receives datagrams.
func udpRejecting(t *testing.T) netip.AddrPort {
	t.Helper()
	// A connected socket keeps others from the port and takes nothing from strangers.
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 9})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// udpClientOf returns a client of the Service.
func (r *rig) udpClientOf() *net.UDPConn {
	r.Helper()
	c, err := net.Dial("udp4", r.served.Ports[0].Cluster[0].String())
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = c.Close() })
	return c.(*net.UDPConn)
}

// answer sends a datagram and returns the answer.
func answer(t *testing.T, c *net.UDPConn, text string) string {
	t.Helper()
	got, err := answerWithin(c, text, patience)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func answerWithin(c *net.UDPConn, text string, patience time.Duration) (string, error) {
	b := make([]byte, 1<<16)
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	n, err := c.Read(b)
	return string(b[:n]), err
}

func TestUDP(t *testing.T) {
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolUDP, udpServer(t, "1"), udpServer(t, "2")))
	first, second := r.udpClientOf(), r.udpClientOf()
	for range 3 {
		if got := answer(t, first, "a") + answer(t, second, "b"); got != "1a2b" {
			t.Errorf("%q", got)
		}
	}
	large := string(randomBytes(60_000))
	if got := answer(t, first, large); got != "1"+large {
		t.Errorf("%d bytes of %d", len(got), len(large))
	}
	if s := r.statistics(); s.Open != 2 || s.Connections != 2 {
		t.Errorf("%+v", s)
	}
}

func TestUDPRetry(t *testing.T) {
	bad := udpRejecting(t)
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolUDP, bad, udpServer(t, "2")))
	for range 3 {
		if got := answer(t, r.udpClientOf(), "a"); got != "2a" {
			t.Errorf("%q", got)
		}
	}
	if s := r.statistics(); s.Retries != 1 || s.Failures[bad.String()] != 1 || s.Rejected != 0 {
		t.Errorf("%+v", s)
	}
}

func TestUDPNoEndpoint(t *testing.T) {
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolUDP, udpRejecting(t)))
	if got, err := answerWithin(r.udpClientOf(), "a", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
	until(t, "the client stays", func() bool { return r.Open() == 0 && r.statistics().Rejected == 1 })
}

func TestUDPEndpointGone(t *testing.T) {
	one, two := udpServer(t, "1"), udpServer(t, "2")
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolUDP, one))
	c := r.udpClientOf()
	if got := answer(t, c, "a"); got != "1a" {
		t.Errorf("%q", got)
	}
	r.serve(serving(v1alpha1.ProtocolUDP, two))
	if got := answer(t, c, "b"); got != "2b" {
		t.Errorf("after a change: %q", got)
	}
}

func TestUDPIdle(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Now())
	r := newRig(t, Options{Clock: clk, Workers: 1}, serving(v1alpha1.ProtocolUDP, udpServer(t, "1")))
	c, other := r.udpClientOf(), r.udpClientOf()
	step := func(d time.Duration, from *net.UDPConn, open int64) {
		t.Helper()
		clk.SetTime(clk.Now().Add(d))
		answer(t, from, "a") // wakes the worker up
		if got := r.Open(); got != open {
			t.Errorf("%d clients, want %d", got, open)
		}
	}
	step(0, c, 1)
	step(20*time.Second, c, 1) // from now on it counts as a stream
	step(100*time.Second, c, 1)
	step(20*time.Second, other, 2)
	step(20*time.Second, other, 2)
	step(90*time.Second, other, 1) // 130 s after the first client's last one
	step(0, r.udpClientOf(), 2)
	step(30*time.Second, other, 1) // 30 s after the only one of the last client
}

func TestUDPLimit(t *testing.T) {
	r := newRig(t, Options{Limits: Limits{Connections: 100, PerPort: 1}}, serving(v1alpha1.ProtocolUDP, udpServer(t, "1")))
	answer(t, r.udpClientOf(), "a")
	if got, err := answerWithin(r.udpClientOf(), "b", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("beyond the limit: %q, %v", got, err)
	}
	if s := r.statistics(); s.Open != 1 || s.Rejected != 1 {
		t.Errorf("%+v", s)
	}
}

// fakeFlows are flows of a kernel that there is not.
type fakeFlows struct {
	original         func(listener netip.AddrPort) netip.AddrPort
	asked, forgotten atomic.Int64
}

func (f *fakeFlows) Original(_, listener netip.AddrPort) (netip.AddrPort, error) {
	f.asked.Add(1)
	return f.original(listener), nil
}

func (f *fakeFlows) Forget(_, _ netip.AddrPort) error {
	f.forgotten.Add(1)
	return nil
}

func TestUDPEnds(t *testing.T) {
	flows := &fakeFlows{original: func(netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(clusterIP, 80) }}
	r := newRig(t, Options{Flows: flows}, serving(v1alpha1.ProtocolUDP, udpServer(t, "1")))
	answer(t, r.udpClientOf(), "a")
	answer(t, r.udpClientOf(), "a")
	r.endUDP()
	until(t, "clients stay", func() bool { return r.Open() == 0 })
	if n := flows.forgotten.Load(); n != 2 {
		t.Errorf("%d flows are forgotten, want 2", n)
	}
}

// What the kernel has redirected just before it stopped is in the queue of the socket when that ends.
func TestUDPEndsWithDatagramsInItsQueue(t *testing.T) {
	flows := &fakeFlows{original: func(netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(clusterIP, 80) }}
	r := newRig(t, Options{Workers: 1, Flows: flows}, serving(v1alpha1.ProtocolUDP, udpServer(t, "1")))
	c := r.udpClientOf()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	r.within(func(w *worker) { // between two rounds
		if _, err := c.Write([]byte("a")); err != nil {
			t.Error(err)
		}
		r.Proxy.mu.Lock()
		r.table.set(serviceID{r.served.Name, dataplane.IPv4}, nil, w.now)
		r.Proxy.mu.Unlock()
		for _, h := range w.handlers {
			if s, is := h.handler.(*udpSocket); is {
				s.leave(w)
				if s.left(w) {
					t.Error("the socket ends with a client")
				}
			}
		}
	})
	b := make([]byte, 10)
	if n, err := c.Read(b); err != nil || string(b[:n]) != "1a" {
		t.Errorf("%q, %v", b[:n], err)
	}
	until(t, "the client stays", func() bool { return r.Open() == 0 && flows.forgotten.Load() == 1 })
}

// Many clients that begin or end at a time cost others only a part of each round.
func TestUDPFlood(t *testing.T) {
	flows := &fakeFlows{original: func(netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(clusterIP, 80) }}
	r := newRig(t, Options{Workers: 1, Flows: flows}, serving(v1alpha1.ProtocolUDP, udpServer(t, "1")))
	var clients []*net.UDPConn
	for range 3 * requestsAtOnce {
		clients = append(clients, r.udpClientOf())
	}
	socketOf := func(w *worker) *udpSocket {
		for _, h := range w.handlers {
			if s, is := h.handler.(*udpSocket); is {
				return s
			}
		}
		return nil
	}
	var asked, forgotten int64
	r.within(func(w *worker) { // it is between events: what it reads is all of one round
		for _, c := range clients {
			if _, err := c.Write([]byte("a")); err != nil {
				t.Error(err)
			}
		}
		s := socketOf(w)
		s.ready(w, s.fd, unix.EPOLLIN)
		asked = flows.asked.Load()
	})
	for _, c := range clients {
		b := make([]byte, 10)
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Read(b); err != nil || string(b[:n]) != "1a" {
			t.Fatalf("%q, %v", b[:n], err)
		}
	}
	r.within(func(w *worker) {
		w.now, w.requests = w.now.Add(leaveAtLast), 0
		if socketOf(w).left(w) || !w.more {
			t.Error("all clients have ended in one round")
		}
		forgotten = flows.forgotten.Load()
	})
	if asked != requestsAtOnce || forgotten != requestsAtOnce/2 {
		t.Errorf("in a round %d clients began and %d ended", asked, forgotten)
	}
	r.endUDP()
	until(t, "clients stay", func() bool { return r.Open() == 0 })
}

func TestUDPNotRedirected(t *testing.T) {
	var listener netip.AddrPort
	flows := &fakeFlows{original: func(at netip.AddrPort) netip.AddrPort {
		if at == listener {
			return netip.AddrPortFrom(clusterIP, 80)
		}
		return at
	}}
	r := newRig(t, Options{Workers: 1, Flows: flows}, serving(v1alpha1.ProtocolUDP, udpServer(t, "1")))
	if got, err := answerWithin(r.udpClientOf(), "a", 50*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v", got, err)
	}
	if n := r.notRedirected.Load(); n != 1 {
		t.Errorf("%d counted", n)
	}
	r.within(func(*worker) { listener = r.served.Ports[0].Cluster[0] })
	if got := answer(t, r.udpClientOf(), "b"); got != "1b" {
		t.Errorf("%q", got)
	}
}
