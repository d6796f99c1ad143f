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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ErrNotListening is wrapped by errors about a family in which the proxy listens nowhere.
var ErrNotListening = errors.New("the userspace proxy does not listen")

// errTooMany means that the proxy listens for maxListeners ports of Services.
var errTooMany = fmt.Errorf("the userspace proxy serves %d ports of Services, its limit", maxListeners)

// Options configure a Proxy.
type Options struct {
	// Clock is the real one if nil.
	Clock clock.PassiveClock
	// Limits are those of the default settings if zero.
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
	open          limited // connections and UDP clients
	udp           limited // UDP clients among them
	retained      limited // bytes of first datagrams
	listeners     limited // of TCP
	notRedirected atomic.Int64
	timeout       atomic.Int64 // of the first attempt, in ns
	node          atomic.Pointer[[]netip.Addr]
	newEngine     func(*Proxy) (engine, error)
	interfaces    func() ([]netip.Addr, error) // addresses of the node

	begun chan struct{} // closed when there is an engine
	mu    sync.Mutex    // guards everything below
	// engine is nil until the proxy listens: without a Service it costs nothing.
	engine    engine
	listening map[dataplane.Family]netip.Addr // address of the listeners
	unused    map[serviceID][]func()          // end the listeners of a Service to which the kernel leads no longer
}

// engine accepts connections and joins them with endpoints.
type engine interface {
	// run does so until ctx is done, and then ends all connections.
	run(ctx context.Context) error
	// listen listens at any free port of an address, for what the kernel redirects of a port by a policy,
	// until end.
	listen(p *port, by policy, address netip.Addr) (bound netip.AddrPort, end func(), err error)
	// endUDP ends all UDP clients, whose next datagrams the kernel sends elsewhere.
	endUDP()
}

// New returns a Proxy, which serves nothing until Run.
func New(o Options) *Proxy {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	p := &Proxy{
		clock: o.Clock, original: originalDestination, flows: o.Flows,
		newEngine:  func(p *Proxy) (engine, error) { return newEngine(p, o.Workers) },
		interfaces: dataplane.InterfaceAddresses,
		table:      newTable(), begun: make(chan struct{}), listening: map[dataplane.Family]netip.Addr{}, unused: map[serviceID][]func(){},
	}
	p.Configure(v1alpha1.CompleteSettings(nil).Userspace)
	if o.Limits != (Limits{}) {
		p.SetLimits(o.Limits)
	}
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

// setNode notes where node ports may answer: at these addresses, and those of the node's interfaces, of both
// families.
func (p *Proxy) setNode(addresses []netip.Addr) {
	if own, err := p.interfaces(); err == nil {
		addresses = slices.Concat(addresses, own)
	}
	p.node.Store(&addresses)
}

// Listen sets the addresses of a family's node, at the first of which the proxy listens for the connections of
// what it serves from now on.
func (p *Proxy) Listen(family dataplane.Family, node []netip.Addr) error {
	if len(node) == 0 {
		return fmt.Errorf("%w: the node has no %s address", ErrNotListening, family)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine == nil {
		e, err := p.newEngine(p)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNotListening, err)
		}
		p.engine = e
		close(p.begun)
	}
	p.listening[family] = node[0]
	return nil
}

// Serve serves a Service, nil to remove it, and returns it as the kernel has to serve it from now on.
// Ports that the proxy cannot serve are returned unchanged: the kernel's rules can. Connections that
// exist continue either way.
func (p *Proxy) Serve(family dataplane.Family, name dataplane.ServiceName, s *dataplane.Service) (*dataplane.Service, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, listens := p.listening[family]
	if s != nil && !listens {
		return s, fmt.Errorf("%w for %s", ErrNotListening, family)
	}
	id := serviceID{name, family}
	ports, gone := p.table.set(id, s, p.clock.Now())
	for _, g := range gone {
		p.unused[id] = append(p.unused[id], g.ends[:]...)
	}
	if s == nil {
		return nil, nil
	}
	out := *s
	out.Ports = slices.Clone(s.Ports)
	var errs []error
	next := 0
	for i := range out.Ports {
		if out.Ports[i].Protocol == v1alpha1.ProtocolSCTP {
			continue
		}
		served := ports[next]
		next++
		from := &s.Ports[i]
		served.set([policies][]netip.AddrPort{cluster: p.withoutLoops(from.Protocol, from.Cluster), local: p.withoutLoops(from.Protocol, from.Local)}, from.Serving, affinityOf(s))
		if err := p.redirect(&out.Ports[i], served, at); err != nil {
			errs = append(errs, fmt.Errorf("port %s: %w", served.id.text(), err))
		}
	}
	return &out, errors.Join(errs...)
}

