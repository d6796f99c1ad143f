package nftables

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// rig is a Dataplane in a network namespace of its own, with the Ruleset that it is to apply.
type rig struct {
	*testing.T
	*Dataplane
	rules dataplane.Ruleset
	conn  *nft.Conn
}

func newRig(t *testing.T) *rig {
	t.Helper()
	conn := ownNamespace(t)
	r := &rig{T: t, conn: conn, rules: dataplane.Ruleset{
		Full: true, Prune: true, Services: map[dataplane.ServiceName]*dataplane.Service{}, Dirty: map[dataplane.ServiceName]struct{}{},
		Node: dataplane.Node{Settings: v1alpha1.CompleteSettings(nil), Addresses: addrs("192.0.2.1")},
	}}
	r.restart()
	return r
}

// restart begins with a new Dataplane.
func (r *rig) restart() {
	r.Dataplane = New(dataplane.IPv4, Options{})
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
	if len(result.Rejected) == 0 {
		d, err := r.Verify(r.Context(), &r.rules, dataplane.VerifyOptions{})
		if err != nil || d.Count > 0 || d.Drifted {
			r.Fatalf("after Apply: %v, %d differences: %q", err, d.Count, d.Examples)
		}
		if d.Counts[dataplane.SetEntries] != result.Counts[dataplane.SetEntries] {
			r.Errorf("%d elements, not %d", result.Counts[dataplane.SetEntries], d.Counts[dataplane.SetEntries])
		}
	}
	return result
}

func (r *rig) nft(command string) {
	r.Helper()
	if out, err := exec.CommandContext(r.Context(), "nft", command).CombinedOutput(); err != nil {
		r.Fatalf("%s: %v: %s", command, err, out)
	}
}

// TestApply applies random changes, in part and in full.
func TestApply(t *testing.T) {
	r := newRig(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
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

// TestPrune: without it, Services that are not known stay.
func TestPrune(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	delete(r.rules.Services, web().Name)
	r.restart()
	r.rules.Prune = false
	if _, err := r.Apply(t.Context(), &r.rules); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("nft", "list", "table", "ip", "nodeproxy").Output(); err != nil || !strings.Contains(string(out), "default/web:http") {
		t.Errorf("the Service is gone: %v: %s", err, out)
	}
	r.rules.Prune, r.rules.Full = true, true
	r.apply()
}

// TestPreserve: what comes from the checkpoint changes nothing that the kernel has.
func TestPreserve(t *testing.T) {
	r := newRig(t)
	r.set(web())
	r.apply()
	old := web()
	old.Ports[0].Cluster, old.ExternalIPs = eps("10.244.9.9:8080"), addrs("203.0.113.1 203.0.113.99")
	r.set(old)
	r.restart()
	r.rules.Preserve = map[dataplane.ServiceName]struct{}{old.Name: {}}
	if _, err := r.Apply(t.Context(), &r.rules); err != nil {
		t.Fatal(err)
	}
	l, err := r.config.list(r.conn)
	if err != nil {
		t.Fatal(err)
	}
	s := r.config.state(l)
	for address, want := range map[string]string{"10.96.0.1:80": "10.244.0.1:8080 10.244.1.1:8080", "203.0.113.99:80": "10.244.9.9:8080"} {
		k := key{netip.MustParseAddrPort(address), v1alpha1.ProtocolTCP}
		if o := s.destinations[k]; o.destination == nil || !slices.Equal(o.endpoints, eps(want)) {
			t.Errorf("%s has %+v", address, o.destination)
		}
	}
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
	var clients []string
	if err := r.conn.Elements(r.config.table(), setAffinity, func(e *nft.Element) {
		a, _ := netip.AddrFromSlice(e.Key[:4])
		clients = append(clients, a.String())
	}); err != nil || !slices.Equal(clients, []string{"198.51.100.2"}) {
		t.Errorf("clients %v, %v", clients, err)
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

// TestWatch: batches of other programs are reported, with their authors, and ours are not.
func TestWatch(t *testing.T) {
	r := newRig(t)
	m, err := nft.OpenMonitor() // in the namespace of this thread
	if err != nil {
		t.Fatal(err)
	}
	r.openMonitor = func() (monitor, error) { return m, nil }
	changes := make(chan dataplane.Change, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	r.set(web())
	r.apply()
	go func() { done <- r.watch(ctx, func(c dataplane.Change) { changes <- c }) }()
	next := func() dataplane.Change {
		t.Helper()
		select {
		case c := <-changes:
			return c
		case <-time.After(10 * time.Second):
			t.Fatal("no change is reported")
			return dataplane.Change{}
		}
	}
	if c := next(); c != (dataplane.Change{}) {
		t.Errorf("at first: %+v", c)
	}
	r.nft("add table ip other")
	s := web()
	s.Ports[0].Cluster = eps("10.244.9.9:8080")
	r.set(s)
	r.apply()
	r.nft("flush map ip nodeproxy endpoints")
	if c := next(); !c.Sure || !strings.HasPrefix(c.By, "nft (process ") {
		t.Errorf("after the flush: %+v", c)
	}
	r.nft("add rule ip nodeproxy nat-output counter")
	if c := next(); c.Sure {
		t.Errorf("after an addition: %+v", c)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
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
	if err := r.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
		t.Errorf("cleanup: %v", err)
	}
}
