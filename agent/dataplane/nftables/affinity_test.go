package nftables

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// TestAffinityStep: a client never keeps its endpoint for a shorter time than the Service asks for,
// and the number of timeouts is bounded.
func TestAffinityStep(t *testing.T) {
	steps := map[int32]struct{}{}
	for seconds := int32(1); seconds <= 86_400; seconds++ {
		step := affinityStep(seconds)
		if step < seconds || !slices.Contains(affinitySteps[:], step) {
			t.Fatalf("%d s become %d s", seconds, step)
		}
		steps[step] = struct{}{}
	}
	if len(steps) > 16 || affinityStep(0) != 0 || affinityStep(10_800) != 10_800 {
		t.Errorf("%d steps", len(steps))
	}
}

// TestCountsOfManyTimeouts: the status has few counts, whatever Services ask for.
func TestCountsOfManyTimeouts(t *testing.T) {
	p := newProgramming(t)
	var services []*dataplane.Service
	for n := range 60 {
		s := numbered(n+1, 2)
		s.AffinitySeconds = int32(1 + 100*n)
		services = append(services, s)
	}
	p.set(services)
	result, err := p.agent(p.kernel).Apply(t.Context(), &p.rules)
	if err != nil {
		t.Fatal(err)
	}
	sets := result.Counts.Sets()
	if len(sets) > 16 || sets[affinePrefix+"*"] != 60 {
		t.Errorf("counts %v", sets)
	}
}

// TestPolicyLocalForgetsClients: once the external policy is Local, a client outside does not keep an
// endpoint of another node.
func TestPolicyLocalForgetsClients(t *testing.T) {
	for name, restarted := range map[string]bool{"of a running agent": false, "while no agent runs": true} {
		t.Run(name, func(t *testing.T) {
			p := newProgramming(t)
			s := web()
			s.AffinitySeconds = 60
			p.set([]*dataplane.Service{s})
			d := p.apply(nil)
			ask := func() []kernelmodel.Outcome {
				outcomes, err := p.kernel.Trace(kernelmodel.Packet{
					Protocol: "tcp", In: "eth0", Source: netip.MustParseAddr("198.51.100.1"), Destination: netip.MustParseAddrPort("203.0.113.1:80"),
				})
				if err != nil {
					t.Fatal(err)
				}
				return outcomes
			}
			remote := netip.MustParseAddrPort("10.244.1.1:8080")
			for _, o := range ask() {
				if o.Endpoint == remote {
					p.kernel.Remember(o)
				}
			}
			if got := ask(); len(got) != 1 || got[0].Endpoint != remote {
				t.Fatalf("the client does not keep its endpoint: %+v", got)
			}
			after := *s
			after.ExternalLocal = true
			p.set([]*dataplane.Service{&after})
			if restarted {
				d = nil
			}
			p.apply(d)
			if got := ask(); len(got) != 1 || got[0].Endpoint != netip.MustParseAddrPort("10.244.0.1:8080") {
				t.Errorf("under policy Local the client gets %+v", got)
			}
		})
	}
}
