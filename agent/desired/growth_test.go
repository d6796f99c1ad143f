package desired

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// TestCountingGrowth: counting a Service's endpoints takes as long as it is large.
func TestCountingGrowth(t *testing.T) {
	for name, of := range dataplanetest.Large() {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 100, of, func(s *dataplane.Service) {
				counts := endpointCount{uses: map[netip.AddrPort]uses{}}
				counts.add(s, 1)
				counts.add(s, -1)
			})
		})
	}
}

// TestGrowthOfChoice: choosing what the next sync writes takes as long as there are changes that wait,
// of one namespace or many, also if claims move between the Services.
func TestGrowthOfChoice(t *testing.T) {
	one, many := func(int) string { return "other" }, func(i int) string { return fmt.Sprint("tenant-", i) }
	for name, of := range map[string]struct {
		namespace func(i int) string
		endpoints int // with fewer, the changes are costly only if they are many
		external  func(round, i int) string
	}{
		"one namespace":       {one, 10, nil},
		"many namespaces":     {many, 101, nil},
		"claims that move on": {one, 10, func(round, i int) string { return numbered(198, i+round) }},
		"claims that move between costly and small ones": {func(i int) string {
			if i%2 == 0 {
				return one(i)
			}
			return many(i)
		}, 10, func(round, i int) string { return numbered(198, i+round) }},
		"one claim": {one, 10, func(int, int) string { return numbered(198, 1) }},
	} {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 20, func(n int) *changed {
				r := &changed{rig: newRig(t)}
				services := func(round int) []*v1alpha1.ServiceProxyRules {
					list := make([]*v1alpha1.ServiceProxyRules, n)
					for i := range list {
						list[i] = r.tenant(of.namespace(i), fmt.Sprint("s-", i), 1, with(of.endpoints+round), func(s *v1alpha1.ServiceProxyRulesSpec) {
							if s.ClusterIPs[0] = numbered(10, i); of.external != nil {
								s.ExternalIPs = []string{of.external(round, i)}
							}
						})
					}
					return list
				}
				r.SetServices(services(0))
				r.SetRules(r.Node())
				r.sync()
				for _, s := range services(1) {
					r.SetService(s)
				}
				r.dirty, r.moved = r.ledger.dirty, r.ledger.moved
				return r
			}, func(r *changed) {
				l := r.ledger
				l.dirty, l.deferred, l.moved = maps.Clone(r.dirty), map[dataplane.ServiceName]deferral{}, map[dataplane.ServiceName]map[dataplane.ServiceName]struct{}{}
				for name, others := range r.moved {
					l.moved[name] = maps.Clone(others)
				}
				if load := r.Choose(true); !load.Costly {
					t.Fatalf("nothing is costly: %+v", load)
				}
			})
		})
	}
}

// changed is a rig with what has changed before each choice.
type changed struct {
	*rig
	dirty map[dataplane.ServiceName]bool
	moved map[dataplane.ServiceName]map[dataplane.ServiceName]struct{}
}

// numbered is an address of a network of 2^24.
func numbered(first byte, i int) string {
	return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)}).String() //nolint:gosec // parts of a number
}
