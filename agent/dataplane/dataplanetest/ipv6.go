package dataplanetest

import (
	"net/netip"
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// InIPv6 gives a Service an address of IPv6 for each that it has.
func InIPv6(s *dataplane.Service) {
	six := func(ip netip.Addr) netip.Addr {
		out, four := netip.MustParseAddr("2001:db8:46::").As16(), ip.As4()
		copy(out[12:], four[:])
		return netip.AddrFrom16(out)
	}
	s.ClusterIP = six(s.ClusterIP)
	for _, list := range [][]netip.Addr{s.ExternalIPs, s.LoadBalancerIPs} {
		for i := range list {
			list[i] = six(list[i])
		}
	}
	for i, r := range s.SourceRanges {
		s.SourceRanges[i] = netip.PrefixFrom(six(r.Addr()), 96+r.Bits())
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Local = slices.Clone(p.Local) // it may share the memory of the other list
		for _, list := range [][]netip.AddrPort{p.Cluster, p.Local, p.LocalEndpoints} {
			for j := range list {
				list[j] = netip.AddrPortFrom(six(list[j].Addr()), list[j].Port())
			}
		}
	}
}
