package iptables

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// idleKernel takes everything and does nothing, so that only planning and
// comparing are measured.
type idleKernel struct{ *fakeKernel }

func (idleKernel) apply(context.Context, string) error { return nil }

// benchService has ten endpoints; variant changes the last of them.
func benchService(i, variant int) *dataplane.Service {
	list := make([]netip.AddrPort, 10)
	for j := range list {
		list[j] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j + 1)}), 8080)
	}
	list[9] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(10 + variant)}), 8080)
	return testService(fmt.Sprintf("ns/svc%d", i), netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(),
		dataplane.Port{Available: true, Cluster: list})
}

// BenchmarkPlanService plans one Service with ten endpoints.
func BenchmarkPlanService(b *testing.B) {
	c, svc := testConfig(b), benchService(1, 0)
	b.ReportAllocs()
	for b.Loop() {
		c.planService(svc)
	}
}

// BenchmarkOneEndpointChanged plans and compares one changed Service among
// many: the cost must not depend on how many.
func BenchmarkOneEndpointChanged(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			plane := New(dataplane.IPv4, Options{SysctlFolder: b.TempDir()})
			plane.kernel = idleKernel{newFakeKernel()}
			rules := newRuleset()
			*rules.Node.Settings.NodePorts.Localhost = "Disabled"
			for i := range n {
				s := benchService(i, 0)
				rules.Services[s.Name] = s
			}
			if _, err := plane.Apply(b.Context(), rules); err != nil {
				b.Fatal(err)
			}
			rules.Full = false
			variants := [2]*dataplane.Service{benchService(7, 0), benchService(7, 1)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				s := variants[(i+1)%2]
				rules.Services[s.Name] = s
				rules.Dirty[s.Name] = struct{}{}
				result, err := plane.Apply(b.Context(), rules)
				if err != nil || result.ServicesChanged != 1 {
					b.Fatal(result, err)
				}
				clear(rules.Dirty)
			}
		})
	}
}

// BenchmarkFullPlan plans all Services, as a start and a repair do.
func BenchmarkFullPlan(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			c, rules := testConfig(b), newRuleset()
			for i := range n {
				s := benchService(i, 0)
				rules.Services[s.Name] = s
			}
			b.ReportAllocs()
			for b.Loop() {
				c.plan(rules.Services)
			}
		})
	}
}
