package dataplane

import (
	"iter"
	"net/netip"
	"slices"
)

// Kind is the kind of a destination.
type Kind string

// Kinds of destinations, in the order of Service.Destinations.
const (
	ClusterIP      Kind = "ClusterIP"
	ExternalIP     Kind = "ExternalIP"
	LoadBalancerIP Kind = "LoadBalancerIP"
	NodePort       Kind = "NodePort"
)

// Destination is where clients reach one port of a Service.
type Destination struct {
	Kind Kind
	// Address is one of the Service's. It is invalid for a NodePort; see NodePorts.
	Address netip.Addr
	// Number is the port number to connect to.
	Number uint16
	// Local: the traffic policy for this destination is Local.
	Local bool
	// Repeated: the Service has the same address as an earlier kind.
	Repeated bool
	Port     *Port
}

// AddrPort is the address with the port number.
func (d *Destination) AddrPort() netip.AddrPort { return netip.AddrPortFrom(d.Address, d.Number) }

// Destinations yields every destination that the Service, which may be nil, serves: for each
// port the cluster IP, external IPs, load-balancer IPs, then the node port. It omits those to
// which other Services have the better claim.
func (s *Service) Destinations() iter.Seq[Destination] {
	return func(yield func(Destination) bool) {
		if s == nil {
			return
		}
		addresses := s.addresses()
		for i := range s.Ports {
			if !s.destinationsOf(&s.Ports[i], addresses, yield) {
				return
			}
		}
	}
}

// DestinationsOf yields the destinations of one port.
func (s *Service) DestinationsOf(p *Port) iter.Seq[Destination] {
	return func(yield func(Destination) bool) { s.destinationsOf(p, s.addresses(), yield) }
}

func (s *Service) destinationsOf(p *Port, addresses []Destination, yield func(Destination) bool) bool {
	for _, d := range addresses {
		if d.Number, d.Port = p.Port, p; p.Serves(d.Address) && !yield(d) {
			return false
		}
	}
	return p.NodePort == 0 || yield(Destination{Kind: NodePort, Number: p.NodePort, Local: s.ExternalLocal, Port: p})
}

// Addresses returns the Service's addresses, without repetition, even if no port is served
// there.
func (s *Service) Addresses() []netip.Addr {
	all := s.addresses()
	out := make([]netip.Addr, 0, len(all))
	for i := range all {
		if !all[i].Repeated {
			out = append(out, all[i].Address)
		}
	}
	return out
}

// addresses returns the destinations of any port, without numbers and node port.
func (s *Service) addresses() []Destination {
	out := make([]Destination, 0, 1+len(s.ExternalIPs)+len(s.LoadBalancerIPs))
	var before Once[netip.Addr]
	add := func(kind Kind, local bool, list ...netip.Addr) {
		for _, a := range list {
			out = append(out, Destination{Kind: kind, Address: a, Local: local, Repeated: !before.First(a)})
		}
	}
	if s.ClusterIP.IsValid() {
		add(ClusterIP, s.InternalLocal, s.ClusterIP)
	}
	add(ExternalIP, s.ExternalLocal, s.ExternalIPs...)
	add(LoadBalancerIP, s.ExternalLocal, s.LoadBalancerIPs...)
	return out
}

// Once tracks which values have been seen, in linear time. It is cheap for few values, as a
// Service usually has.
type Once[T comparable] struct {
	few  []T
	many map[T]struct{}
}

// fewest is the number of values up to which a list is faster.
const fewest = 16

// First reports whether x has not been seen, and notes it.
func (o *Once[T]) First(x T) bool {
	if o.many != nil {
		_, twice := o.many[x]
		o.many[x] = struct{}{}
		return !twice
	}
	if slices.Contains(o.few, x) {
		return false
	}
	o.few = append(o.few, x)
	if len(o.few) > fewest {
		o.many = make(map[T]struct{}, 2*len(o.few))
		for _, y := range o.few {
			o.many[y] = struct{}{}
		}
	}
	return true
}
