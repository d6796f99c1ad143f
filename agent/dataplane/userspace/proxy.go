package userspace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// DefaultConnectTimeout is how long the first endpoint may take to accept a connection.
const DefaultConnectTimeout = 250 * time.Millisecond

// ErrNotListening is wrapped by errors about a family in which the proxy listens nowhere.
var ErrNotListening = errors.New("the userspace proxy does not listen")

// Options configure a Proxy.
type Options struct {
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	// Limits are DefaultLimits if zero.
	Limits Limits
	// Flows are the kernel's flows of UDP. Nil: all who reach a listener are served.
	Flows Flows
	// Workers is how many processors it may use. 0: all.
	Workers int
}

// Flows are the kernel's flows of UDP that it redirects.
type Flows interface {
	// Original returns where a client has sent its datagrams that arrive at a listener.
	Original(client, listener netip.AddrPort) (netip.AddrPort, error)
	// Forget has the client's next datagram begin a new flow.
	Forget(client, listener netip.AddrPort) error
}

// Proxy serves Services in user space. Its methods are safe for concurrent use, except Listen, Serve and
// Settle, which belong to one caller.
type Proxy struct {
	clock         clock.PassiveClock
	limits        atomic.Pointer[Limits]
	original      func(fd int, client netip.Addr) (netip.AddrPort, error) // destination of TCP
	flows         Flows                                                   // of UDP; nil: not known
	table         *table
	open          limited // connections and clients of UDP
	retained      limited // bytes of first datagrams
	notRedirected atomic.Int64
	timeout       atomic.Int64 // of the first attempt, in ns
	node          atomic.Pointer[[]netip.Addr]
	newEngine     func(*Proxy) (engine, error)

	begun chan struct{} // closed when there is an engine
	mu    sync.Mutex    // guards everything below
	// engine is nil until the proxy listens: without a Service it costs nothing.
	engine    engine
	listening map[dataplane.Family]*listening
	unused    []func() // end what the kernel leads to no longer
}

// engine accepts connections and joins them with endpoints.
type engine interface {
	// run does so until ctx is done, and then ends all connections.
	run(ctx context.Context) error
	// listen listens at any free port of an address, for the connections that the kernel redirects
	// by a policy, until end.
	listen(address netip.Addr, by policy) (bound netip.AddrPort, end func(), err error)
	// listenUDP does the same for the datagrams of one port.
	listenUDP(p *port, by policy, address netip.Addr) (bound netip.AddrPort, end func(), err error)
	// endUDP ends all clients of UDP, whose next datagrams the kernel sends elsewhere.
	endUDP()
}

// listening is where the proxy listens in one family.
type listening struct {
	address netip.Addr
	tcp     [policies]netip.AddrPort
	ends    []func() // end that
}

// New returns a Proxy, which serves nothing until Run.
func New(o Options) *Proxy {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Limits == (Limits{}) {
		o.Limits = DefaultLimits()
	}
	p := &Proxy{
		clock: o.Clock, original: originalDestination, flows: o.Flows,
		newEngine: func(p *Proxy) (engine, error) { return newEngine(p, o.Workers) },
		table:     newTable(), begun: make(chan struct{}), listening: map[dataplane.Family]*listening{},
	}
	p.SetConnectTimeout(DefaultConnectTimeout)
	p.SetLimits(o.Limits)
	p.node.Store(&[]netip.Addr{})
	return p
}

// Run serves until ctx is done, and then ends all connections.
func (p *Proxy) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.begun:
		return p.engine.run(ctx)
	}
}

// Collector returns the metrics.
func (p *Proxy) Collector() prometheus.Collector { return collector{p} }

// SetConnectTimeout sets how long the first endpoint may take to accept a connection. Each further one may
// take twice as long, but no longer than 2 s unless the first one may.
func (p *Proxy) SetConnectTimeout(t time.Duration) { p.timeout.Store(int64(t)) }

// SetLimits sets how many connections there may be from now on. Those that exist continue.
func (p *Proxy) SetLimits(l Limits) { p.limits.Store(&l) }

func (p *Proxy) connectTimeout() time.Duration { return time.Duration(p.timeout.Load()) }

// Listen has the proxy listen at an address of the node, where the kernel can redirect connections of
// one family. The node's other addresses are where node ports answer. An earlier address is left with Settle.
func (p *Proxy) Listen(family dataplane.Family, node []netip.Addr) error {
	if len(node) == 0 {
		return fmt.Errorf("%w: the node has no %s address", ErrNotListening, family)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(*p.node.Load()), family.Of)
	all := slices.Concat(others, node)
	p.node.Store(&all)
	former := p.listening[family]
	if former != nil && former.address == node[0] {
		return nil
	}
	if p.engine == nil {
		e, err := p.newEngine(p)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotListening, err)
		}
		p.engine = e
		close(p.begun)
	}
	next := &listening{address: node[0]}
	for i := range policies {
		bound, end, err := p.engine.listen(node[0], i)
		if err != nil {
			for _, end := range next.ends {
				end()
			}
			return fmt.Errorf("%w at %s: %w", ErrNotListening, node[0], err)
		}
		next.tcp[i], next.ends = bound, append(next.ends, end)
	}
	if former != nil {
		p.unused = append(p.unused, former.ends...)
	}
	p.listening[family] = next
	return nil
}

