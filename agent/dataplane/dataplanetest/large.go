package dataplanetest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// Large returns functions that return a Service of a size, by what is large in it.
func Large() map[string]func(size int) *dataplane.Service {
	base := func() *dataplane.Service {
		return &dataplane.Service{
			Name: dataplane.ServiceName{Namespace: "ns", Name: "large"}, ClusterIP: numbered(96, 1), ExternalLocal: true,
			LoadBalancerIPs: []netip.Addr{numbered(97, 1)},
			Ports:           []dataplane.Port{largePort(1)},
		}
	}
	large := map[string]func(int) *dataplane.Service{
		"addresses": func(size int) *dataplane.Service {
			s := base()
			for i := range size {
				s.ExternalIPs = append(s.ExternalIPs, numbered(98, i))
			}
			s.Ports[0].Lost = s.ExternalIPs[:size/2]
			return s
		},
		"addresses of Nodes": func(size int) *dataplane.Service {
			s := base()
			for i := range size {
				s.ExternalIPs = append(s.ExternalIPs, numbered(98, i))
			}
			s.NodeAddresses = s.ExternalIPs
			return s
		},
		"source ranges": func(size int) *dataplane.Service {
			s := base()
			for i := range size {
				s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(numbered(99, i), 32))
			}
			return s
		},
		"ports": func(size int) *dataplane.Service {
			s := base()
			for i := range size {
				s.Ports = append(s.Ports, largePort(i+2))
			}
			return s
		},
		"endpoints": func(size int) *dataplane.Service {
			s := base()
			p := &s.Ports[0]
			p.Cluster = nil
			for i := range size {
				p.Cluster = append(p.Cluster, netip.AddrPortFrom(numbered(1, i), 8080))
			}
			p.Local, p.LocalEndpoints, p.Serving = p.Cluster[:size/2], p.Cluster[:size/2], p.Cluster
			return s
		},
	}
	large["endpoints with session affinity"] = withAffinity(large["endpoints"])
	return large
}

// SizedWithAffinity is Sized with session affinity.
func SizedWithAffinity(size growth.Size) *dataplane.Service { return withAffinity(Sized)(size) }

func withAffinity[Size any](of func(Size) *dataplane.Service) func(Size) *dataplane.Service {
	return func(size Size) *dataplane.Service {
		s := of(size)
		s.AffinitySeconds = 600
		return s
	}
}

// Sized returns a Service of so many ports, external IPs, and endpoints of each port.
func Sized(size growth.Size) *dataplane.Service {
	s := &dataplane.Service{
		Name: dataplane.ServiceName{Namespace: "ns", Name: "sized"}, ClusterIP: numbered(96, 1), ExternalLocal: true,
	}
	for i := range size.Addresses {
		s.ExternalIPs = append(s.ExternalIPs, numbered(98, i))
	}
	for i := range size.Ports {
		p := largePort(i + 1)
		p.Cluster = make([]netip.AddrPort, size.Endpoints)
		for e := range p.Cluster {
			p.Cluster[e] = netip.AddrPortFrom(numbered(1, e), p.Port)
		}
		slices.SortFunc(p.Cluster, func(a, b netip.AddrPort) int { return strings.Compare(a.String(), b.String()) })
		p.Local, p.LocalEndpoints, p.Serving = p.Cluster[:size.Endpoints/2], p.Cluster[:size.Endpoints/2], p.Cluster
		s.Ports = append(s.Ports, p)
	}
	return s
}

func largePort(number int) dataplane.Port {
	one := []netip.AddrPort{netip.AddrPortFrom(numbered(1, 1), 8080)}
	return dataplane.Port{
		Name: fmt.Sprintf("p%d", number), Protocol: v1alpha1.ProtocolTCP, Port: uint16(number), NodePort: uint16(number), //nolint:gosec // small
		Available: true, Cluster: one, Local: one, LocalEndpoints: one, Serving: one,
	}
}

// numbered returns an address of 10.net.0.0/16 or above.
func numbered(net byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, net + byte(i>>16), byte(i >> 8), byte(i)}) //nolint:gosec // parts of a number
}
