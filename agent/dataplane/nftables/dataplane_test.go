package nftables

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// rig is a Dataplane in a network namespace of its own, with the Ruleset that it is to apply.
type rig struct {
	testing.TB
	*Dataplane
	rules dataplane.Ruleset
	conn  *nft.Conn
	of    dataplane.Family
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return rigWith(t, ownNamespace(t), dataplane.IPv4)
}

// rigWith is a rig in the namespace of the calling thread.
func rigWith(t testing.TB, conn *nft.Conn, family dataplane.Family) *rig {
	t.Helper()
	r := &rig{TB: t, conn: conn, of: family, rules: dataplane.Ruleset{
		Full: true, Prune: true, Services: map[dataplane.ServiceName]*dataplane.Service{}, Dirty: map[dataplane.ServiceName]struct{}{},
		Node: dataplane.Node{Settings: v1alpha1.CompleteSettings(nil), Addresses: addrs("192.0.2.1")},
	}}
	r.restart()
	return r
}

// restart begins with a new Dataplane.
func (r *rig) restart() {
	r.Dataplane = New(r.of, Options{Shared: true}) // so that the test may change the table
	r.interfaces = func() ([]netip.Addr, error) { return addrs("127.0.0.1 192.0.2.1 192.0.2.2"), nil }
	r.rules.Full = true
}

func (r *rig) set(s *dataplane.Service) {
	r.rules.Services[s.Name], r.rules.Dirty[s.Name] = s, struct{}{}
}

// apply applies the Ruleset; the next one is partial. No difference may be left.
func (r *rig) apply() dataplane.Result {
	r.Helper()
	result, err := r.Apply(r.Context(), &r.rules)
	if err != nil {
		r.Fatal(err)
	}
	r.rules.Full, r.rules.Dirty = false, map[dataplane.ServiceName]struct{}{}
	if d, err := r.Verify(r.Context(), &r.rules, dataplane.VerifyOptions{}); err != nil || d.Count > 0 || d.Drifted {
		r.Fatalf("after Apply: %v, %d differences: %q", err, d.Count, d.Examples)
	} else if !maps.Equal(d.Counts, result.Counts) {
		r.Errorf("the result counts %v, and the kernel has %v", result.Counts, d.Counts)
	}
	return result
}

func (r *rig) nft(command string) {
	r.Helper()
	if out, err := exec.CommandContext(r.Context(), "nft", command).CombinedOutput(); err != nil {
		r.Fatalf("%s: %v: %s", command, err, out)
	}
}

// TestProgress: each batch and each listed set counts as progress, however many Services there are.
func TestProgress(t *testing.T) {
	r := newRig(t)
	const services = 5
	for n := range services {
		r.set(numbered(n, r.batch/2)) // no two fit a batch
	}
	steps := 0
	ctx := dataplane.WithProgress(t.Context(), func() { steps++ })
	if _, err := r.Apply(ctx, &r.rules); err != nil || steps < services {
		t.Errorf("%d steps of an Apply by %d batches, %v", steps, services, err)
	}
	steps = 0
	if _, err := r.Verify(ctx, &r.rules, dataplane.VerifyOptions{}); err != nil || steps < len(r.config.sets())-1 { // but for the clients
		t.Errorf("%d steps of a Verify of %d sets, %v", steps, len(r.config.sets()), err)
	}
}

// TestApply applies random changes, in part and in full.
func TestApply(t *testing.T) {
	r := newRig(t)
	random := rand.New(rand.NewPCG(dataplanetest.Seed(t), 1)) //nolint:gosec // a test
	for range 60 {
		s := randomService(random, 1+random.IntN(10))
		if r.set(s); random.IntN(4) == 0 {
			delete(r.rules.Services, s.Name)
		}
		switch random.IntN(6) {
		case 0:
			r.rules.Full = true
		case 1:
			r.restart()
		}
		full := r.rules.Full
		if result := r.apply(); (result.Kind == v1alpha1.SyncFull) != full {
			t.Errorf("a sync of kind %s", result.Kind)
		}
	}
}

