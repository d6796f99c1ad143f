package nftables

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// wrapped is a kernel with another Commit.
type wrapped struct {
	kernel
	commit func(*nft.Batch, uint32) error
}

func (k *wrapped) Commit(b *nft.Batch, generation uint32) error { return k.commit(b, generation) }

// wrap replaces how the kernel takes batches.
func (r *rig) wrap(commit func(b *nft.Batch, generation uint32, under kernel) error) {
	r.Helper()
	if err := r.connect(); err != nil {
		r.Fatal(err)
	}
	under := r.kernel
	r.kernel = &wrapped{under, func(b *nft.Batch, generation uint32) error { return commit(b, generation, under) }}
}

// TestLackingKernel: whatever the kernel rejects of the probe, the error names it.
func TestLackingKernel(t *testing.T) {
	r := newRig(t)
	seen := map[string]struct{}{}
	messages := 2
	for at := 0; at < messages-1; at++ {
		r.restart()
		r.wrap(func(b *nft.Batch, _ uint32, _ kernel) error {
			messages = b.Len()
			return &nft.RejectedError{Message: at, Err: unix.EOPNOTSUPP}
		})
		err := r.Supported(t.Context(), &r.rules)
		if !errors.Is(err, dataplane.ErrUnsupported) {
			t.Fatalf("message %d: %v", at, err)
		}
		_, text, _ := strings.Cut(err.Error(), "lacks ")
		text, _, _ = strings.Cut(text, ";")
		seen[text] = struct{}{}
	}
	for _, want := range []string{
		"what table nodeproxy-probe needs", "what set source-ranges-24 needs", "what chain nat-prerouting needs",
		"one of the expressions meta, cmp, reject in a rule of chain no-endpoints",
		"one of the expressions payload, meta, payload, numgen, lookup, nat in a rule of chain pick-1",
	} {
		if _, found := seen[want]; !found {
			t.Errorf("no message is described as %q: %v", want, seen)
		}
	}
}

// TestUnknownTable: a table of our name by another program becomes ours.
func TestUnknownTable(t *testing.T) {
	for what, commands := range map[string][]string{
		"empty":                       nil,
		"a set of another type":       {"add set ip nodeproxy service-ips { type ipv4_addr; }"},
		"a chain with another hook":   {"add chain ip nodeproxy nat-prerouting { type nat hook prerouting priority -150; }"},
		"a hook where we have none":   {"add chain ip nodeproxy no-endpoints { type filter hook input priority 0; policy drop; }"},
		"a base chain that drops":     {"add chain ip nodeproxy mine { type filter hook forward priority 0; policy drop; }"},
		"a chain that others lead to": {"add chain ip nodeproxy mine", "add chain ip nodeproxy pick-2", "add rule ip nodeproxy pick-2 goto mine"},
		"elements of ours": {
			"add map ip nodeproxy service-ips { type ipv4_addr . inet_proto . inet_service : verdict; }",
			"add chain ip nodeproxy mine", "add element ip nodeproxy service-ips { 10.96.0.1 . tcp . 80 : goto mine, 192.0.2.9 . 255 . 80 : drop }",
		},
		"a timeout of affinity that is none": {"add set ip nodeproxy affine-0 { type ipv4_addr; }", "add set ip nodeproxy affine-x { type ipv4_addr; }"},
		"a length of ranges that is none":    {"add set ip nodeproxy source-ranges-33 { type ipv4_addr; }", "add set ip nodeproxy source-ranges-08 { type ipv4_addr; }"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.nft("add table ip nodeproxy")
			for _, command := range commands {
				r.nft(command)
			}
			r.set(web())
			r.apply()
			if out, err := exec.Command("nft", "list", "ruleset").Output(); err != nil || strings.Contains(string(out), "mine") || strings.Contains(string(out), "policy drop") {
				t.Errorf("%v: left: %s", err, out)
			}
		})
	}
}

// sizes counts the elements of sets, and the rules of chains.
func (r *rig) sizes() (elements, rules map[string]int) {
	r.Helper()
	l, err := (&config{family: r.of}).list(r.conn)
	if err != nil {
		r.Fatal(err)
	}
	elements, rules = map[string]int{}, map[string]int{}
	for set, of := range l.elements {
		elements[set] = of.len()
	}
	for chain, of := range l.rules {
		rules[chain] = len(of)
	}
	return elements, rules
}

