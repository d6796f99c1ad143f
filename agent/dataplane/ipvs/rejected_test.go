package ipvs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestUnmanagedServers: virtual servers of others stay unchanged.
func TestUnmanagedServers(t *testing.T) {
	b := newBench(t)
	rr := ipvs.Server{Scheduler: "rr"}
	unmanaged := []ipvs.Key{tcp("5.5.5.5", 80), tcp("192.168.0.2", 8080), tcp("10.0.0.1", 443), tcp("192.168.0.2", 30001)}
	for _, k := range unmanaged {
		if err := b.kernel.AddServer(k, rr); err != nil {
			t.Fatal(err)
		}
		if err := b.kernel.AddReal(k, netip.MustParseAddrPort("9.9.9.9:9"), 1); err != nil {
			t.Fatal(err)
		}
	}
	barred, nodePort, good := service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80"), service(3, "10.180.0.3:80")
	barred.ExternalIPs = []netip.Addr{ip("1.1.1.1")}
	nodePort.Ports[0].NodePort = 30001
	b.set(barred, nodePort, good)
	check := func(result dataplane.Result) {
		t.Helper()
		if got := names(result.Rejected); !slices.Equal(got, []string{"svc0001", "svc0002"}) {
			t.Errorf("rejected %v", result.Rejected)
		}
		for _, k := range unmanaged {
			if got := b.kernel.Server(k); got != "rr 9.9.9.9:9" {
				t.Errorf("%s: %q", k, got)
			}
		}
		if b.kernel.Server(tcp("1.1.1.1", 80)) == "" || b.kernel.Server(tcp("10.0.0.2", 80)) == "" || b.kernel.Server(tcp("10.0.0.3", 80)) == "" {
			t.Error("what is free is not served")
		}
		if b.kernel.Server(tcp("10.0.0.1", 80)) != "" || b.kernel.Server(tcp("192.168.1.2", 30001)) != "" {
			t.Error("served beside what is not ours")
		}
		b.verified()
	}
	check(b.apply())
	b.restart()
	check(b.apply())
	b.set(with(barred, "10.180.0.9:80"))
	check(b.apply())
	if why := b.apply().Rejected[nodePort.Name]; !strings.Contains(why, "192.168.0.2:30001/TCP is not served") || !strings.Contains(why, "ipvsadm -D -t 192.168.0.2:30001") {
		t.Error(why)
	}
	for _, k := range unmanaged {
		if err := b.kernel.DeleteServer(k); err != nil {
			t.Fatal(err)
		}
	}
	if d, err := b.plane.Verify(t.Context(), b.r, dataplane.VerifyOptions{}); err != nil || d.Count != len(unmanaged) || d.Drifted {
		t.Errorf("what was in the way has gone: %+v, %v", d, err)
	}
	b.r.Full = true
	if result := b.apply(); len(result.Rejected) != 0 || b.kernel.Server(tcp("10.0.0.1", 80)) == "" || b.kernel.Server(tcp("192.168.1.2", 30001)) == "" {
		t.Errorf("%v", result.Rejected)
	}
}

// TestUnmanagedServerThatCame: one was added since the last full pass where ours is needed.
func TestUnmanagedServerThatCame(t *testing.T) {
	b := newBench(t)
	b.set(service(1, "10.180.0.1:80"))
	b.apply()
	k := tcp("10.0.0.2", 80)
	if err := b.kernel.AddServer(k, ipvs.Server{Scheduler: "lc"}); err != nil {
		t.Fatal(err)
	}
	b.set(service(2, "10.180.0.2:80"))
	for range 2 {
		result := b.apply()
		if got := names(result.Rejected); !slices.Equal(got, []string{"svc0002"}) || b.kernel.Server(k) != "lc" {
			t.Errorf("rejected %v, there %q", result.Rejected, b.kernel.Server(k))
		}
		bound, _, _ := b.kernel.Bound()
		if slices.Contains(bound, k.Addr) || slices.Contains(b.kernel.Entries("KUBE-CLUSTER-IP"), "10.0.0.2,tcp:80") {
			t.Error("it looks ours")
		}
		b.verified()
		b.restart()
	}
}