// TestRestartWritesNothing: the generation of nf_tables stays.
func TestRestartWritesNothing(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	before, err := r.conn.Generation()
	if err != nil {
		t.Fatal(err)
	}
	r.restart()
	if result := r.apply(); result.ServicesChanged != 0 {
		t.Errorf("%d Services changed", result.ServicesChanged)
	}
	if after, err := r.conn.Generation(); err != nil || after != before {
		t.Errorf("generation %d, before %d, %v", after, before, err)
	}
}

// TestRejectedService: the others are programmed, in part and in full.
func TestRejectedService(t *testing.T) {
	r := newRig(t)
	bad := web()
	bad.Ports[0].Cluster = append(bad.Ports[0].Cluster, netip.MustParseAddrPort("[fd00::1]:80")) // of the other family
	other := randomService(rand.New(rand.NewPCG(1, 1)), 7)                                       //nolint:gosec // a test
	for name, full := range map[string]bool{"in full": true, "in part": false} {
		r.set(bad)
		r.set(other)
		r.rules.Full = full
		result := r.apply()
		if _, rejected := result.Rejected[bad.Name]; !rejected || len(result.Rejected) != 1 || !result.Failed {
			t.Errorf("%s: rejected are %v", name, result.Rejected)
		}
		if r.actual.services[other.Name] == nil {
			t.Errorf("%s: the other Service is not programmed", name)
		}
	}
	r.set(web())
	if result := r.apply(); len(result.Rejected) > 0 {
		t.Errorf("the corrected Service: %v", result.Rejected)
	}
	for range 2 { // what the kernel has of it stays, whether it is tried again or rests
		bad.Ports[0].Port = 81
		r.set(bad)
		r.rules.Full = true
		r.apply()
		l, err := r.config.list(r.conn)
		if err != nil {
			t.Fatal(err)
		}
		k := key{netip.MustParseAddrPort("10.96.0.1:80"), v1alpha1.ProtocolTCP}
		if o := r.config.state(l).destinations[k]; o.destination == nil || o.chain.name() != "cluster-2" {
			t.Errorf("the table has %+v of the rejected Service", o.destination)
		}
		r.rules.Rest = map[dataplane.ServiceName]struct{}{bad.Name: {}}
	}
}

// TestConflict: two Services ask for one destination, and the better claim wins; the other gets it
// when it is free.
func TestConflict(t *testing.T) {
	r := newRig(t)
	first, second := web(), web()
	second.Name.Name, second.ClusterIP, second.ExternalIPs, second.LoadBalancerIPs = "web2", netip.MustParseAddr("10.96.0.9"), nil, nil
	r.set(first)
	r.set(second) // the same node port
	result := r.apply()
	if why := result.Rejected[second.Name]; !strings.Contains(why, "Service default/web has 192.0.2.1:30080, protocol TCP (and 1 more)") {
		t.Errorf("rejected: %v", result.Rejected)
	}
	delete(r.rules.Services, first.Name)
	r.rules.Dirty[first.Name] = struct{}{}
	if result := r.apply(); len(result.Rejected) > 0 {
		t.Errorf("once it is free: %v", result.Rejected)
	}
}

// TestDrift: changes by another program are found, and repaired by a full pass.
func TestDrift(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	for _, command := range []string{"flush ruleset", "flush map ip nodeproxy endpoints", "flush chain ip nodeproxy nat-output"} {
		r.nft(command)
		if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Audit: true}); err != nil || d.Count == 0 || !d.Drifted || len(d.Findings) != d.Count {
			t.Errorf("%s: %+v, %v", command, d, err)
		}
		r.rules.Full = true
		r.apply()
	}
	r.nft("delete table ip nodeproxy")
	r.nft("add table ip nodeproxy")
	r.nft("add set ip nodeproxy service-ips { type ipv4_addr; }")
	r.rules.Full = true
	r.apply()
}

