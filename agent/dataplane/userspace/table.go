package userspace

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// portID names a port of a Service in one IP family.
type portID struct {
	service  dataplane.ServiceName
	family   dataplane.Family
	protocol v1alpha1.Protocol
	port     uint16
}

// port is a port of a Service that the proxy serves.
type port struct {
	id portID
	balancer
	counters
	// open is how many connections, or UDP clients, it has, used whether it has ever had one.
	open limited
	used atomic.Bool
	// sockets are where what is for it arrives, by policy, and ends close them; zero: nowhere. The Proxy's
	// lock guards them.
	sockets [policies]netip.AddrPort
	ends    [policies]func()
}

// destination is where clients connect. For a node port the address is the family's unspecified one.
type destination struct {
	protocol v1alpha1.Protocol
	address  netip.AddrPort
}

// table finds the port that a connection is for.
type table struct {
	mu           sync.RWMutex // guards everything below
	ports        map[portID]*port
	destinations map[destination]*port
	services     map[serviceID]*entry
	// left are destinations that the table had until queueTime ago, and leaving the same in the order in
	// which they end.
	left    map[destination]former
	leaving []former
}

// queueTime is how long connections to a destination are served that the kernel has redirected before it
// stopped: they wait in the queue of a listener.
const queueTime = time.Second

// former is the port that a destination was of, and until when.
type former struct {
	destination destination
	port        *port
	until       time.Time
}

type serviceID struct {
	name   dataplane.ServiceName
	family dataplane.Family
}

// entry is what the table has of a Service.
type entry struct {
	ports        []*port
	destinations map[destination]*port
}

func newTable() *table {
	return &table{ports: map[portID]*port{}, destinations: map[destination]*port{}, services: map[serviceID]*entry{}, left: map[destination]former{}}
}

// find returns the port that a client has connected to; nil: none that the proxy serves. Node ports are
// those of the node's addresses, and of loopback ones.
func (t *table) find(protocol v1alpha1.Protocol, address netip.AddrPort, node []netip.Addr) *port {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return search(protocol, address, node, func(d destination) *port { return t.destinations[d] })
}

// arrived is find for a connection that the kernel has redirected, perhaps just before it stopped.
func (t *table) arrived(protocol v1alpha1.Protocol, address netip.AddrPort, node []netip.Addr, now time.Time) *port {
	if p := t.find(protocol, address, node); p != nil {
		return p
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return search(protocol, address, node, func(d destination) *port {
		if f := t.left[d]; now.Before(f.until) {
			return f.port
		}
		return nil
	})
}

func search(protocol v1alpha1.Protocol, address netip.AddrPort, node []netip.Addr, among func(destination) *port) *port {
	if p := among(destination{protocol, address}); p != nil {
		return p
	}
	if !address.Addr().IsLoopback() && !slices.Contains(node, address.Addr()) {
		return nil
	}
	return among(destination{protocol, anyAddress(address)})
}

// anyAddress stands for a node port at any address.
func anyAddress(of netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(dataplane.FamilyOf(of.Addr()).Unspecified(), of.Port())
}

// set replaces a Service; nil removes it. It returns the ports it has now and those that are gone.
// A destination belongs to the Service that was set last, until that one changes: claims are decided
// before the table is.
func (t *table) set(id serviceID, s *dataplane.Service, at time.Time) (now, gone []*port) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forget(at)
	next := &entry{destinations: map[destination]*port{}}
	stays := map[*port]bool{}
	for i := range portsOf(s) {
		if s.Ports[i].Protocol == v1alpha1.ProtocolSCTP {
			continue
		}
		p := t.port(id, &s.Ports[i])
		stays[p] = true
		next.ports = append(next.ports, p)
		for d := range s.DestinationsOf(&s.Ports[i]) {
			next.destinations[destinationOf(id.family, &d)] = p
		}
	}
	if before := t.services[id]; before != nil {
		for d, p := range before.destinations {
			if t.destinations[d] == p {
				delete(t.destinations, d)
				f := former{d, p, at.Add(queueTime)}
				t.left[d], t.leaving = f, append(t.leaving, f)
			}
		}
		for _, p := range before.ports {
			if !stays[p] {
				delete(t.ports, p.id)
				gone = append(gone, p)
			}
		}
	}
	for d, p := range next.destinations {
		t.destinations[d] = p
		delete(t.left, d)
	}
	if delete(t.services, id); len(next.ports) > 0 {
		t.services[id] = next
	}
	return next.ports, gone
}

// forget drops what the table has no longer had for queueTime, in time that grows with that alone. The caller
// holds mu.
func (t *table) forget(at time.Time) {
	for len(t.leaving) > 0 && !at.Before(t.leaving[0].until) {
		if f := t.leaving[0]; t.left[f.destination] == f { // else it has returned, or left once more
			delete(t.left, f.destination)
		}
		t.leaving = t.leaving[1:]
	}
	if len(t.leaving) == 0 {
		t.leaving = nil // with its memory
	}
}

// portsOf returns the ports of a Service, which may be nil.
func portsOf(s *dataplane.Service) []dataplane.Port {
	if s == nil {
		return nil
	}
	return s.Ports
}

// port returns the port of a Service, which is a new one if it had none.
func (t *table) port(id serviceID, p *dataplane.Port) *port {
	key := portID{id.name, id.family, p.Protocol, p.Port}
	out := t.ports[key]
	if out == nil {
		out = &port{id: key}
		t.ports[key] = out
	}
	return out
}

func destinationOf(family dataplane.Family, d *dataplane.Destination) destination {
	if d.Kind != dataplane.NodePort {
		return destination{d.Port.Protocol, d.AddrPort()}
	}
	return destination{d.Port.Protocol, netip.AddrPortFrom(family.Unspecified(), d.Number)}
}

// affinityOf is how long a silent client of a Service stays with its endpoint.
func affinityOf(s *dataplane.Service) time.Duration {
	return time.Duration(s.AffinitySeconds) * time.Second
}

// text is number/protocol.
func (id *portID) text() string { return fmt.Sprintf("%d/%s", id.port, id.protocol) }

// all returns all ports, in no order.
func (t *table) all() []*port {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.ports))
}
