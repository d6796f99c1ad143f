package nftables

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestContest changes random Services that ask for the same destinations: whatever the order of
// the changes, the best claim wins.
func TestContest(t *testing.T) {
	random := rand.New(rand.NewPCG(dataplanetest.Seed(t), 1)) //nolint:gosec // a test
	services := map[dataplane.ServiceName]*dataplane.Service{}
	c, s := newContest(), newState()
	for round := range 2000 {
		changed := map[dataplane.ServiceName]struct{}{}
		for range 1 + random.IntN(3) {
			name := dataplane.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", random.IntN(6))}
			changed[name] = struct{}{}
			if random.IntN(4) == 0 {
				delete(services, name)
				continue
			}
			service := &dataplane.Service{Name: name, Precedence: dataplane.Precedence{Created: time.Unix(int64(random.IntN(4)), 0)}}
			for i := range 1 + random.IntN(2) {
				service.Ports = append(service.Ports, dataplane.Port{Name: fmt.Sprint(i), Protocol: v1alpha1.ProtocolTCP, Port: uint16(80 + i), NodePort: uint16(30000 + random.IntN(3)*2 + i)}) //nolint:gosec // few
			}
			services[name] = service
		}
		var names []dataplane.ServiceName
		for name := range changed {
			names = append(names, name)
		}
		plans := c.plans(testConfig, names, func(name dataplane.ServiceName) *dataplane.Service { return services[name] },
			func(k key) dataplane.ServiceName { return s.destinations[k].service },
			func(name dataplane.ServiceName) *servicePlan { return s.services[name] })
		u := testConfig.newUpdate(s)
		for name, plan := range plans {
			u.set(name, plan)
		}
		u.done()
		want := map[key]*dataplane.Service{}
		for _, service := range services {
			for _, d := range testConfig.planService(service).destinations {
				if best := want[d.key]; best == nil || service.ComparePrecedence(best) < 0 {
					want[d.key] = service
				}
			}
		}
		if len(s.destinations) != len(want) {
			t.Fatalf("round %d: %d destinations, not %d", round, len(s.destinations), len(want))
		}
		for k, service := range want {
			if got := s.destinations[k].service; got != service.Name {
				t.Fatalf("round %d: %s has %s, not %s", round, got, k.AddrPort, service.Name)
			}
		}
		for name, service := range services {
			lost := 0
			for _, d := range testConfig.planService(service).destinations {
				if want[d.key].Name != name {
					lost++
				}
			}
			if got := len(c.lost[name]); got != lost {
				t.Fatalf("round %d: %s has lost %d, not %d", round, name, got, lost)
			}
			if lost > 0 && c.reason(name) == "" {
				t.Errorf("round %d: no reason", round)
			}
		}
	}
	if left := slices.Collect(func(yield func(dataplane.ServiceName) bool) {
		for name := range c.lost {
			if services[name] == nil && !yield(name) {
				return
			}
		}
	}); len(left) > 0 {
		t.Errorf("ended Services that have lost something: %v", left)
	}
}

// TestContestOfManyPorts: each Service is planned a few times only, however many destinations it
// loses.
func TestContestOfManyPorts(t *testing.T) {
	nodePorts := &dataplane.Service{Name: dataplane.ServiceName{Namespace: "shop", Name: "z"}, Precedence: dataplane.Precedence{Created: time.Unix(1, 0)}}
	external := &dataplane.Service{
		Name: dataplane.ServiceName{Namespace: "shop", Name: "a"}, Precedence: dataplane.Precedence{Created: time.Unix(2, 0)}, ExternalIPs: testConfig.nodePortIPs[:1],
	}
	for i := range uint16(1000) {
		nodePorts.Ports = append(nodePorts.Ports, dataplane.Port{Protocol: v1alpha1.ProtocolTCP, Port: 1 + i, NodePort: 30000 + i})
		external.Ports = append(external.Ports, dataplane.Port{Protocol: v1alpha1.ProtocolTCP, Port: 30000 + i})
	}
	asked := 0
	services := map[dataplane.ServiceName]*dataplane.Service{nodePorts.Name: nodePorts, external.Name: external}
	plans := newContest().plans(testConfig, []dataplane.ServiceName{external.Name, nodePorts.Name}, func(name dataplane.ServiceName) *dataplane.Service {
		asked++
		return services[name]
	}, func(key) dataplane.ServiceName { return dataplane.ServiceName{} }, func(dataplane.ServiceName) *servicePlan { return nil })
	if n := len(plans[nodePorts.Name].destinations); n < 1000 || asked > 40_000 {
		t.Errorf("%d destinations; Services were asked for %d times", n, asked)
	}
}