// TestUnmanagedServerThatLooksOurs: one that was added on an address that is bound for another
// Service is known to be unmanaged while it exists.
func TestUnmanagedServerThatLooksOurs(t *testing.T) {
	b := newBench(t)
	shared := func(n int, port uint16) *dataplane.Service {
		s := service(n, fmt.Sprintf("10.180.0.%d:80", n))
		s.ExternalIPs, s.Ports[0].Port = []netip.Addr{ip("1.2.3.4")}, port
		return s
	}
	b.set(shared(1, 80))
	b.apply()
	k := tcp("1.2.3.4", 81)
	if err := b.kernel.AddServer(k, ipvs.Server{Scheduler: "lc"}); err != nil {
		t.Fatal(err)
	}
	b.set(shared(2, 81))
	for _, kind := range []string{"met", "full", "full again"} {
		result := b.apply()
		if bound, _, _ := b.kernel.Bound(); !slices.Contains(bound, k.Addr) {
			t.Fatalf("%s: it does not look ours", kind)
		}
		if result.Rejected[service(2).Name] == "" || b.kernel.Server(k) != "lc" {
			t.Errorf("%s: rejected %v, there %q", kind, result.Rejected, b.kernel.Server(k))
		}
		if neighbor := b.kernel.Server(tcp("1.2.3.4", 80)); neighbor != "rr 10.180.0.1:80" || len(result.Rejected) != 1 {
			t.Errorf("%s: rejected %v, at the other port %q", kind, result.Rejected, neighbor)
		}
		b.verified()
		b.r.Full = true
	}
	if err := b.kernel.DeleteServer(k); err != nil {
		t.Fatal(err)
	}
	if result := b.apply(); len(result.Rejected) != 0 || b.kernel.Server(k) != "rr 10.180.0.2:80" {
		t.Errorf("it has gone: rejected %v, there %q", result.Rejected, b.kernel.Server(k))
	}
	b.verified()
}

func TestExcluded(t *testing.T) {
	b := newBench(t)
	b.r.Node.Settings.IPVS.ExcludeCIDRs = []string{"10.0.0.0/30"}
	one, four := service(1, "10.180.0.1:80"), service(4, "10.180.0.4:80")
	b.set(one, four)
	b.apply()
	b.remove(one, four)
	b.restart()
	if b.apply(); b.kernel.Server(tcp("10.0.0.1", 80)) == "" || b.kernel.Server(tcp("10.0.0.4", 80)) != "" {
		t.Error(b.state())
	}
}

