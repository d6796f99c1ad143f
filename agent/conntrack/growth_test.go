package conntrack

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// TestGrowth: listing what a Service answers on takes as long as it is large.
func TestGrowth(t *testing.T) {
	growth.Linear(t, 100, func(n int) *dataplane.Service {
		s := service("s", "ip 172.30.0.41 port 53")
		for i := range n {
			var a [4]byte
			binary.BigEndian.PutUint32(a[:], uint32(i)) //nolint:gosec // small
			s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, a[1], a[2], a[3]}))
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.AddrFrom4([4]byte{203, a[1], a[2], a[3]}))
		}
		return s
	}, func(s *dataplane.Service) {
		eachServed(s, v1alpha1.ProtocolUDP, func(Filter, *dataplane.Port) {})
	})
}
