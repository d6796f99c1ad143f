package iptables

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// TestParts: however many endpoints a port has, each gets as many connections, no chain is long, and
// one endpoint that replaces another costs few lines.
func TestParts(t *testing.T) {
	for _, n := range []int{flatAtMost, flatAtMost + 1, 10_000} {
		for _, affinity := range []int{0, 60} {
			t.Run(fmt.Sprintf("%d endpoints, affinity %d s", n, affinity), func(t *testing.T) {
				p := newParted(t, 1, 0)
				p.plane.limits = usualLimits()
				p.set(p.huge(affinity, 0, n))
				p.apply()
				p.expectEven(n)
				most := 0
				for id, c := range p.kernel.chainsOfServices(t) {
					if c > most && id.name != chainServices {
						most = c
					}
				}
				limit := 4 * partSize
				if n <= flatAtMost {
					limit = 2*flatAtMost + 1 // with affinity
				}
				if most > limit {
					t.Errorf("a chain has %d rules, more than %d", most, limit)
				}
				next := p.huge(affinity, 0, n)
				next.Ports[0].Cluster = append(slices.Clone(next.Ports[0].Cluster[1:]), hugeEndpoint(n))
				if n > flatAtMost {
					old, plan := p.plane.actual.services[next.Name], p.plane.actual.config.planService(next)
					if lines := changeOf(old, &plan).lines(); lines > 10*partSize {
						t.Errorf("one endpoint that replaces another takes %d lines", lines)
					}
				}
				p.set(next)
				p.apply()
				p.expectEven(n)
			})
		}
	}
}

// TestPartsWhileWritten: while the number of parts changes, in several calls, no endpoint that stays is
// left out.
func TestPartsWhileWritten(t *testing.T) {
	for _, c := range []struct{ before, after int }{{1599, 1600}, {1600, 1599}, {flatAtMost, 3200}, {3200, flatAtMost + 1}, {flatAtMost + 1, flatAtMost}, {flatAtMost, flatAtMost + 1}} {
		t.Run(fmt.Sprintf("%d to %d", c.before, c.after), func(t *testing.T) {
			p := newParted(t, 1, 0)
			p.plane.limits = usualLimits()
			p.set(p.huge(60, 0, c.before))
			p.apply()
			calls := 0
			p.kernel.after = func(string) {
				calls++
				shares := p.shares()
				for i := range min(c.before, c.after) {
					if shares[hugeEndpoint(i)] == 0 {
						t.Fatalf("call %d: endpoint %d of %d gets no connection", calls, i, c.before)
					}
				}
			}
			p.rules.Pause = func() bool { return false }
			p.set(p.huge(60, 0, c.after))
			p.apply()
			p.expectEven(c.after)
			if calls < 2 {
				t.Errorf("%d calls", calls)
			}
		})
	}
}

// shares traces a packet to the huge Service.
func (p *parted) shares() map[netip.AddrPort]float64 {
	p.Helper()
	outcomes, err := p.kernel.tables.Trace(kernelmodel.Packet{
		Protocol: "tcp", In: "eth0", Source: netip.MustParseAddr("10.244.7.7"), Destination: netip.MustParseAddrPort(hugeIP + ":1"),
	})
	if err != nil {
		p.Fatal(err)
	}
	shares := map[netip.AddrPort]float64{}
	for _, o := range outcomes {
		shares[o.Endpoint] += o.Share
	}
	return shares
}

// expectEven expects each of n endpoints of the huge Service equally often.
func (p *parted) expectEven(n int) {
	p.Helper()
	shares := p.shares()
	if len(shares) != n {
		p.Errorf("%d endpoints get connections, want %d", len(shares), n)
	}
	for endpoint, share := range shares {
		if math.Abs(share*float64(n)-1) > 1e-3 {
			p.Fatalf("%s gets %f of all connections, want 1/%d", endpoint, share, n)
		}
	}
}

// chainsOfServices are the numbers of rules of the chains in table nat.
func (k *fakeKernel) chainsOfServices(t *testing.T) map[chainID]int {
	t.Helper()
	state, err := k.read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[chainID]int{}
	for id, c := range state.chains {
		if id.table == nat {
			out[id] = c.count
		}
	}
	return out
}

// TestPartsOfOneHash: addresses that have been chosen to be in one part do not make it long.
func TestPartsOfOneHash(t *testing.T) {
	var list []endpointChain
	for i := 0; len(list) < 2000; i++ {
		ep := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 8080)
		if partIndex(ep, 32) == 0 {
			list = append(list, endpointChain{AddrPort: ep})
		}
	}
	count := 0
	for _, part := range partsOf(list) {
		if len(part) > 4*partSize {
			t.Errorf("a part has %d endpoints", len(part))
		}
		count += len(part)
	}
	if count != len(list) {
		t.Errorf("the parts have %d endpoints, want %d", count, len(list))
	}
}

// TestAuditOfParts: neither the parts of this mode are a difference nor kube-proxy's one chain, beside
// which it still has these.
func TestAuditOfParts(t *testing.T) {
	large := newParted(t, 1, 0).huge(0, 0, flatAtMost+1)
	for _, flat := range []bool{false, true} {
		t.Run(fmt.Sprintf("flat %t", flat), func(t *testing.T) {
			k := newFakeKernel()
			writer, rules := newDataplane(t, k), newRuleset(large)
			mustApply(t, writer, rules)
			if flat {
				asKubeProxy(t, writer, k, large)
			}
			d := newDataplane(t, k)
			if found := audit(t, d, rules); len(found) > 0 {
				t.Errorf("differences: %q", found)
			}
			gone := prefixEndpoint + chainHash(portName(large.Name, "p0"), "tcp", hugeEndpoint(7).String())
			k.set(t, chainID{nat, gone})
			if found := audit(t, d, rules); len(found) != 1 {
				t.Errorf("an endpoint's chain is empty: %q", found)
			}
		})
	}
}

// asKubeProxy writes the chains of a Service as kube-proxy does.
func asKubeProxy(t *testing.T, d *Dataplane, k *fakeKernel, svc *dataplane.Service) {
	t.Helper()
	flat := *d.actual.config
	flat.flat = true
	plan, tx := flat.planService(svc), &transaction{}
	for i := range plan.chains {
		tx.writeChain(&plan.chains[i])
	}
	if err := k.apply(t.Context(), tx.String()); err != nil {
		t.Fatal(err)
	}
}