// Serve serves a Service, nil to remove it, and returns it as the kernel has to serve it from now on.
// Ports that the proxy cannot serve are returned unchanged: the kernel's rules can. Connections that
// exist continue either way.
func (p *Proxy) Serve(family dataplane.Family, name dataplane.ServiceName, s *dataplane.Service) (*dataplane.Service, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := p.listening[family]
	if s != nil && at == nil {
		return s, fmt.Errorf("%w for %s", ErrNotListening, family)
	}
	ports, gone := p.table.set(serviceID{name, family}, s)
	for _, g := range gone {
		p.unused = append(p.unused, g.ends[:]...)
	}
	if s == nil {
		return nil, nil
	}
	out := *s
	out.Ports = slices.Clone(s.Ports)
	out.AffinitySeconds = 0 // it is the proxy's
	var errs []error
	next := 0
	for i := range out.Ports {
		if out.Ports[i].Protocol == v1alpha1.ProtocolSCTP {
			continue
		}
		served := ports[next]
		next++
		served.set([policies][]netip.AddrPort{cluster: s.Ports[i].Cluster, local: s.Ports[i].Local}, affinityOf(s))
		if err := p.redirect(&out.Ports[i], served, at); err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", served.id.text(), err))
		}
	}
	return &out, errors.Join(errs...)
}

// redirect replaces the endpoints of a port by the proxy's listeners.
func (p *Proxy) redirect(d *dataplane.Port, served *port, at *listening) error {
	var listeners []netip.AddrPort
	for i, endpoints := range [policies]*[]netip.AddrPort{cluster: &d.Cluster, local: &d.Local} {
		if len(*endpoints) == 0 {
			continue // the kernel rejects or drops connections
		}
		listener := at.tcp[i]
		if d.Protocol == v1alpha1.ProtocolUDP {
			var err error
			if listener, err = p.listenUDP(served, policy(i), at.address); err != nil {
				return err
			}
		}
		listeners = append(listeners, listener)
		*endpoints = slices.Clip(listeners[len(listeners)-1:])
	}
	d.LocalEndpoints = listeners
	if len(d.Serving) > 0 { // flows that the kernel has begun stay with their endpoints
		d.Serving = slices.Concat(d.Serving, listeners)
	}
	return nil
}

// listenUDP returns where the datagrams of a port arrive, at an address of the node.
func (p *Proxy) listenUDP(at *port, by policy, address netip.Addr) (netip.AddrPort, error) {
	if at.sockets[by].Addr() == address {
		return at.sockets[by], nil
	}
	bound, end, err := p.engine.listenUDP(at, by, address)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if former := at.ends[by]; former != nil {
		p.unused = append(p.unused, former)
	}
	at.sockets[by], at.ends[by] = bound, end
	return bound, nil
}

// Settle ends what the kernel leads to no longer, once it has what Serve has returned.
func (p *Proxy) Settle() {
	p.mu.Lock()
	unused := p.unused
	p.unused = nil
	p.mu.Unlock()
	for _, end := range unused {
		if end != nil {
			end()
		}
	}
}

// endUDP ends all clients of UDP once the kernel serves their Services.
func (p *Proxy) endUDP() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine != nil {
		p.engine.endUDP()
	}
}

// Open is how many connections and clients of UDP there are.
func (p *Proxy) Open() int64 { return p.open.n.Load() }

// admit counts a connection; false: there are too many.
func (p *Proxy) admit(to *port) (why rejection, ok bool) {
	limits := p.limits.Load()
	if !p.open.take(1, limits.Connections) {
		return tooManyOfNode, false
	}
	if !to.open.take(1, limits.PerPort) {
		p.open.give(1)
		return tooManyOfPort, false
	}
	return 0, true
}

func (p *Proxy) leave(from *port) {
	from.open.give(1)
	p.open.give(1)
}

// pick returns the endpoint to try next; nil: there is none. An endpoint that is an address of a Service
// of the proxy itself would be a loop.
func (p *Proxy) pick(of *port, by policy, client netip.Addr, tried []*endpoint, now time.Time) *endpoint {
	tried = slices.Clip(tried)
	for {
		e := of.pick(by, client, tried, now)
		if e == nil || !p.table.serves(of.id.protocol, e.address, *p.node.Load()) {
			return e
		}
		of.failure(e, now)
		tried = append(tried, e)
	}
}