// TestOneServiceIsRejected: only that one fails.
func TestOneServiceIsRejected(t *testing.T) {
	b := newBench(t)
	bad := tcp("10.0.0.2", 80)
	b.kernel.Reject = func(c ipvsmodel.Call) error {
		if c.Method == "AddReal" && c.Key == bad {
			return errBoom
		}
		return nil
	}
	b.set(service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80"), service(3, "10.180.0.3:80"))
	for _, kind := range []string{"full", "one that has changed", "full"} {
		result := b.apply()
		if got := names(result.Rejected); !slices.Equal(got, []string{"svc0002"}) || !strings.Contains(result.Rejected[service(2).Name], "10.0.0.2:80/TCP: boom") {
			t.Errorf("%s: %v", kind, result.Rejected)
		}
		if b.kernel.Server(tcp("10.0.0.3", 80)) != "rr 10.180.0.3:80" {
			t.Errorf("%s: %s", kind, b.state())
		}
		b.verified()
		b.set(with(service(2), "10.180.0.5:80"))
		b.r.Full = kind == "one that has changed"
	}
	b.kernel.Reject = nil
	b.set(service(2, "10.180.0.5:80"))
	if result := b.apply(); len(result.Rejected) != 0 || b.kernel.Server(bad) != "rr 10.180.0.5:80" {
		t.Errorf("%v, %s", result.Rejected, b.state())
	}
	b.verified()
}

// TestOthersChangeAloneBesideRejectedServices: a change of another Service takes as many calls as
// without them. Their own changes do not cause one full pass after the other.
func TestOthersChangeAloneBesideRejectedServices(t *testing.T) {
	b := newBench(t)
	b.between = 0
	b.set(many(6)...)
	b.apply()
	change := func(i int) dataplane.Result {
		b.set(with(service(3), "10.180.0.3:80", fmt.Sprintf("10.180.0.%d:80", 100+i)))
		return b.apply()
	}
	change(0)
	change(1)
	without := len(b.kernel.Writes())
	b.kernel.Reject = func(c ipvsmodel.Call) error {
		if c.Method == "AddReal" && (c.Key == tcp("10.0.0.1", 80) || c.Key == tcp("10.0.0.2", 80)) {
			return errBoom
		}
		return nil
	}
	b.set(with(service(1), "10.180.0.41:80"), with(service(2), "10.180.0.42:80"))
	if result := b.apply(); len(result.Rejected) != 2 {
		t.Fatalf("rejected %v", result.Rejected)
	}
	for i := range 3 {
		if result := change(2 + i); result.Kind != v1alpha1.SyncPartial || len(result.Rejected) != 2 || len(b.kernel.Writes()) != without {
			t.Errorf("%+v, %d writes, %d without rejected Services", result, len(b.kernel.Writes()), without)
		}
	}
	full := 0
	for i := range 20 {
		b.set(with(service(1), fmt.Sprintf("10.180.1.%d:80", i)))
		if result := b.apply(); result.Kind == v1alpha1.SyncFull {
			full++
		}
		b.verified()
	}
	if full > 1 {
		t.Errorf("%d full passes", full)
	}
	b.kernel.Reject = nil
	b.clock.Step(10 * time.Second)
	b.r.Rest = nil
	if result := b.apply(); len(result.Rejected) != 0 || b.kernel.Server(tcp("10.0.0.1", 80)) != "rr 10.180.1.19:80" {
		t.Errorf("%v, %s", result.Rejected, b.state())
	}
	b.verified()
}

// TestRejectedServerHasNoAddress: an address without a virtual server is not bound, or the node's own
// servers would get its packets. A Service that shares it binds it.
func TestRejectedServerHasNoAddress(t *testing.T) {
	b := newBench(t)
	shared := ip("1.2.3.4")
	bad := map[ipvs.Key]bool{tcp("10.0.0.2", 80): true, tcp("1.2.3.4", 80): true}
	reject := func(c ipvsmodel.Call) error {
		if c.Method == "AddServer" && bad[c.Key] {
			return errBoom
		}
		return nil
	}
	b.kernel.Reject = reject
	check := func(when, want string) {
		t.Helper()
		bound, _, err := b.kernel.Bound()
		if got := fmt.Sprint(bound); err != nil || got != want {
			t.Errorf("%s: bound are %s, want %s", when, got, want)
		}
		b.verified()
	}
	two := service(2, "10.180.0.2:80")
	two.ExternalIPs = []netip.Addr{shared}
	b.set(service(1, "10.180.0.1:80"), two)
	b.apply()
	check("rejected", "[10.0.0.1]")

	three := service(3, "10.180.0.3:80")
	three.ExternalIPs, three.Ports[0].Port = []netip.Addr{shared}, 81
	b.set(three)
	if result := b.apply(); result.Kind != v1alpha1.SyncPartial {
		t.Errorf("%+v", result)
	}
	check("another Service has come", "[1.2.3.4 10.0.0.1 10.0.0.3]")
	b.restart()
	b.apply()
	check("both are there at the start", "[1.2.3.4 10.0.0.1 10.0.0.3]")
	b.remove(three)
	b.apply()
	check("it has gone", "[10.0.0.1]")
	b.set(three)
	b.apply()
	b.remove(three)
	b.restart()
	b.apply()
	check("it has gone meanwhile", "[1.2.3.4 10.0.0.1 10.0.0.3]") // its virtual server stays
	b.kernel.Reject = nil
	b.r.Full = true
	b.apply()
	check("accepted", "[1.2.3.4 10.0.0.1 10.0.0.2]")
	if err := errors.Join(b.kernel.DeleteServer(tcp("1.2.3.4", 80)), b.kernel.DeleteServer(tcp("10.0.0.2", 80))); err != nil {
		t.Fatal(err)
	}
	b.kernel.Reject = reject
	b.r.Full = true
	b.apply()
	check("lost and rejected", "[10.0.0.1]")

	b.kernel.Reject = nil
	b.r.Full = true
	b.apply()
	check("accepted", "[1.2.3.4 10.0.0.1 10.0.0.2]")
}

// TestRejectedServerIsNotPassed: packets to the port of a rejected virtual server do not pass, on an
// address that is bound for others.
func TestRejectedServerIsNotPassed(t *testing.T) {
	for _, start := range []bool{false, true} { // the address is bound before, or by the same pass
		b := newBench(t)
		b.kernel.Reject = func(c ipvsmodel.Call) error {
			if c.Method == "AddServer" && c.Key == tcp("1.2.3.4", 81) {
				return errBoom
			}
			return nil
		}
		one, two := service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80")
		one.ExternalIPs, two.ExternalIPs = []netip.Addr{ip("1.2.3.4")}, []netip.Addr{ip("1.2.3.4")}
		two.Ports[0].Port = 81
		b.set(one)
		if !start {
			b.apply()
		}
		b.set(two)
		result := b.apply()
		if got := b.kernel.Entries("KUBE-EXTERNAL-IP"); len(result.Rejected) != 1 || !slices.Equal(got, []string{"1.2.3.4,tcp:80"}) {
			t.Errorf("%v, let pass are %s", result.Rejected, got)
		}
		if writes := strings.Join(b.kernel.Writes(), "\n"); !start && strings.Contains(writes, "+KUBE-EXTERNAL-IP 1.2.3.4,tcp:81") {
			t.Errorf("let pass for a moment:\n%s", writes)
		}
		b.verified()
		b.kernel.Reject = nil
		b.r.Full = true
		b.apply()
		if got, want := b.state(), b.fresh(); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

// TestRejectedServiceBlocksNoClients: once the node has an endpoint, clients outside may pass, even if
// another Service is rejected in the same pass.
func TestRejectedServiceBlocksNoClients(t *testing.T) {
	const remote, local = "10.181.0.1:80", "10.180.0.1:80"
	for _, others := range []int{0, 1} { // that stay without a local endpoint
		b := newBench(t)
		b.set(external(1, nil, remote))
		if others > 0 {
			other := external(3, nil, remote)
			other.LoadBalancerIPs = []netip.Addr{ip("1.2.3.5")}
			b.set(other)
		}
		b.apply()
		b.kernel.Reject = func(c ipvsmodel.Call) error {
			if c.Method == "AddReal" && c.Key == tcp("10.0.0.2", 80) {
				return errBoom
			}
			return nil
		}
		b.set(external(1, []string{local}, remote, local), service(2, "10.180.0.2:80"))
		b.restart()
		result := b.apply()
		if got := b.kernel.Server(tcp("1.2.3.4", 80)); len(result.Rejected) != 1 || got != "rr "+local ||
			len(b.kernel.Entries("NODEPROXY-NO-LOCAL")) != others || b.rules.asks("NODEPROXY-NO-LOCAL") != (others > 0) {
			t.Errorf("%v\n%s", result.Rejected, b.state())
		}
		b.verified()
	}
}

// TestRejectedEntry: an entry that an ipset rejects fails only its Service.
func TestRejectedEntry(t *testing.T) {
	b := newBench(t)
	b.kernel.Reject = func(c ipvsmodel.Call) error {
		for _, s := range c.Sets {
			if slices.Contains(s.Add, "10.0.0.2,tcp:80") {
				return &ipvs.SetError{Set: s.Name, Entry: "10.0.0.2,tcp:80", Err: errBoom}
			}
		}
		return nil
	}
	b.set(service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80"))
	if result := b.apply(); !slices.Equal(names(result.Rejected), []string{"svc0002"}) || b.kernel.Server(tcp("10.0.0.1", 80)) == "" {
		t.Errorf("%v, %s", result.Rejected, b.state())
	}
}

// TestKernelFails: an error of the whole kernel fails the Apply, and the next one is full.
func TestKernelFails(t *testing.T) {
	b := newBench(t)
	all := many(3)
	all[2].Name.Namespace = "other"
	b.set(all...)
	b.kernel.Reject = func(c ipvsmodel.Call) error {
		if c.Method == "AddServer" {
			return errBoom
		}
		return nil
	}
	if _, err := b.try(); err == nil || !strings.Contains(err.Error(), "all 3 Services") {
		t.Errorf("%v", err)
	}
	b.kernel.Reject = nil
	b.apply()
	b.verified()
	b.rules.fail = errBoom
	b.r.Full = true
	if _, err := b.try(); err == nil {
		t.Error("no error")
	}
	b.rules.fail = nil
	b.apply()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	b.set(service(9, "10.180.0.1:80"))
	if _, err := b.plane.Apply(ctx, b.r); err == nil {
		t.Error("no error")
	}
	b.r.Full = true
	b.apply()
	b.verified()
}

// TestScheduler: a note names a missing one, which is probed again.
func TestScheduler(t *testing.T) {
	b := newBench(t)
	proc := t.TempDir()
	b.plane = ipvs.New(b.family, ipvs.Options{Kernel: b.kernel, Rules: b.rules, Clock: b.clock, ProcDirectory: proc})
	b.kernel.Schedulers = []string{"rr"}
	one := service(1, "10.180.0.1:80")
	one.IPVSScheduler = "sh"
	b.set(one, service(2, "10.180.0.2:80"))
	result := b.apply()
	if b.kernel.Server(tcp("10.0.0.1", 80)) != "rr 10.180.0.1:80" || len(result.Notes) == 0 || !strings.Contains(strings.Join(result.Notes, "\n"), "Service ns/svc0001: the kernel has no IPVS scheduler sh") {
		t.Errorf("%s, %q", b.state(), result.Notes)
	}
	three := service(3, "10.180.0.3:80")
	three.IPVSScheduler = "mh"
	b.set(three)
	if result := b.apply(); result.Kind != v1alpha1.SyncPartial || !strings.Contains(strings.Join(result.Notes, "\n"), "ns/svc0003") {
		t.Errorf("%+v", result)
	}
	b.verified()
	b.kernel.Schedulers = append(b.kernel.Schedulers, "sh", "mh")
	if err := os.WriteFile(filepath.Join(proc, "modules"), []byte("ip_vs_sh 16384 0 - Live 0x0\nip_vs 1 3 ip_vs_sh, Live 0x0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	diff, err := b.plane.Verify(t.Context(), b.r, dataplane.VerifyOptions{})
	if err != nil || diff.Count != 1 || diff.Drifted || !strings.Contains(diff.Examples[0], "now has the IPVS scheduler sh") {
		t.Errorf("%+v, %v", diff, err)
	}
	b.r.Full = true
	result = b.apply()
	if b.kernel.Server(tcp("10.0.0.1", 80)) != "sh 10.180.0.1:80" || b.kernel.Server(tcp("10.0.0.3", 80)) != "mh 0x10 10.180.0.3:80" || strings.Contains(strings.Join(result.Notes, "\n"), "scheduler") {
		t.Errorf("%s, %q", b.state(), result.Notes)
	}
	b.r.Full = true
	b.apply()
	for _, c := range b.kernel.Calls() {
		if c.Method == "Probe" {
			t.Error("probed again")
		}
	}
	*b.r.Node.Settings.IPVS.Scheduler = "lc"
	err = b.plane.Supported(context.Background(), b.r)
	if err == nil || !strings.Contains(err.Error(), dataplane.ErrUnsupported.Error()) {
		t.Errorf("%v", err)
	}
}