// TestChangedMeanwhile: another program changes the tables between our reading and writing.
func TestChangedMeanwhile(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	changed := web()
	changed.Ports[0].Cluster = eps("10.244.9.9:8080")
	for _, full := range []bool{true, false} {
		r.set(changed)
		r.rules.Full = full
		interfere := true
		r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
			if interfere {
				interfere = false
				r.nft("flush map ip nodeproxy endpoints") // of which the batch deletes elements
			}
			return under.Commit(b, generation)
		})
		if result := r.apply(); len(result.Rejected) > 0 {
			t.Errorf("full %v: rejected are %v", full, result.Rejected)
		}
		r.kernel = r.kernel.(*wrapped).kernel //nolint:forcetypeassert // see wrap
		changed = web()
	}

	r.nft("delete table ip nodeproxy")
	r.nft("add table ip nodeproxy")
	r.nft("add set ip nodeproxy service-ips { type ipv4_addr; }") // which takes a new table
	tries := 0
	r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
		if generation != 0 {
			if tries++; tries == 1 {
				return under.Commit(b, generation+1)
			}
		}
		return under.Commit(b, generation)
	})
	r.rules.Full = true
	if r.apply(); tries != 2 {
		t.Errorf("%d tries", tries)
	}

	r.rules.Full = true
	r.nft("flush map ip nodeproxy endpoints")
	r.kernel.(*wrapped).commit = func(*nft.Batch, uint32) error { return nft.ErrChanged } //nolint:forcetypeassert // see wrap
	if _, err := r.Apply(t.Context(), &r.rules); !errors.Is(err, nft.ErrChanged) {
		t.Errorf("if it never ends: %v", err)
	}
}

// TestFullSet: the Service that does not fit is rejected, and others are programmed.
func TestFullSet(t *testing.T) {
	r := newRig(t)
	r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
		if b.Size() > 64<<10 {
			return &nft.RejectedError{Message: 0, Err: unix.ENFILE}
		}
		return under.Commit(b, generation)
	})
	large := web()
	large.Name.Name = "large"
	large.ClusterIP, large.ExternalIPs, large.LoadBalancerIPs, large.Ports[0].NodePort = netip.MustParseAddr("10.96.0.9"), nil, nil, 0
	large.Ports[0].Cluster = numbered(1, 2).Ports[0].Cluster
	for i := range uint16(1500) {
		large.Ports[0].Cluster = append(large.Ports[0].Cluster, netip.AddrPortFrom(netip.MustParseAddr("10.244.3.3"), 1+i))
	}
	r.set(large)
	for n := range 100 {
		r.set(numbered(n, 3))
	}
	result := r.apply()
	if why := result.Rejected[large.Name]; len(result.Rejected) != 1 || !strings.Contains(why, unix.ENFILE.Error()) {
		t.Errorf("rejected are %v", result.Rejected)
	}
	if len(r.actual.services) != 100 {
		t.Errorf("%d Services are programmed", len(r.actual.services))
	}
}

// TestTooLargeService: it is rejected before it costs the kernel anything.
func TestTooLargeService(t *testing.T) {
	for limit, change := range map[int]func(s *dataplane.Service, i int){
		maxServiceElements: func(s *dataplane.Service, i int) {
			s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
			s.Ports[0].Cluster = append(s.Ports[0].Cluster, netip.AddrPortFrom(netip.MustParseAddr("10.244.3.3"), uint16(1+i))) //nolint:gosec // few
		},
		maxServiceRanges: func(s *dataplane.Service, i int) {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))
			s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}), 32))
		},
	} {
		r := newRig(t)
		large := web()
		large.Name.Name, large.Ports[0].NodePort = "large", 0
		count := 540 // squared, it exceeds the limit, and no larger one
		if limit == maxServiceRanges {
			count = 150
		}
		for i := range count {
			change(large, i)
		}
		other := numbered(1, 3)
		r.set(other)
		for range 2 { // in full, and in part
			r.set(large)
			result := r.apply()
			if why := result.Rejected[large.Name]; len(result.Rejected) != 1 || !strings.HasSuffix(why, fmt.Sprintf("more than %d", limit)) {
				t.Errorf("rejected are %v", result.Rejected)
			}
			if r.actual.services[other.Name] == nil || r.actual.services[large.Name] != nil {
				t.Errorf("programmed are %v", r.actual.services)
			}
		}
	}
}

