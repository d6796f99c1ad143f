package userspace

import (
	"context"
	"net/netip"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// NewModel returns a Proxy that accepts nothing, for models of a kernel that redirects connections to it. Node
// returns the addresses of the node.
func NewModel(node func() []netip.Addr) *Proxy {
	p := New(Options{})
	p.newEngine = func(*Proxy) (engine, error) { return &model{sockets: map[netip.AddrPort]modelSocket{}}, nil }
	p.interfaces = func() ([]netip.Addr, error) { return node(), nil }
	return p
}

// model is an engine that only has addresses.
type model struct {
	mu      sync.Mutex // guards everything below
	last    uint16
	sockets map[netip.AddrPort]modelSocket
}

type modelSocket struct {
	port   *port
	policy policy
}

func (*model) run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (*model) endUDP() {}

func (m *model) listen(p *port, by policy, address netip.Addr) (netip.AddrPort, func(), error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last--
	bound := netip.AddrPortFrom(address, m.last)
	m.sockets[bound] = modelSocket{p, by}
	return bound, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.sockets, bound)
	}, nil
}

// Endpoints returns those among which a model's proxy would choose for a connection to a destination that
// the kernel has redirected; false: it is not one of its listeners.
func (p *Proxy) Endpoints(protocol v1alpha1.Protocol, to, listener netip.AddrPort) ([]netip.AddrPort, bool) {
	of, by := p.at(protocol, to, listener)
	if of == nil {
		return nil, false
	}
	of.used.Store(true)
	of.mu.Lock()
	defer of.mu.Unlock()
	var out []netip.AddrPort
	for _, e := range of.lists[by] {
		out = append(out, e.address)
	}
	return out, true
}

// at returns the port, and the policy, that a redirected connection is for.
func (p *Proxy) at(protocol v1alpha1.Protocol, to, listener netip.AddrPort) (*port, policy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, is := p.engine.(*model)
	if !is {
		return nil, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	socket, listens := m.sockets[listener]
	if !listens || p.table.find(protocol, to, *p.node.Load()) != socket.port {
		return nil, 0
	}
	return socket.port, socket.policy
}
