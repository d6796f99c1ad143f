package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func addrs(text string) []netip.Addr {
	var out []netip.Addr
	for a := range strings.FieldsSeq(text) {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func eps(text string) []netip.AddrPort {
	var out []netip.AddrPort
	for e := range strings.FieldsSeq(text) {
		out = append(out, netip.MustParseAddrPort(e))
	}
	return out
}

var testConfig = &config{
	family: dataplane.IPv4, mark: 0x4000, pods: dataplane.PodTraffic{Source: netip.MustParsePrefix("10.244.0.0/16")},
	nodeIP: netip.MustParseAddr("192.0.2.1"), nodePortIPs: addrs("192.0.2.1 192.0.2.2"),
}

// web is a Service with destinations of all kinds.
func web() *dataplane.Service {
	return &dataplane.Service{
		Name: dataplane.ServiceName{Namespace: "default", Name: "web"}, ClusterIP: netip.MustParseAddr("10.96.0.1"),
		ExternalIPs: addrs("203.0.113.1"), LoadBalancerIPs: addrs("203.0.113.2"),
		Ports: []dataplane.Port{{
			Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80, NodePort: 30080, Available: true,
			Cluster: eps("10.244.0.1:8080 10.244.1.1:8080"), Local: eps("10.244.0.1:8080"), LocalEndpoints: eps("10.244.0.1:8080"),
		}},
	}
}

// planned is a line for each destination.
func planned(p servicePlan) string {
	var out []string
	for _, d := range p.destinations {
		line := d.String() + " "
		if d.chain == (chain{}) {
			line += "drop"
		} else {
			line += d.chain.name()
		}
		if d.circuit != (chain{}) {
			line += " or " + d.circuit.name()
		}
		for _, r := range d.ranges {
			line += " " + r.String()
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func TestPlan(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*dataplane.Service)
		want   string
	}{
		"all kinds": {func(*dataplane.Service) {}, `10.96.0.1:80 cluster-2
203.0.113.1:80 external-2
203.0.113.2:80 external-2
192.0.2.1:30080 external-2
192.0.2.2:30080 external-2`},
		"external policy Local": {func(s *dataplane.Service) { s.ExternalLocal = true }, `10.96.0.1:80 cluster-2
203.0.113.1:80 external-local-1 or pick-2
203.0.113.2:80 external-local-1 or pick-2
192.0.2.1:30080 external-local-1 or pick-2
192.0.2.2:30080 external-local-1 or pick-2`},
		"no local endpoints": {func(s *dataplane.Service) {
			s.ExternalLocal, s.InternalLocal, s.Ports[0].Local, s.Ports[0].NodePort = true, true, nil, 0
		}, `10.96.0.1:80 drop
203.0.113.1:80 external-local-0 or pick-2
203.0.113.2:80 external-local-0 or pick-2`},
		"internal policy Local": {func(s *dataplane.Service) {
			s.InternalLocal, s.ExternalIPs, s.LoadBalancerIPs, s.Ports[0].NodePort = true, nil, nil, 0
		}, `10.96.0.1:80 cluster-local-1`},
		"no endpoints": {func(s *dataplane.Service) {
			s.ExternalLocal, s.Ports[0] = true, dataplane.Port{Protocol: v1alpha1.ProtocolUDP, Port: 53}
		}, `10.96.0.1:53 no-endpoints
203.0.113.1:53 no-endpoints
203.0.113.2:53 no-endpoints`},
		"no endpoints, but source ranges": {func(s *dataplane.Service) {
			s.SourceRanges, s.ExternalIPs = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, nil
			s.Ports[0] = dataplane.Port{Protocol: v1alpha1.ProtocolUDP, Port: 53}
		}, `10.96.0.1:53 no-endpoints
203.0.113.2:53 limited-no-endpoints 198.51.100.0/24`},
		"session affinity": {func(s *dataplane.Service) {
			s.AffinitySeconds, s.ExternalLocal, s.LoadBalancerIPs, s.Ports[0].NodePort = 60, true, nil, 0
		}, `10.96.0.1:80 cluster-affine-2
203.0.113.1:80 external-local-affine-1 or pick-affine-2`},
		"source ranges": {func(s *dataplane.Service) {
			s.SourceRanges, s.Ports[0].NodePort = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, 0
		}, `10.96.0.1:80 cluster-2
203.0.113.1:80 external-2
203.0.113.2:80 limited-external-2 198.51.100.0/24`},
		"source ranges with the node": {func(s *dataplane.Service) {
			s.SourceRanges, s.ExternalIPs, s.Ports[0].NodePort = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, nil, 0
		}, `10.96.0.1:80 cluster-2
203.0.113.2:80 limited-external-2 192.0.2.0/24 203.0.113.2/32`},
		"the same address twice": {func(s *dataplane.Service) {
			s.LoadBalancerIPs, s.SourceRanges, s.Ports[0].NodePort = s.ExternalIPs, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, 0
		}, `10.96.0.1:80 cluster-2
203.0.113.1:80 limited-external-2 192.0.2.0/24 203.0.113.1/32`},
	} {
		t.Run(name, func(t *testing.T) {
			s := web()
			c.change(s)
			if got := planned(testConfig.planService(s)); got != c.want {
				t.Errorf("planned\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestArrange: endpoints keep their indexes, and no index is empty.
func TestArrange(t *testing.T) {
	for name, c := range map[string]struct{ former, now, want string }{
		"first":    {"", "10.0.0.1:1 10.0.0.2:1", "10.0.0.1:1 10.0.0.2:1"},
		"replaced": {"10.0.0.1:1 10.0.0.2:1 10.0.0.3:1", "10.0.0.1:1 10.0.0.3:1 10.0.0.9:1", "10.0.0.1:1 10.0.0.9:1 10.0.0.3:1"},
		"removed":  {"10.0.0.1:1 10.0.0.2:1 10.0.0.3:1", "10.0.0.2:1 10.0.0.3:1", "10.0.0.3:1 10.0.0.2:1"},
		"added":    {"10.0.0.2:1", "10.0.0.1:1 10.0.0.2:1", "10.0.0.2:1 10.0.0.1:1"},
	} {
		if got := arrange(eps(c.former), eps(c.now)); !slices.Equal(got, eps(c.want)) {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	pick := func() []netip.AddrPort {
		var out []netip.AddrPort
		for i := range 20 {
			if random.IntN(2) == 0 {
				out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 1))
			}
		}
		return out
	}
	former := pick()
	for range 1000 {
		now := pick()
		got := arrange(former, now)
		if sorted := slices.SortedFunc(slices.Values(got), netip.AddrPort.Compare); !slices.Equal(sorted, now) {
			t.Fatalf("%v became %v", now, got)
		}
		for i, e := range former {
			if i < len(now) && slices.Contains(now, e) && got[i] != e {
				t.Fatalf("%s moved from index %d in %v", e, i, got)
			}
		}
		former = got
	}
}

// keys are the sets and keys of elements.
func (c *change) keys(of map[string][]nft.Element) []string {
	var out []string
	for set, elements := range of {
		for _, e := range elements {
			out = append(out, fmt.Sprintf("%s %x", set, e.Key))
		}
	}
	return slices.Sorted(slices.Values(out))
}

// TestReplaceDestination changes as little as possible.
func TestReplaceDestination(t *testing.T) {
	before := testConfig.planService(web()).destinations[0]
	count := func(before, after *destination) (deleted, added int) {
		c := newChange()
		c.replaceDestination(web().Name, web().Name, before, after)
		for _, e := range c.deleted {
			deleted += len(e)
		}
		for _, e := range c.added {
			added += len(e)
		}
		return deleted, added
	}
	changed := func(f func(*destination)) *destination {
		d := before
		f(&d)
		return &d
	}
	for name, c := range map[string]struct {
		before, after  *destination
		deleted, added int
	}{
		"nothing":              {&before, &before, 0, 0},
		"a new one":            {nil, &before, 0, 3},
		"one that is gone":     {&before, nil, 3, 0},
		"an endpoint replaced": {&before, changed(func(d *destination) { d.endpoints = eps("10.244.0.1:8080 10.244.9.9:8080") }), 1, 1},
		"an endpoint added": {&before, changed(func(d *destination) {
			d.endpoints, d.chain.count = eps("10.244.0.1:8080 10.244.1.1:8080 10.244.9.9:8080"), 3
		}), 1, 2},
		"session affinity": {&before, changed(func(d *destination) { d.affinity, d.chain.affine = 60, true }), 1, 2},
		"policy Local": {&before, changed(func(d *destination) {
			d.chain, d.local, d.circuit = chain{treatment: externalLocal, local: true, count: 1}, eps("10.244.0.1:8080"), chain{treatment: pick, count: 2}
		}), 1, 3},
		"ranges": {&before, changed(func(d *destination) { d.ranges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }), 0, 1},
	} {
		if deleted, added := count(c.before, c.after); deleted != c.deleted || added != c.added {
			t.Errorf("%s: %d deleted and %d added, want %d and %d", name, deleted, added, c.deleted, c.added)
		}
	}
	all := newChange()
	all.replaceDestination(web().Name, web().Name, nil, &before)
	back := newChange()
	back.replaceDestination(web().Name, web().Name, &before, nil)
	if got, want := back.keys(back.deleted), all.keys(all.added); !slices.Equal(got, want) {
		t.Errorf("%v are deleted again, not %v", got, want)
	}
}

// TestMerged: ranges inside others go, and the rest covers the same addresses.
func TestMerged(t *testing.T) {
	var in []netip.Prefix
	for _, text := range []string{"10.0.0.0/8", "10.1.0.0/16", "192.0.2.0/25", "192.0.2.128/25", "10.0.0.0/8", "192.0.2.7/32"} {
		in = append(in, netip.MustParsePrefix(text))
	}
	if got := fmt.Sprint(merged(in)); got != "[10.0.0.0/8 192.0.2.0/25 192.0.2.128/25]" {
		t.Errorf("merged to %s", got)
	}
}

// TestRealElements has the kernel take a Service of each kind, change it and delete it again.
func TestRealElements(t *testing.T) {
	conn := ownNamespace(t)
	c := testConfig
	has := map[chain]struct{}{}
	var b nft.Batch
	numbered := numberedSets{{affinePrefix, 60}: {}, {rangesPrefix, 24}: {}, {rangesPrefix, 32}: {}}
	c.addLayout(&b, numbered)
	names := c.setNames(numbered)
	write := func(before, after servicePlan) {
		t.Helper()
		change := newChange()
		was, is := map[key]*destination{}, map[key]*destination{}
		for i := range before.destinations {
			was[before.destinations[i].key] = &before.destinations[i]
		}
		for i := range after.destinations {
			is[after.destinations[i].key] = &after.destinations[i]
			c.addChain(&b, after.destinations[i].chain, has)
			c.addChain(&b, after.destinations[i].circuit, has)
		}
		keys := maps.Clone(was)
		maps.Copy(keys, is)
		for k := range keys {
			change.replaceDestination(web().Name, web().Name, was[k], is[k])
		}
		change.appendTo(&b, c.table(), names)
		if err := conn.Commit(&b, 0); err != nil {
			t.Fatal(err)
		}
		b.Reset()
	}
	elements := func() (n int) {
		for _, name := range names {
			if err := conn.Elements(c.table(), name, func(*nft.Element) { n++ }); err != nil {
				t.Fatal(err)
			}
		}
		return n
	}
	s := web()
	s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("192.0.2.0/24")}
	first := c.planService(s)
	write(servicePlan{}, first)
	if n := elements(); n != 5*3+3 {
		t.Errorf("%d elements", n)
	}
	s = web()
	s.ExternalLocal, s.AffinitySeconds = true, 60
	second := c.planService(s)
	write(first, second)
	if n := elements(); n != 5*(1+1+2)+4*(1+1) {
		t.Errorf("%d elements after the change", n)
	}
	write(second, servicePlan{})
	if n := elements(); n != 0 {
		t.Errorf("%d elements at the end", n)
	}
}

// TestSize: a plan has no more elements than its size, by which batches and Services are bounded, with
// session affinity, too.
func TestSize(t *testing.T) {
	random := rand.New(rand.NewPCG(dataplanetest.Seed(t), 1)) //nolint:gosec // a test
	affine := 0
	for n := range 500 {
		plan := testConfig.planService(randomService(random, 1+n%200))
		elements := len(plan.hairpin) + 1
		for i := range plan.destinations {
			c := newChange()
			c.replaceDestination(plan.name, plan.name, nil, &plan.destinations[i])
			elements += c.size()
			affine += len(c.added[affineSet(60)])
		}
		if elements > plan.size() {
			t.Errorf("%d elements of a plan of size %d", elements, plan.size())
		}
	}
	if affine == 0 {
		t.Error("no Service has session affinity")
	}
}