// TestRejectedPartially: Services of two namespaces that the kernel rejects cost no full pass, neither
// when they change nor when they are tried again.
func TestRejectedPartially(t *testing.T) {
	r := newRig(t)
	r.set(numbered(0, 3))
	r.apply()
	for try := range 5 {
		for n := range 2 {
			bad := numbered(1+n, 3)
			bad.Ports[0].Cluster = eps(fmt.Sprintf("[fd00::%d]:80", 1+try)) // of the other family
			if try < 3 {
				r.set(bad)
			}
		}
		if result := r.apply(); result.Kind != v1alpha1.SyncPartial || len(result.Rejected) != 2 {
			t.Errorf("%d: sync %s, rejected are %v", try, result.Kind, result.Rejected)
		}
	}
	delete(r.rules.Services, numbered(0, 3).Name)
	r.rules.Full = true
	if _, err := r.Apply(t.Context(), &r.rules); err == nil {
		t.Error("a full pass of which the kernel rejects all Services is no error")
	}
}

// TestServiceAtTheLimits: what the limits of the API permit is not too large, not even if all endpoints
// are local under policy Local. One batch can replace all of it, also at addresses that another such
// Service has.
func TestServiceAtTheLimits(t *testing.T) {
	address := func(block byte, i int) netip.Addr { // IPv6 takes more bytes
		return netip.AddrFrom16([16]byte{0: 0xfd, 8: block, 14: byte(i >> 8), 15: byte(i)}) //nolint:gosec // as intended
	}
	for what, large := range map[string]struct{ ports, endpoints, external, balancers, ranges int }{
		"endpoints": {1, 5000, 19, 0, 0},
		"ports":     {999, 9, 9, 1, 0},
		"ranges":    {1, 10_000, 1, 2, 5000},
	} {
		size := v1alpha1.ServiceSize{
			Ports: large.ports, Addresses: large.external + large.balancers, LoadBalancerIPs: large.balancers, SourceRanges: large.ranges,
			Endpoints: large.endpoints, PortEndpoints: large.ports * large.endpoints,
		}
		if _, excess := size.Excess(); excess != "" {
			t.Fatalf("%s: %s", what, excess)
		}
		service := func(name string, addresses, endpoints byte) *dataplane.Service {
			s := &dataplane.Service{
				Name:      dataplane.ServiceName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat(name, 63)},
				ClusterIP: address(addresses, 0), ExternalLocal: true, AffinitySeconds: 10_800,
			}
			for i := range large.external {
				s.ExternalIPs = append(s.ExternalIPs, address(addresses+1, i))
			}
			for i := range large.balancers {
				s.LoadBalancerIPs = append(s.LoadBalancerIPs, address(addresses+2, i))
			}
			for i := range large.ranges {
				s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(address(addresses+3, i), 128))
			}
			var at []netip.AddrPort
			for i := range large.endpoints {
				at = append(at, netip.AddrPortFrom(address(endpoints, i), 8080))
			}
			for i := range large.ports {
				s.Ports = append(s.Ports, dataplane.Port{
					Name: strings.Repeat("p", 59) + fmt.Sprint(1000+i), Protocol: v1alpha1.ProtocolTCP, Port: uint16(1 + i), //nolint:gosec // few
					Cluster: at, Local: at, LocalEndpoints: at, Available: true,
				})
			}
			return s
		}
		of := newState()
		for _, s := range []*dataplane.Service{service("a", 0, 100), service("b", 10, 110), service("a", 10, 120)} {
			// The node's own address is an allowed source, so load balancers' addresses are, too.
			c := &config{family: dataplane.IPv6, nodeIP: address(3, 0)}
			plan := c.planService(s)
			if why := plan.tooLarge(); why != "" {
				t.Errorf("%s: %s", what, why)
			}
			var layout, b nft.Batch
			u := c.newUpdate(of)
			u.set(s.Name, &plan)
			u.layout(&layout)
			u.laidOut()
			u.batch(&b)
			u.done()
			if err := b.Check(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			t.Logf("%s: %d elements, %d KiB", what, plan.size(), b.Size()>>10)
		}
	}
}