// redirect replaces the endpoints of a port by the proxy's listeners.
func (p *Proxy) redirect(d *dataplane.Port, served *port, at netip.Addr) error {
	listeners, all := [policies][]netip.AddrPort{}, []netip.AddrPort(nil)
	for i, endpoints := range [policies][]netip.AddrPort{cluster: d.Cluster, local: d.Local} {
		if len(endpoints) == 0 {
			continue // the kernel rejects or drops connections
		}
		listener, err := p.listen(served, policy(i), at)
		if err != nil {
			return err
		}
		listeners[i], all = []netip.AddrPort{listener}, append(all, listener)
	}
	d.Cluster, d.Local, d.LocalEndpoints = listeners[cluster], listeners[local], all
	if len(d.Serving) > 0 { // flows that the kernel has begun stay with their endpoints
		d.Serving = slices.Concat(d.Serving, all)
	}
	return nil
}

// listen returns where the kernel redirects what is for a port, at an address of the node. Ports do not share
// one: the kernel takes a client's connections to two Services for the same one if they have the same source
// port, and delays or drops the second one while the first is in TIME_WAIT.
func (p *Proxy) listen(at *port, by policy, address netip.Addr) (netip.AddrPort, error) {
	if at.sockets[by].Addr() == address {
		return at.sockets[by], nil
	}
	tcp := at.id.protocol == v1alpha1.ProtocolTCP
	if tcp && !p.listeners.take(1, maxListeners) {
		return netip.AddrPort{}, errTooMany
	}
	bound, end, err := p.engine.listen(at, by, address)
	if err != nil {
		if tcp {
			p.listeners.give(1)
		}
		return netip.AddrPort{}, fmt.Errorf("listen at %s: %w", address, err)
	}
	if former := at.ends[by]; former != nil {
		of := serviceID{at.id.service, at.id.family}
		p.unused[of] = append(p.unused[of], former)
	}
	if tcp {
		listens := end
		end = func() {
			listens()
			p.listeners.give(1)
		}
	}
	at.sockets[by], at.ends[by] = bound, end
	return bound, nil
}

// Settle ends what the kernel leads to no longer in a family, once it has what Serve has returned, but for
// Services of which it may have something else.
func (p *Proxy) Settle(family dataplane.Family, but sets.Set[dataplane.ServiceName]) {
	p.mu.Lock()
	var unused []func()
	for id, ends := range p.unused {
		if id.family == family && !but.Has(id.name) {
			unused = append(unused, ends...)
			delete(p.unused, id)
		}
	}
	p.mu.Unlock()
	for _, end := range unused {
		if end != nil {
			end()
		}
	}
}

// endUDP ends all UDP clients once the kernel serves their Services.
func (p *Proxy) endUDP() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.engine != nil {
		p.engine.endUDP()
	}
}

// Open is how many connections and UDP clients there are.
func (p *Proxy) Open() int64 { return p.open.n.Load() }

// admit counts a connection; false: there are too many.
func (p *Proxy) admit(to *port) (why rejection, ok bool) {
	to.used.Store(true)
	limits := *p.limits.Load()
	if !p.open.take(1, limits.Connections) {
		return tooManyOfNode, false
	}
	if !to.open.take(1, limits.PerPort) {
		p.open.give(1)
		return tooManyOfPort, false
	}
	return 0, true
}

// admitUDP does the same for a UDP client, of which there may be fewer.
func (p *Proxy) admitUDP(to *port) (why rejection, ok bool) {
	if why, ok = p.admit(to); !ok {
		return why, false
	}
	if to.open.n.Load() > maxUDPPerPort {
		p.leave(to)
		return tooManyOfPort, false
	}
	if !p.udp.take(1, maxUDP) {
		p.leave(to)
		return tooManyOfNode, false
	}
	return 0, true
}

func (p *Proxy) leave(from *port) {
	from.open.give(1)
	p.open.give(1)
}

func (p *Proxy) leaveUDP(from *port) {
	p.leave(from)
	p.udp.give(1)
}

// loops reports whether an endpoint is an address of a Service of the proxy itself.
func (p *Proxy) loops(protocol v1alpha1.Protocol, a netip.AddrPort) bool {
	return p.table.find(protocol, a, *p.node.Load()) != nil
}

// withoutLoops removes such endpoints. Those that become loops later are found when they are tried.
func (p *Proxy) withoutLoops(protocol v1alpha1.Protocol, endpoints []netip.AddrPort) []netip.AddrPort {
	return slices.DeleteFunc(slices.Clone(endpoints), func(a netip.AddrPort) bool { return p.loops(protocol, a) })
}
