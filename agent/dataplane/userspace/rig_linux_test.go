package userspace

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// patience is how long anything may take.
const patience = 20 * time.Second

var loopback = netip.MustParseAddr("127.0.0.1")

// rig is a proxy that serves one Service. Its clients connect to the listener, and the rig stands in for
// the kernel, which would report their destination.
type rig struct {
	*testing.T
	*Proxy
	served *dataplane.Service // as the kernel serves it
}

// newRig starts a proxy. All connections seem to be to the cluster IP.
func newRig(t *testing.T, o Options, s *dataplane.Service) *rig {
	t.Helper()
	before := descriptors(t)
	p := New(o)
	p.original = func(int, netip.Addr) (netip.AddrPort, error) { return netip.AddrPortFrom(clusterIP, 80), nil }
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if n := p.Open(); n != 0 {
			t.Errorf("%d connections are open after the end", n)
		}
		if n := p.retained.n.Load(); n != 0 {
			t.Errorf("%d bytes are retained after the end", n)
		}
		until(t, "a file descriptor is left", func() bool {
			runtime.GC() // package net has pipes of its own, which go with garbage
			return descriptors(t) <= before
		})
	})
	if err := p.Listen(dataplane.IPv4, []netip.Addr{loopback}); err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, Proxy: p}
	r.serve(s)
	return r
}

func (r *rig) serve(s *dataplane.Service) {
	r.Helper()
	var err error
	if r.served, err = r.Serve(dataplane.IPv4, named("web"), s); err != nil {
		r.Fatal(err)
	}
}

// serving returns a Service of one port with endpoints.
func serving(protocol v1alpha1.Protocol, endpoints ...netip.AddrPort) *dataplane.Service {
	return &dataplane.Service{Name: named("web"), ClusterIP: clusterIP, Ports: []dataplane.Port{
		{Protocol: protocol, Port: 80, Cluster: endpoints, Available: true},
	}}
}

// connect connects to the Service.
func (r *rig) connect() *net.TCPConn {
	r.Helper()
	c, err := r.dial()
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func (r *rig) dial() (*net.TCPConn, error) {
	c, err := net.DialTimeout("tcp", r.served.Ports[0].Cluster[0].String(), patience)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), c.SetDeadline(time.Now().Add(patience))
}

// ask returns the name of the server that answers. A reset may come before or after the connection is there.
func (r *rig) ask() (string, error) {
	r.Helper()
	c, err := r.dial()
	if err != nil {
		return "", err
	}
	defer c.Close()
	name, err := io.ReadAll(c)
	return string(name), err
}

// shares connects so many times and counts the answers of each server. No connection may fail.
func (r *rig) shares(count int) map[string]int {
	r.Helper()
	out := map[string]int{}
	for range count {
		name, err := r.ask()
		if err != nil {
			r.Fatal(err)
		}
		out[name]++
	}
	return out
}

// within calls f in the only worker, between events.
func (r *rig) within(f func(*worker)) {
	r.Helper()
	done := make(chan struct{})
	w := r.engine.(*workers).list[0]
	w.do(func() {
		f(w)
		close(done)
	})
	<-done
}

// statistics returns those of the only port.
func (r *rig) statistics() Statistics {
	r.Helper()
	all := r.Statistics()
	if len(all) != 1 {
		r.Fatalf("%d ports: %+v", len(all), all)
	}
	return all[0]
}

// server accepts connections and calls serve for each.
func server(t *testing.T, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer c.Close()
				serve(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		group.Wait()
	})
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// naming is a server that answers with its name and ends the connection.
func naming(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	return server(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, name) })
}

// rejecting is an address where nothing listens, and nothing else can.
func rejecting(t *testing.T) netip.AddrPort {
	t.Helper()
	_, address := boundSocket(t)
	return address
}

// boundSocket returns a TCP socket that does not listen yet.
func boundSocket(t *testing.T) (int, netip.AddrPort) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(loopback, 0))); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, addressOf(name)
}

// resetting is a server that accepts connections and resets them.
func resetting(t *testing.T) netip.AddrPort {
	t.Helper()
	return server(t, func(c *net.TCPConn) { _ = c.SetLinger(0) })
}

// silent is an address whose packets get no answer: its queue of connections is full.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, address := boundSocket(t)
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		c, err := net.DialTimeout("tcp", address.String(), 100*time.Millisecond)
		if err != nil {
			return address
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	t.Fatal("the queue of connections does not become full")
	return address
}

// until waits for a state.
func until(t *testing.T, otherwise string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(otherwise)
		}
	}
}

// descriptors is how many file descriptors the process has.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// names returns the addresses of so many servers named 1, 2 and so on.
func names(t *testing.T, count int) (out []netip.AddrPort) {
	t.Helper()
	for i := range count {
		out = append(out, naming(t, fmt.Sprint(i+1)))
	}
	return out
}

// Statistics are those of one port of a Service in one IP family since the proxy has served it.
type Statistics struct {
	Service              dataplane.ServiceName
	Family               dataplane.Family
	Port                 string // number/protocol
	Open                 int64
	Connections, Retries int64
	// Rejected are connections that were not served.
	Rejected int64
	// Failures are those of endpoints, by address.
	Failures map[string]int64
}

// Statistics returns those of all ports, in no order.
func (p *Proxy) Statistics() []Statistics {
	var out []Statistics
	for _, one := range p.table.all() {
		s := Statistics{
			Service: one.id.service, Family: one.id.family, Port: one.id.text(),
			Open: one.open.n.Load(), Connections: one.connections.Load(), Retries: one.retries.Load(),
			Failures: one.failuresByEndpoint(),
		}
		for r := range one.rejected {
			s.Rejected += one.rejected[r].Load()
		}
		out = append(out, s)
	}
	return out
}