// TestDemotedCounts: what the table has of a rejected Service counts, and not what it asks for.
func TestDemotedCounts(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	bad := web()
	bad.ClusterIP = netip.MustParseAddr("10.96.0.77")
	bad.Ports[0].LocalEndpoints = eps("10.244.0.77:8080")
	bad.Ports[0].Cluster = eps("[fd00::1]:80 10.244.0.77:8080") // of the other family
	r.set(bad)
	r.rules.Full = true
	r.apply()
	has := func(want string) {
		t.Helper()
		l, err := r.config.list(r.conn)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, set := range []string{setClusterIPs, setHairpin} {
			for e := range l.elements[set].all() {
				a, _ := r.config.parseAddress(e.Key)
				got = append(got, a.String())
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("the table has cluster IPs and hairpin addresses %v, not %s", got, want)
		}
	}
	has("10.96.0.1 10.244.0.1")
	k := key{netip.MustParseAddrPort("203.0.113.1:80"), v1alpha1.ProtocolTCP}
	if o := r.actual.destinations[k]; o.service != bad.Name || len(o.endpoints) != 2 {
		t.Errorf("%s is not retained: %+v", k, o)
	}
	good := web()
	good.ClusterIP, good.Ports[0].LocalEndpoints = bad.ClusterIP, bad.Ports[0].LocalEndpoints
	r.set(good) // in part, from the retained one
	r.apply()
	has("10.96.0.77 10.244.0.77")
	delete(r.rules.Services, good.Name)
	r.rules.Dirty[good.Name] = struct{}{}
	r.apply()
	has("")
}

// lossy is a kernel whose first listings lack elements, as while a set's hash table becomes larger.
type lossy struct {
	kernel
	listings int
}

func (k *lossy) Elements(t nft.Table, set string, yield func(*nft.Element)) error {
	if set != setEndpoints {
		return k.kernel.Elements(t, set, yield)
	}
	k.listings++
	n := 0
	return k.kernel.Elements(t, set, func(e *nft.Element) {
		if n++; k.listings > 2 || n%3 != 0 {
			yield(e)
		}
	})
}

// TestIncompleteListing: what a listing lacks although it is there is no difference.
func TestIncompleteListing(t *testing.T) {
	r := newRig(t)
	for n := range 100 {
		r.set(numbered(n, 3))
	}
	r.apply()
	k := &lossy{kernel: r.kernel}
	r.kernel = k
	if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Audit: true}); err != nil || d.Count > 0 || k.listings != 3 {
		t.Errorf("%d differences in %d listings: %q, %v", d.Count, k.listings, d.Examples, err)
	}
	r.nft("delete element ip nodeproxy endpoints { 172.16.0.7 . tcp . 80 . 0x00000000 }")
	if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Audit: true}); err != nil || d.Count != 1 || k.listings != 4 {
		t.Errorf("a real one: %d differences in %d listings, %v", d.Count, k.listings, err)
	}
}

// TestCommentsInListing: nft lists the ruleset with the name of the Service and its port.
func TestCommentsInListing(t *testing.T) {
	r := newRig(t)
	s := web()
	s.AffinitySeconds, s.SourceRanges = 60, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	s.ExternalLocal = true
	long := numbered(7, 3)
	long.Name = dataplane.ServiceName{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 63)}
	r.set(s)
	r.set(long)
	for _, owned := range []bool{false, true} {
		if owned && !r.own() {
			continue
		}
		r.apply()
		out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, want := range []string{
			`10.96.0.1 . tcp . 80 comment "default/web:http" : goto cluster-affine-2`,
			`203.0.113.2 . tcp . 80 comment "default/web:http" : goto limited-external-local-affine-1`,
			`comment "` + nft.Comment(long.Name.String()) + `" : goto cluster-3`,
		} {
			if !strings.Contains(string(out), want) {
				t.Errorf("owned %v: nft does not list %q", owned, want)
			}
		}
		if strings.Contains(string(out), "unknown") {
			t.Errorf("owned %v: nft does not know something: %s", owned, out)
		}
	}
}
