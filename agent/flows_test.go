package agent

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/conntrack"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// flowTable is a table of flows to 10.96.0.9:53, recognized by their endpoints.
type flowTable struct {
	mu    sync.Mutex
	flows []conntrack.Flow
}

func (t *flowTable) add(endpoints ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range endpoints {
		t.flows = append(t.flows, conntrack.Flow{Protocol: v1alpha1.ProtocolUDP,
			Destination: netip.MustParseAddrPort("10.96.0.9:53"), ReplySource: netip.MustParseAddrPort(e),
		})
	}
}

func (t *flowTable) Walk(_ context.Context, _ dataplane.Family, protocol v1alpha1.Protocol, _ []conntrack.Filter, visit func(conntrack.Flow)) error {
	t.mu.Lock()
	flows := slices.Clone(t.flows)
	t.mu.Unlock()
	for _, f := range flows {
		if f.Protocol == protocol {
			visit(f)
		}
	}
	return nil
}

func (t *flowTable) Delete(f conntrack.Flow) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flows = slices.DeleteFunc(t.flows, func(o conntrack.Flow) bool { return o == f })
	return true, nil
}

func (t *flowTable) LocalAddresses(dataplane.Family) ([]netip.Addr, error) { return nil, nil }

// expect waits until nothing goes on, and compares the endpoints of the flows.
func (t *flowTable) expect(tt *testing.T, when string, want ...string) {
	tt.Helper()
	time.Sleep(time.Minute) // the bubble's
	synctest.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	var got []string
	for _, f := range t.flows {
		got = append(got, f.ReplySource.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		tt.Errorf("%s: flows (-want +got):\n%s", when, diff)
	}
}

// withFlows calls test with an agent that may write a set with the UDP Service
// dns at 10.96.0.9, and whose cleaners run.
func withFlows(t *testing.T, test func(t *testing.T, a *Agent, r *rig, kernel *dataplanetest.Fake, table *flowTable)) {
	synctest.Test(t, func(t *testing.T) {
		a, r, kernel, _ := owningAgent(t)
		table := &flowTable{}
		a.options.Flows = table
		a.cleaners = a.newCleaners()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, c := range slices.Concat(slices.Collect(maps.Values(a.cleaners))...) {
			wg.Go(func() { c.Run(ctx) })
		}
		r.SetService(r.Service("dns", 9, dns("10.244.1.1:53")))
		r.SetInventory(agenttest.InventoryOf("shop.a", "shop.dns"))
		test(t, a, r, kernel, table)
		cancel()
		wg.Wait()
	})
}

func dns(endpoints ...string) func(*v1alpha1.ServiceProxyRulesSpec) {
	return func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.Ports = []v1alpha1.ServicePort{{Name: "dns", Protocol: "UDP", Port: 53,
			Endpoints: []v1alpha1.EndpointGroup{{State: v1alpha1.EndpointReady, Addresses: endpoints}}}}
	}
}

func TestFlowsFollowTheKernelsRules(t *testing.T) {
	const one, two, raw = "10.244.1.1:53", "10.244.1.2:53", "10.96.0.9:53"
	withFlows(t, func(t *testing.T, a *Agent, r *rig, kernel *dataplanetest.Fake, table *flowTable) {
		table.add(raw, one, two)
		kernel.Fail(errors.New("locked"))
		if err := a.sync(t.Context()); err == nil {
			t.Fatal("no error")
		}
		table.expect(t, "the first write failed", raw, one, two)
		kernel.Fail(nil)
		mustSync(t, a)
		table.expect(t, "the first set is in the kernel", one)

		r.SetService(r.Service("dns", 9, dns(two)))
		table.expect(t, "before the sync", one)
		kernel.Reject("shop", "dns", "line 3 failed")
		mustSync(t, a)
		table.expect(t, "rejected", one)
		kernel.Reject("shop", "dns", "")
		pass(desired.FirstRetryPause)
		if err := a.verify(t.Context()); err != nil {
			t.Fatal(err)
		}
		table.expect(t, "taken later")

		table.add(two)
		last := r.Service("dns", 9, dns(two))
		r.DeleteService(last)
		mustSync(t, a)
		table.expect(t, "held", two)
		r.SetService(r.Service("dns", 9, dns(two), agenttest.Released))
		mustSync(t, a)
		table.expect(t, "released")
		want := map[string]float64{"not_translated": 1, "other_mode": 0, "endpoint_gone": 2, "address_gone": 1, "no_endpoint": 0}
		if diff := cmp.Diff(want, counted(t, a, "stale_flows_removed_total", "reason")); diff != "" {
			t.Errorf("flows counted as removed (-want +got):\n%s", diff)
		}
		if got := counted(t, a, "flow_comparisons_total", "result"); got["complete"] < 3 || got["failed"] > 0 {
			t.Errorf("comparisons counted: %v", got)
		}
	})
}

// counted returns a counter's values by one of its labels.
func counted(t *testing.T, a *Agent, name, label string) map[string]float64 {
	t.Helper()
	families, err := a.metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "nodeproxy_agent_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == label {
					values[l.GetValue()] += m.GetCounter().GetValue()
				}
			}
		}
	}
	return values
}

// TestNoFlowIsRemovedInAudit: what is left to do must not be done once the
// node may not be changed any more.
func TestNoFlowIsRemovedInAudit(t *testing.T) {
	withFlows(t, func(t *testing.T, a *Agent, r *rig, _ *dataplanetest.Fake, table *flowTable) {
		mustSync(t, a)
		table.expect(t, "the first set is in the kernel")
		table.add("10.244.1.1:53")
		r.SetService(r.Service("dns", 9, dns("10.244.1.2:53")))
		b := prepare(a.store)
		outcomes := a.fanout.Apply(t.Context(), b.Rulesets)
		a.store.Commit(b, outcomes, nil)
		r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Enforcement = new(v1alpha1.Audit) }))
		a.cleanFlows(&applied{Batch: b, outcomes: outcomes})
		table.expect(t, "in Audit", "10.244.1.1:53")
		r.SetRules(r.Node())
		table.expect(t, "in Enforce again")
	})
}