// TestForgetClients: clients of an endpoint that is gone get another one.
func TestForgetClients(t *testing.T) {
	r := newRig(t)
	s := web()
	s.AffinitySeconds = 60
	r.set(s)
	r.apply()
	r.nft("add element ip nodeproxy affinity { 198.51.100.1 . 10.96.0.1 . tcp . 80 timeout 60s : 10.244.0.1 . 8080, 198.51.100.2 . 10.96.0.1 . tcp . 80 timeout 60s : 10.244.1.1 . 8080 }")
	after := *s
	after.Ports = slices.Clone(s.Ports)
	after.Ports[0].Cluster = eps("10.244.1.1:8080 10.244.2.2:8080")
	r.set(&after)
	r.apply()
	if clients := r.clients(); !slices.Equal(clients, []string{"198.51.100.2"}) {
		t.Errorf("clients %v", clients)
	}
}

// setAffine gives six Services session affinity, and so many endpoints.
func (r *rig) setAffine(endpoints int) {
	for n := range 6 {
		s := numbered(n, endpoints)
		s.AffinitySeconds = 60
		r.set(s)
	}
}

// clients are the addresses of those that keep an endpoint.
func (r *rig) clients() (out []string) {
	r.Helper()
	err := r.conn.Elements(r.config.table(), setAffinity, func(e *nft.Element) {
		a, _ := netip.AddrFromSlice(e.Key[:4])
		out = append(out, a.String())
	})
	if err != nil {
		r.Fatal(err)
	}
	return out
}

// TestForgetClientsOfAPart: clients of an endpoint that a batch has removed get another one although the next
// batch fails, and the full pass after it.
func TestForgetClientsOfAPart(t *testing.T) {
	r := newRig(t)
	r.setAffine(4)
	r.apply()
	for n := range 6 { // of the endpoint that goes
		r.nft(fmt.Sprintf("add element ip nodeproxy affinity { 198.51.100.%d . 172.16.0.%d . tcp . 80 timeout 60s : 10.128.0.%d . 8003 }", n, n, n))
	}
	batches := 0
	r.wrap(func(b *nft.Batch, generation uint32, under kernel) error {
		if batches++; batches > 2 && b.Len() != 1 { // after the first part, all but the message that deletes clients
			return unix.ENOMEM
		}
		return under.Commit(b, generation)
	})
	r.batch = 20 // two Services
	r.setAffine(3)
	if _, err := r.Apply(t.Context(), &r.rules); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("the error is %v", err)
	}
	if clients := r.clients(); len(clients) != 4 { // of the other Services
		t.Errorf("clients %v", clients)
	}
}

// TestForgetClientsOnce: an Apply lists the clients once, however many batches it takes, and even if another
// program commits meanwhile.
func TestForgetClientsOnce(t *testing.T) {
	r := newRig(t)
	r.setAffine(4)
	r.apply()
	r.nft("add element ip nodeproxy affinity { 198.51.100.1 . 172.16.0.1 . tcp . 80 timeout 60s : 10.128.0.1 . 8003, 198.51.100.2 . 172.16.0.1 . tcp . 80 timeout 60s : 10.128.0.1 . 8000 }")
	k := &busy{kernel: r.kernel, dumps: map[string]int{}, during: func(part string, _ int) bool { return part == setAffinity }}
	r.kernel, r.batch = k, 20 // two Services
	r.setAffine(3)
	if r.apply(); k.dumps[setAffinity] != 1 {
		t.Errorf("the clients are listed %d times", k.dumps[setAffinity])
	}
	if clients := r.clients(); !slices.Equal(clients, []string{"198.51.100.2"}) {
		t.Errorf("clients %v", clients)
	}
}

// TestCleanup removes the table, and costs nothing if there is none.
func TestCleanup(t *testing.T) {
	r := newRig(t)
	if err := r.Supported(t.Context(), &r.rules); err != nil {
		t.Errorf("not supported: %v", err)
	}
	if out, err := exec.Command("nft", "list", "ruleset").Output(); err != nil || len(out) > 0 {
		t.Errorf("after the probe: %v: %s", err, out)
	}
	r.set(web())
	r.apply()
	for range 2 {
		if pending, err := r.CleanupMode(t.Context(), &r.rules); pending != "" || err != nil {
			t.Fatal(pending, err)
		}
		if found, _, err := r.conn.HasTable(r.config.table()); found || err != nil {
			t.Errorf("the table is there: %v, %v", found, err)
		}
	}
	r.rules.Full = true
	r.apply()
}

