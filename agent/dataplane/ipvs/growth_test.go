package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// TestGrowth: the time for planning a Service is linear in its size, also if unmanaged virtual servers block it, or
// the kernel rejects everything.
func TestGrowth(t *testing.T) {
	c := testConfig(t, dataplane.IPv4, nil)
	for name, of := range dataplanetest.Large() {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 100, of, func(s *dataplane.Service) {
				plan := c.planService(s, nil)
				plan.bindings()
			})
		})
		planned := func(size int) *fullPass {
			s := of(size)
			return &fullPass{
				config: c, want: c.planAll(map[dataplane.ServiceName]*dataplane.Service{s.Name: s}, newUnmanaged()),
				ruleset: &dataplane.Ruleset{Services: map[dataplane.ServiceName]*dataplane.Service{s.Name: s}},
			}
		}
		t.Run(name+" with unmanaged ones", func(t *testing.T) {
			growth.Linear(t, 100, func(size int) *fullPass {
				p := planned(size)
				p.Dataplane = &Dataplane{unmanaged: newUnmanaged()}
				for k := range p.want.needs.servers {
					p.unmanaged.add(k)
				}
				return p
			}, func(p *fullPass) { c.planAll(p.ruleset.Services, p.unmanaged) })
		})
		t.Run(name+" that fails", func(t *testing.T) {
			growth.Linear(t, 100, func(size int) *fullPass {
				p := planned(size)
				p.diff, p.writer = &diff{}, &writer{failed: map[dataplane.ServiceName]string{}}
				for _, s := range p.want.needs.servers {
					p.diff.servers = append(p.diff.servers, serverDiff{ownedServer: s, missing: true})
					p.writer.failed[s.owner] = "no memory"
				}
				return p
			}, func(p *fullPass) {
				p.forgone = map[dataplane.ServiceName][]netip.Addr{}
				p.forgo()
				p.forgo()
			})
		})
		t.Run(name+" whose addresses are missing", func(t *testing.T) {
			growth.Linear(t, 100, planned, func(p *fullPass) {
				findings(&diff{bind: slices.Collect(maps.Keys(p.want.needs.bound))}, p.want.desired, nil)
			})
		})
	}
}

// TestGrowthTogether: nor do addresses times endpoints take time: what many virtual servers have in
// common is planned once.
func TestGrowthTogether(t *testing.T) {
	c := testConfig(t, dataplane.IPv4, nil)
	growth.Service(t, dataplanetest.Sized, func(s *dataplane.Service) { c.planService(s, nil) })
}

// TestContendersAlone: a change of the owner of a virtual server concerns the Services that ask for
// it, not all with conflicts. Changes of endpoints concern no other Service.
func TestContendersAlone(t *testing.T) {
	c := testConfig(t, dataplane.IPv4, nil)
	r := &dataplane.Ruleset{Services: map[dataplane.ServiceName]*dataplane.Service{}}
	// Pair n asks for port n of the address, the lower name first.
	add := func(name string, pair uint16) *dataplane.Service {
		s := benchServices(dataplane.IPv4, 1, 1)[0]
		s.Name.Name = fmt.Sprintf("%s%d", name, pair)
		s.ClusterIP = netip.AddrFrom4([4]byte{10, 99, name[0], byte(pair)})
		s.Ports[0].Port, s.ExternalIPs = pair, addrs("198.51.100.1")
		s.Precedence.Created = time.Unix(1, 0)
		r.Services[s.Name] = s
		return s
	}
	for pair := range uint16(10) {
		add("a", pair+1)
		add("b", pair+1)
	}
	want := c.planAll(r.Services, newUnmanaged())
	d := New(dataplane.IPv4, Options{})
	d.actual, d.conflicts = want.desired, want.conflicts
	p := &partialPass{Dataplane: d, config: c}
	concerned := func(s *dataplane.Service, change func(*dataplane.Service)) []string {
		changed := *s
		changed.Ports = slices.Clone(s.Ports)
		change(&changed)
		r.Services[s.Name] = &changed
		defer func() { r.Services[s.Name] = s }()
		names := map[dataplane.ServiceName]struct{}{s.Name: {}}
		if !p.addContenders(r, names, map[dataplane.ServiceName]*servicePlan{}) {
			t.Error("all Services are looked at")
		}
		var out []string
		for name := range names {
			out = append(out, name.Name)
		}
		return slices.Sorted(slices.Values(out))
	}
	winner := r.Services[dataplane.ServiceName{Namespace: "bench", Name: "a3"}]
	if got := concerned(winner, func(s *dataplane.Service) { s.ExternalIPs = nil }); !slices.Equal(got, []string{"a3", "b3"}) {
		t.Errorf("a Service that gives an address up concerns %v", got)
	}
	if got := concerned(winner, func(s *dataplane.Service) { s.Ports[0].Cluster = nil }); !slices.Equal(got, []string{"a3"}) {
		t.Errorf("endpoints of a Service concern %v", got)
	}
	for name := range r.Services {
		p.conflicts.set(name, nil)
	}
	if len(p.conflicts.of)+len(p.conflicts.losers) > 0 {
		t.Errorf("of conflicts that have ended remain %v", p.conflicts)
	}
}
