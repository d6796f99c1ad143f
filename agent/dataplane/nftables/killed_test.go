package nftables

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nftablesmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var errKilled = errors.New("the agent was killed")

// mortal is a kernel whose agent is killed when it sends the batch of a number, from 0: before the
// kernel has made it, or after.
type mortal struct {
	*nftablesmodel.Kernel
	mortal bool
	at     int
	after  bool
	died   bool
}

func (m *mortal) Commit(b *nft.Batch, generation uint32) error {
	if b.Len() == 0 {
		return nil
	}
	if !m.mortal {
		return m.Kernel.Commit(b, generation)
	}
	if m.at--; m.at >= 0 {
		return m.Kernel.Commit(b, generation)
	}
	if m.after && !m.died {
		if err := m.Kernel.Commit(b, generation); err != nil {
			return err
		}
	}
	m.died = true
	return errKilled
}

// Generation is the first that an agent reads to start again, which a killed one does not.
func (m *mortal) Generation() (uint32, error) {
	if m.died {
		return 0, errKilled
	}
	return m.Kernel.Generation()
}

// programming is the Services of a node, and the model of its kernel.
type programming struct {
	*testing.T
	kernel *nftablesmodel.Kernel
	rules  dataplane.Ruleset
	// destinations are those of all Services that there have been.
	destinations map[key]struct{}
}

func newProgramming(t *testing.T) *programming {
	return &programming{
		T: t, kernel: nftablesmodel.New(addrs("192.0.2.1 192.0.2.2")...), destinations: map[key]struct{}{},
		rules: dataplane.Ruleset{
			Full: true, Prune: true, Services: map[dataplane.ServiceName]*dataplane.Service{}, Dirty: map[dataplane.ServiceName]struct{}{},
			Node: dataplane.Node{Settings: v1alpha1.CompleteSettings(nil), Addresses: addrs("192.0.2.1")},
		},
	}
}

// set makes these all Services.
func (p *programming) set(services []*dataplane.Service) {
	for name := range p.rules.Services {
		p.rules.Dirty[name] = struct{}{}
	}
	clear(p.rules.Services)
	for _, s := range services {
		p.rules.Services[s.Name], p.rules.Dirty[s.Name] = s, struct{}{}
		for d := range s.Destinations() {
			addresses := []netip.Addr{d.Address}
			if d.Kind == dataplane.NodePort {
				addresses = p.kernel.Addresses()
			}
			for _, a := range addresses {
				if a.Is4() {
					p.destinations[key{netip.AddrPortFrom(a, d.Number), d.Port.Protocol}] = struct{}{}
				}
			}
		}
	}
}

// programmedBatch is how many elements a batch has.
const programmedBatch = 600

// agent is the data plane of an agent that starts.
func (p *programming) agent(of Model) *Dataplane {
	d := New(dataplane.IPv4, Options{Model: of})
	d.batch = programmedBatch
	return d
}

// apply applies the Services by a data plane; nil: a new one. No difference may be left.
func (p *programming) apply(d *Dataplane) *Dataplane {
	p.Helper()
	if p.rules.Full = d == nil || d.actual == nil; d == nil {
		d = p.agent(p.kernel)
	}
	result, err := d.Apply(p.Context(), &p.rules)
	if err != nil || len(result.Rejected) > 0 {
		p.Fatalf("%v, rejected: %v", err, result.Rejected)
	}
	p.rules.Dirty = map[dataplane.ServiceName]struct{}{}
	if found, err := d.Verify(p.Context(), &p.rules, dataplane.VerifyOptions{}); err != nil || found.Count > 0 {
		p.Fatalf("after Apply: %v, %d differences: %q", err, found.Count, found.Examples)
	}
	return d
}

// served is what clients of each destination may get.
func (p *programming) served() map[string]string {
	p.Helper()
	out := map[string]string{}
	for k := range p.destinations {
		for in, client := range map[string]string{"eth0": "198.51.100.7", "pod0": "10.244.9.9"} {
			outcomes, err := p.kernel.Trace(kernelmodel.Packet{
				Protocol: strings.ToLower(string(k.protocol)), In: in, Source: netip.MustParseAddr(client), Destination: k.AddrPort,
			})
			if err != nil {
				p.Fatal(err)
			}
			var text strings.Builder
			for _, o := range outcomes {
				fmt.Fprintf(&text, "%s %s %t %.6f, ", o.Fate, o.Endpoint, o.Masqueraded, o.Share)
			}
			out[fmt.Sprintf("%s %s from %s", k.AddrPort, k.protocol, in)] = text.String()
		}
	}
	return out
}

