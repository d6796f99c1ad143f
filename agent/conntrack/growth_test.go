package conntrack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
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
		eachServed(s, v1alpha1.ProtocolUDP, func(Filter, dataplane.Destination) {})
	})
}

// TestGrowthOfState: recording and judging a Service takes as long as it has destinations and
// endpoints, and not as their product, however many of its endpoints change.
func TestGrowthOfState(t *testing.T) {
	type given struct {
		before, after *dataplane.Service
		flows         []Flow
	}
	growth.Service(t, func(size growth.Size) given {
		g := given{before: dataplanetest.Sized(size), after: dataplanetest.Sized(size)}
		for i := range g.after.Ports {
			p := &g.after.Ports[i]
			p.Cluster = append(slices.Clone(p.Cluster[1:]), netip.AddrPortFrom(netip.MustParseAddr("10.255.0.1"), p.Port))
		}
		eachServed(g.after, v1alpha1.ProtocolTCP, func(at Filter, d dataplane.Destination) {
			if at.Address.IsValid() {
				g.flows = append(g.flows, Flow{Destination: netip.AddrPortFrom(at.Address, at.Port), ReplySource: d.Port.Cluster[len(d.Port.Cluster)-1]})
			}
		})
		return g
	}, func(g given) {
		s := newState(v1alpha1.ProtocolTCP)
		s.program(g.before.Name, g.before, false)
		s.program(g.after.Name, g.after, false)
		p := s.take()
		for _, f := range g.flows {
			if why := p.judge(f); why != "" {
				t.Fatalf("a flow to %s by %s: %s", f.Destination, f.ReplySource, why)
			}
		}
	})
}
