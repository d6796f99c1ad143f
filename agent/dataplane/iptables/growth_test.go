package iptables

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/growth"
)

// TestGrowth: planning a Service takes as long as it is large.
func TestGrowth(t *testing.T) {
	c := testConfig(t)
	for name, of := range dataplanetest.Large() {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 100, of, func(s *dataplane.Service) { c.planService(s) })
		})
	}
}

// TestGrowthTogether: nor do addresses times endpoints take time, with session affinity, which adds
// rules to those without.
func TestGrowthTogether(t *testing.T) {
	c := testConfig(t)
	growth.Service(t, dataplanetest.SizedWithAffinity, func(s *dataplane.Service) { c.planService(s) })
}

// manyPorts is a Service of a number of ports that have no endpoints, which is one rule in
// table filter each, or that have one.
func manyPorts(n int, available bool) *dataplane.Service {
	s := testService("ns/large", "172.30.9.9", dataplane.Port{})
	s.Ports = nil
	for i := range n {
		p := dataplane.Port{Name: fmt.Sprint(i), Protocol: v1alpha1.ProtocolTCP, Port: uint16(i + 1), Available: available} //nolint:gosec // small
		if available {
			p.Cluster = endpoints("10.180.0.1:80")
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// TestGrowthOfRejectionsThatAreMissing: after another program has flushed a chain of table
// filter, each rule costs the same, however many there are.
func TestGrowthOfRejectionsThatAreMissing(t *testing.T) {
	type given struct {
		plane *Dataplane
		rules *dataplane.Ruleset
		want  *desired
	}
	growth.Linear(t, 600, func(n int) given {
		f := newFixture(t)
		f.plane.kernel = idleKernel{f.kernel}
		f.set(manyPorts(n, false))
		return given{f.plane, f.rules, testConfig(t).plan(f.rules.Services)}
	}, func(g given) {
		flushed := newKernelState()
		for _, c := range g.want.config.sharedChains() {
			flushed.chains[c.id] = &kernelChain{}
		}
		p := g.plane.newFullPass(g.rules, g.want.config, flushed)
		if err := p.writeRejections(t.Context()); err != nil || len(p.changed) != 1 {
			t.Fatal(err, p.changed)
		}
	})
}

// TestGrowthOfWhatIsLeft: what the kernel has of a Service of which a later call was rejected.
// It takes more memory than time.
func TestGrowthOfWhatIsLeft(t *testing.T) {
	allocated := func(n int) uint64 {
		plan := testConfig(t).planService(manyPorts(n, false))
		calls := &calls{limit: 30}
		calls.add(changeOf(nil, &plan))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		(*planned)(nil).after(calls.list)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if few, many := allocated(1000), allocated(10_000); many > 20*few {
		t.Errorf("1000 rules take %d bytes, ten times as many %d", few, many)
	}
}

// TestGrowthOfPreservedServices: comparing a Service of which the kernel has newer rules.
func TestGrowthOfPreservedServices(t *testing.T) {
	type given struct {
		want  *desired
		state *kernelState
		scope *scope
	}
	growth.Linear(t, 300, func(n int) given {
		s := manyPorts(n, true)
		want := testConfig(t).plan(map[dataplane.ServiceName]*dataplane.Service{s.Name: s})
		state := newKernelState()
		for _, c := range want.config.sharedChains() {
			state.chains[c.id] = &kernelChain{}
		}
		for _, r := range want.services[s.Name].dispatch { // and one more of each port
			have := state.chains[r.in]
			have.rules = append(have.rules, kernelRule{r.hash, r.spec}, kernelRule{r.hash + 1, r.spec})
		}
		return given{want, state, &scope{modes: declared, preserved: map[dataplane.ServiceName]struct{}{s.Name: {}}}}
	}, func(g given) { compareShared(g.want, g.state, g.scope) })
}