// TestKilled kills the agent at each batch of changes: each destination is served as before or as
// desired, and a new agent completes the changes.
func TestKilled(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 7)) //nolint:gosec // a test
	some := func() []*dataplane.Service {
		var out []*dataplane.Service
		for n := range 12 {
			if random.IntN(4) > 0 {
				out = append(out, randomService(random, n+1))
			}
		}
		return out
	}
	large := func(first int) []*dataplane.Service { // more than one batch
		out := some()
		for n := range 3 {
			s := randomService(random, 20+n)
			s.AffinitySeconds, s.InternalLocal, s.ExternalIPs, s.LoadBalancerIPs, s.Ports = 0, false, nil, nil, s.Ports[:1]
			s.Ports[0].Available, s.Ports[0].NodePort, s.Ports[0].Cluster = true, 0, nil
			for i := range programmedBatch/3 + 10 {
				s.Ports[0].Cluster = append(s.Ports[0].Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 245, byte(i >> 8), byte(i)}), uint16(first))) //nolint:gosec // a test
			}
			out = append(out, s)
		}
		return out
	}
	for _, c := range []struct {
		name     string
		from, to []*dataplane.Service
		full     bool // the agent has just started
		atLeast  int  // batches
	}{
		{"first start", nil, some(), true, 3},
		{"restart", some(), some(), true, 2},
		{"changes", some(), some(), false, 1},
		{"end of all", some(), nil, false, 1},
		{"many at the first start", nil, large(80), true, 4},
		{"many changes", large(80), large(81), false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			died := 0
			for _, after := range []bool{false, true} {
				for at := 0; ; at++ {
					p := newProgramming(t)
					p.set(c.to) // for their destinations
					p.set(c.from)
					m := &mortal{Kernel: p.kernel, at: at, after: after}
					d := p.agent(m)
					if len(c.from) > 0 {
						p.apply(d)
					}
					before := p.served()
					if m.mortal = true; c.full {
						d = p.agent(m)
					}
					p.set(c.to)
					p.rules.Full = c.full
					_, err := d.Apply(t.Context(), &p.rules)
					if m.died != errors.Is(err, errKilled) {
						t.Fatalf("batch %d: %v", at, err)
					}
					between := p.served()
					p.apply(nil)
					desired := p.served()
					for _, k := range slices.Sorted(maps.Keys(desired)) {
						if got := between[k]; got != before[k] && got != desired[k] {
							t.Fatalf("killed at batch %d, after it %t: %s gets %.300s\nbefore: %.300s\ndesired: %.300s", at, after, k, got, before[k], desired[k])
						}
					}
					if !m.died {
						if !maps.Equal(between, desired) {
							t.Error("without its death it was not complete")
						}
						break
					}
					died++
				}
			}
			if died < 2*c.atLeast {
				t.Errorf("it died %d times only", died)
			}
		})
	}
}

// TestForgottenClients: clients that an endpoint served get another one once it is gone, and others
// keep theirs.
func TestForgottenClients(t *testing.T) {
	t.Run("of a running agent", func(t *testing.T) { forgottenClients(t, false) })
	t.Run("while no agent runs", func(t *testing.T) { forgottenClients(t, true) })
}

func forgottenClients(t *testing.T, restarted bool) {
	p := newProgramming(t)
	s := web()
	s.AffinitySeconds = 60
	p.set([]*dataplane.Service{s})
	d := p.apply(nil)
	chosen := map[string]netip.AddrPort{}
	ask := func(client string) []kernelmodel.Outcome {
		t.Helper()
		outcomes, err := p.kernel.Trace(kernelmodel.Packet{
			Protocol: "tcp", In: "eth0", Source: netip.MustParseAddr(client), Destination: netip.MustParseAddrPort("10.96.0.1:80"),
		})
		if err != nil {
			t.Fatal(err)
		}
		return outcomes
	}
	for i, client := range []string{"198.51.100.1", "198.51.100.2"} {
		o := ask(client)[i]
		p.kernel.Remember(o)
		chosen[client] = o.Endpoint
		if again := ask(client); len(again) != 1 || again[0].Endpoint != o.Endpoint {
			t.Errorf("%s does not keep %s: %+v", client, o.Endpoint, again)
		}
	}
	after := *s
	after.Ports = slices.Clone(s.Ports)
	after.Ports[0].Cluster = []netip.AddrPort{chosen["198.51.100.2"], netip.MustParseAddrPort("10.244.3.3:8080")}
	p.set([]*dataplane.Service{&after})
	if restarted {
		d = nil
	}
	p.apply(d)
	if got := ask("198.51.100.1"); len(got) != 2 {
		t.Errorf("the client of an endpoint that is gone gets %+v", got)
	}
	if got := ask("198.51.100.2"); len(got) != 1 || got[0].Endpoint != chosen["198.51.100.2"] {
		t.Errorf("the other client gets %+v", got)
	}
	p.kernel.Pass(61e9)
	if got := ask("198.51.100.2"); len(got) != 2 {
		t.Errorf("after a minute it gets %+v", got)
	}
}
