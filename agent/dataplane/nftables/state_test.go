package nftables

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// randomService is a Service of a number, of any kind.
func randomService(r *rand.Rand, n int) *dataplane.Service {
	some := func(of []netip.AddrPort) []netip.AddrPort {
		return slices.DeleteFunc(slices.Clone(of), func(netip.AddrPort) bool { return r.IntN(2) == 0 })
	}
	all := eps("10.244.0.1:80 10.244.0.2:80 10.244.1.1:80 10.244.1.2:80 10.244.1.3:80")
	s := &dataplane.Service{
		Name: dataplane.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", n)}, ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}),
		ExternalLocal: r.IntN(2) == 0, InternalLocal: r.IntN(3) == 0, AffinitySeconds: []int32{0, 0, 60, 10800}[r.IntN(4)],
	}
	if r.IntN(2) == 0 {
		s.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(n)})}
	}
	if r.IntN(2) == 0 {
		s.LoadBalancerIPs = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 114, byte(n)})}
		for _, text := range []string{"198.51.100.0/24", "198.51.100.128/25", "192.0.2.0/24"}[:r.IntN(4)] {
			s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix(text))
		}
	}
	for i, protocol := range []v1alpha1.Protocol{v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP}[:1+r.IntN(2)] {
		p := dataplane.Port{Name: fmt.Sprintf("p%d", i), Protocol: protocol, Port: 80, Cluster: some(all), Local: some(all[:2]), LocalEndpoints: some(all[:2])}
		p.Available = len(p.Cluster)+len(p.Local) > 0
		if r.IntN(2) == 0 {
			p.NodePort = uint16(30000 + 10*n + i) //nolint:gosec // few
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// described is a line for each destination, cluster IP and hairpin address of a state.
func described(s *state) []string {
	var out []string
	for k, o := range s.destinations {
		out = append(out, fmt.Sprintf("%s %s %s:%s %s %v %v or %s, affinity %d", k.AddrPort, k.protocol, o.service, o.port, o.chain.name(), o.endpoints, o.local, o.circuit.name(), o.affinity))
	}
	for a := range s.clusterIPs {
		out = append(out, "cluster IP "+a.String())
	}
	return slices.Sorted(slices.Values(out))
}

// TestUpdates changes random Services, and reads back what the kernel has after each batch.
func TestUpdates(t *testing.T) {
	conn := ownNamespace(t)
	c := testConfig
	random := rand.New(rand.NewPCG(dataplanetest.Seed(t), 1)) //nolint:gosec // a test
	var b nft.Batch
	c.addLayout(&b, nil)
	if err := conn.Commit(&b, 0); err != nil {
		t.Fatal(err)
	}
	s := newState()
	for round := range 60 {
		u := c.newUpdate(s)
		for range 1 + random.IntN(3) {
			n := 1 + random.IntN(8)
			service := randomService(random, n)
			if _, again := u.services[service.Name]; again {
				continue
			}
			if random.IntN(4) == 0 {
				u.set(service.Name, nil)
				continue
			}
			plan := c.planService(service)
			u.set(service.Name, &plan)
		}
		b.Reset()
		u.layout(&b)
		u.laidOut()
		u.batch(&b)
		if err := conn.Commit(&b, 0); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		u.done()
		l, err := c.list(conn)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := described(c.state(l)), described(s); !slices.Equal(got, want) {
			t.Fatalf("round %d: the table has\n%q\nnot\n%q", round, got, want)
		}
		if got, want := l.elements[setHairpin].len(), len(s.hairpin); got != want {
			t.Fatalf("round %d: %d hairpin addresses, not %d", round, got, want)
		}
		ranges, endpoints := 0, 0
		for d := range maps.Values(s.destinations) {
			ranges += len(d.ranges)
			endpoints += len(d.endpoints) + len(d.local)
		}
		listed := 0
		for _, bits := range numbers(s.numbered, rangesPrefix) {
			listed += l.elements[rangesSet(int(bits))].len()
		}
		if listed != ranges {
			t.Fatalf("round %d: %d source ranges, not %d", round, listed, ranges)
		}
		if got := l.elements[setEndpoints].len() + l.elements[setLocal].len(); got != endpoints {
			t.Fatalf("round %d: %d endpoints, not %d", round, got, endpoints)
		}
		for of := range s.chains {
			if rules := l.rules[of.name()]; !slices.EqualFunc(c.rules(of), rules, func(w rule, l []nft.Expr) bool { return nft.Same(w, l) }) {
				t.Fatalf("round %d: chain %s has other rules", round, of.name())
			}
		}
	}
	u := c.newUpdate(s)
	for name := range maps.Clone(s.services) {
		u.set(name, nil)
	}
	b.Reset()
	u.layout(&b)
	u.laidOut()
	u.batch(&b)
	if err := conn.Commit(&b, 0); err != nil {
		t.Fatal(err)
	}
	u.done()
	l, err := c.list(conn)
	if err != nil {
		t.Fatal(err)
	}
	for set, elements := range l.elements {
		if elements.len() > 0 {
			t.Errorf("%d elements of %s are left", elements.len(), set)
		}
	}
	if len(s.destinations)+len(s.services)+len(s.clusterIPs)+len(s.hairpin) > 0 {
		t.Errorf("left in the state: %+v", s)
	}
}

// TestReplacedEndpoint writes two messages for one replaced endpoint.
func TestReplacedEndpoint(t *testing.T) {
	c, s := testConfig, newState()
	set := func(service *dataplane.Service) *nft.Batch {
		u, b := c.newUpdate(s), &nft.Batch{}
		plan := c.planService(service)
		u.set(service.Name, &plan)
		u.layout(b)
		u.laidOut()
		u.batch(b)
		u.done()
		return b
	}
	before := web()
	before.Ports[0].NodePort, before.ExternalIPs, before.LoadBalancerIPs = 0, nil, nil
	set(before)
	after := *before
	after.Ports = slices.Clone(before.Ports)
	after.Ports[0].Cluster = eps("10.244.0.1:8080 10.244.7.7:8080")
	if b := set(&after); b.Len() != 2 {
		t.Errorf("%d messages, not one that deletes and one that adds", b.Len())
	}
	if b := set(&after); b.Len() != 0 {
		t.Errorf("%d messages for no change", b.Len())
	}
}

func TestParseChain(t *testing.T) {
	for _, treats := range []treatment{pick, cluster, external, externalLocal} {
		for bits := range 8 {
			of := chain{treatment: treats, limited: bits&1 != 0, local: bits&2 != 0 || treats == externalLocal, affine: bits&4 != 0, count: bits}
			if treats == external && of.local {
				continue // its name is that of externalLocal, and no destination has it
			}
			if got, ok := parseChain(of.name()); !ok || got != of {
				t.Errorf("%s is parsed as %+v, %v", of.name(), got, ok)
			}
		}
	}
	for _, name := range []string{"", "cluster", "cluster-", "cluster-x", "other-3", "cluster--3", "cluster-03", "nat-prerouting"} {
		if got, ok := parseChain(name); ok {
			t.Errorf("%q is parsed as %+v", name, got)
		}
	}
}