// lacking is a kernel that lacks a feature, or permission.
type lacking struct {
	kernel
	err error
}

func (k lacking) Commit(*nft.Batch, uint32) error { return k.err }
func (k lacking) Port() uint32                    { return 0 }

func TestUnsupported(t *testing.T) {
	r := newRig(t)
	r.kernel = lacking{err: &nft.RejectedError{Message: 3, Err: unix.EOPNOTSUPP}}
	if err := r.Supported(t.Context(), &r.rules); !errors.Is(err, dataplane.ErrUnsupported) || !strings.Contains(err.Error(), "another mode") {
		t.Errorf("a kernel that lacks a feature: %v", err)
	}
	r.open = func() (kernel, error) { return nil, unix.EPERM }
	r.kernel = nil
	if err := r.Supported(t.Context(), &r.rules); !errors.Is(err, dataplane.ErrUnsupported) {
		t.Errorf("without permission: %v", err)
	}
	if err := r.Dataplane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
		t.Errorf("cleanup: %v", err)
	}
}

// TestPendingIsNoDrift: what has changed since the last Apply is a difference, and not by others.
func TestPendingIsNoDrift(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.set(numbered(1, 3))
	r.apply()
	for name, c := range map[string]struct {
		change func()
		count  bool
		drift  bool
	}{
		"nothing":              {func() {}, false, false},
		"a Service that waits": {func() { r.set(numbered(1, 4)) }, true, false},
		"one with affinity": {func() {
			s := numbered(1, 3)
			s.AffinitySeconds = 77
			r.set(s)
		}, true, false},
		"a new one": {func() { r.set(numbered(2, 4)) }, true, false},
		"an ended one": {func() {
			delete(r.rules.Services, web().Name)
			r.rules.Dirty[web().Name] = struct{}{}
		}, true, false},
		"other settings":           {func() { r.rules.Node.Settings.Masquerade.Bit = new(int32(15)) }, true, false},
		"another one beside a new": {func() { r.set(numbered(2, 4)); r.nft("flush map ip nodeproxy endpoints") }, true, true},
	} {
		c.change()
		d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{})
		if err != nil || d.Count > 0 != c.count || d.Drifted != c.drift {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
		r.rules.Node.Settings.Masquerade.Bit = new(int32(14))
		r.set(web())
		r.set(numbered(1, 3))
		delete(r.rules.Services, numbered(2, 4).Name)
		r.rules.Dirty[numbered(2, 4).Name] = struct{}{}
		r.rules.Full = true
		r.apply()
	}
}

// TestRepairedIsOfOthers: a full pass that nothing asked for counts what another program has changed,
// and not what is to change.
func TestRepairedIsOfOthers(t *testing.T) {
	r := newRig(t)
	r.set(numbered(1, 3))
	r.apply()
	r.nft("delete element ip nodeproxy endpoints { 172.16.0.1 . tcp . 80 . 0x00000000 }")
	r.set(numbered(1, 3, 9)) // deletes it, too
	r.set(numbered(2, 7))
	result := r.apply()
	if got := result.Repaired; result.Kind != v1alpha1.SyncFull || got.Count != 1 || got.Examples[0] != "Service ns1/service-1: missing or different: 1 element of endpoints" {
		t.Errorf("a sync of kind %s has repaired %d: %q", result.Kind, got.Count, got.Examples)
	}
}

// TestUnread: a verification that relies on the generation of nf_tables reports it.
func TestUnread(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	for i := range maxUnread + 1 {
		if d, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{}); err != nil || d.Unread != (i < maxUnread) || len(d.Counts) == 0 {
			t.Errorf("verification %d: unread: %v, %v, %v", i, d.Unread, d.Counts, err)
		}
	}
}
