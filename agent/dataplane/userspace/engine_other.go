//go:build !linux

package userspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// connections are proxied by package net. Here no kernel redirects them: they are for the address that
// they arrive at.
type connections struct {
	proxy *Proxy

	mu     sync.Mutex // guards everything below
	open   map[net.Conn]struct{}
	closed bool
	group  sync.WaitGroup
}

// originalDestination is for connections that a kernel has redirected.
func originalDestination(int, netip.Addr) (netip.AddrPort, error) {
	return netip.AddrPort{}, errors.ErrUnsupported
}

func newEngine(p *Proxy, _ int) (*connections, error) {
	return &connections{proxy: p, open: map[net.Conn]struct{}{}}, nil
}

func (e *connections) run(ctx context.Context) error {
	<-ctx.Done()
	e.mu.Lock()
	e.closed = true
	for c := range e.open {
		_ = c.Close()
	}
	e.mu.Unlock()
	e.group.Wait()
	return nil
}

func (e *connections) listen(p *port, by policy, address netip.Addr) (bound netip.AddrPort, end func(), err error) {
	if p.id.protocol == v1alpha1.ProtocolUDP {
		return bound, nil, fmt.Errorf("%w: UDP on this operating system", errors.ErrUnsupported)
	}
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
	if err != nil {
		return bound, nil, err
	}
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			e.group.Go(func() { e.serve(c, by) })
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort(), func() { _ = l.Close() }, nil
}

func (*connections) endUDP() {}

// hold remembers a connection, which ends with the engine.
func (e *connections) hold(c net.Conn) (done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		_ = c.Close()
	}
	e.open[c] = struct{}{}
	return func() {
		_ = c.Close()
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.open, c)
	}
}

// serve serves a connection until both sides have ended it.
func (e *connections) serve(in *net.TCPConn, by policy) {
	defer e.hold(in)()
	p := e.proxy.table.find(v1alpha1.ProtocolTCP, in.LocalAddr().(*net.TCPAddr).AddrPort(), *e.proxy.node.Load())
	if p == nil {
		e.proxy.notRedirected.Add(1)
		_ = in.SetLinger(0)
		return
	}
	if why, ok := e.proxy.admit(p); !ok {
		p.rejected[why].Add(1)
		_ = in.SetLinger(0)
		return
	}
	defer e.proxy.leave(p)
	out := e.connect(p, by, in.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
	if out == nil {
		p.rejected[noEndpoint].Add(1)
		_ = in.SetLinger(0)
		return
	}
	defer e.hold(out)()
	var group sync.WaitGroup
	group.Go(func() { p.toEndpoint.Add(transfer(in, out)) })
	group.Go(func() { p.toClient.Add(transfer(out, in)) })
	group.Wait()
}

// connect connects to the first endpoint that accepts; nil: none did.
func (e *connections) connect(p *port, by policy, client netip.Addr) *net.TCPConn {
	began := e.proxy.clock.Now()
	var tried []*endpoint
	for attempt := range maxAttempts {
		to := p.pick(by, client, tried, e.proxy.clock.Now())
		if to == nil {
			return nil
		}
		if attempt > 0 {
			p.retries.Add(1)
		}
		out, err := net.DialTimeout("tcp", to.address.String(), attemptTime(e.proxy.connectTimeout(), attempt+1))
		if err == nil {
			p.success(to)
			p.connections.Add(1)
			p.observe(int64(e.proxy.clock.Now().Sub(began)))
			return out.(*net.TCPConn)
		}
		p.failure(to, failureOf(err), e.proxy.clock.Now(), &p.counters)
		tried = append(tried, to)
	}
	return nil
}

// transfer copies one direction to its end, and returns how many bytes.
func transfer(from, to *net.TCPConn) int64 {
	n, err := io.Copy(to, from)
	if err != nil {
		_ = to.SetLinger(0)
		_ = to.Close()
		return n
	}
	_ = to.CloseWrite()
	return n
}
