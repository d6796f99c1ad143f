package ipvs_test

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvstest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestOneEndpointIsOneMessage: what an Apply costs does not depend on the number
// of Services.
func TestOneEndpointIsOneMessage(t *testing.T) {
	b := newBench(t)
	services := many(300)
	b.set(services...)
	b.apply()
	applied := b.rules.applied
	step := func(messages int, s *dataplane.Service, writes ...string) {
		t.Helper()
		b.set(s)
		if result := b.apply(); result.Kind != v1alpha1.SyncPartial || result.ServicesChanged != 1 {
			t.Errorf("%+v", result)
		}
		b.wants(writes...)
		if n := b.kernel.Messages(); n != messages {
			t.Errorf("%d messages, want %d: %v", n, messages, b.kernel.Calls())
		}
	}
	var list []string
	for _, e := range services[0].Ports[0].Cluster {
		list = append(list, e.String())
	}
	step(1, with(services[0], append(slices.Clone(list), "10.180.0.99:80")...), "AddReal 10.0.0.1,tcp:80 10.180.0.99:80 1")
	step(2, with(services[0], list...), "DeleteReal 10.0.0.1,tcp:80 10.180.0.99:80")
	if err := b.kernel.SetConnections(tcp("10.0.0.1", 80), netip.MustParseAddrPort(list[3]), 0, 1); err != nil {
		t.Fatal(err)
	}
	step(2, with(services[0], slices.Delete(slices.Clone(list), 3, 4)...), "ChangeReal 10.0.0.1,tcp:80 "+list[3]+" 0")
	step(1, with(services[0], list...), "ChangeReal 10.0.0.1,tcp:80 "+list[3]+" 1")
	if b.rules.applied != applied {
		t.Error("rules were looked at")
	}
	b.verified()
}

func TestNewServiceAndItsEnd(t *testing.T) {
	b := newBench(t)
	b.set(service(1, "10.180.0.1:80"))
	b.apply()
	s := service(2, "10.180.0.2:80")
	s.LoadBalancerIPs = []netip.Addr{ip("1.2.3.4")}
	before := b.state()
	b.rules.before = func() error {
		if b.kernel.Server(tcp("1.2.3.4", 80)) != "" && len(b.rules.held.Chains) > 0 && !b.rules.asks("KUBE-LOAD-BALANCER") {
			t.Error("served before the rules know the ipset")
		}
		return nil
	}
	b.set(s)
	b.apply()
	b.wants("Bind 1.2.3.4", "Bind 10.0.0.2",
		"ChangeSets +KUBE-CLUSTER-IP 10.0.0.2,tcp:80 +KUBE-LOAD-BALANCER 1.2.3.4,tcp:80 +KUBE-IPVS-IPS 1.2.3.4 +KUBE-IPVS-IPS 10.0.0.2",
		"AddServer 1.2.3.4,tcp:80 rr 0x0 0", "AddReal 1.2.3.4,tcp:80 10.180.0.2:80 1",
		"AddServer 10.0.0.2,tcp:80 rr 0x0 0", "AddReal 10.0.0.2,tcp:80 10.180.0.2:80 1")
	b.verified()
	b.rules.before = func() error {
		if b.kernel.Server(tcp("1.2.3.4", 80)) != "" {
			t.Error("the rules go before the virtual server")
		}
		return nil
	}
	b.remove(s)
	b.apply()
	b.wants("DeleteServer 1.2.3.4,tcp:80", "DeleteServer 10.0.0.2,tcp:80",
		"ChangeSets -KUBE-CLUSTER-IP 10.0.0.2,tcp:80 -KUBE-LOAD-BALANCER 1.2.3.4,tcp:80 -KUBE-IPVS-IPS 1.2.3.4 -KUBE-IPVS-IPS 10.0.0.2",
		"Unbind 1.2.3.4", "Unbind 10.0.0.2")
	if after := b.state(); after != before {
		t.Errorf("%s\nwant\n%s", after, before)
	}
}

// TestSharedAddress: an address that two Services have stays while one needs it.
func TestSharedAddress(t *testing.T) {
	b := newBench(t)
	one, two := service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80")
	for _, s := range []*dataplane.Service{one, two} {
		s.LoadBalancerIPs = []netip.Addr{ip("1.2.3.4")}
	}
	two.Ports[0].Port = 81
	b.set(one, two)
	b.apply()
	b.remove(one)
	b.apply()
	if slices.Contains(b.kernel.Writes(), "Unbind 1.2.3.4") || b.kernel.Server(tcp("1.2.3.4", 81)) == "" {
		t.Errorf("%q", b.kernel.Writes())
	}
	b.remove(two)
	if b.apply(); !slices.Contains(b.kernel.Writes(), "Unbind 1.2.3.4") {
		t.Errorf("%q", b.kernel.Writes())
	}
}

// TestRestart: a full pass over what is right writes nothing, and mends the rest.
func TestRestart(t *testing.T) {
	b := newBench(t)
	b.set(many(3)...)
	b.apply()
	want := b.state()
	b.restart()
	b.apply()
	b.wants()
	key := tcp("10.0.0.1", 80)
	real := b.r.Services[dataplane.ServiceName{Namespace: "ns", Name: "svc0001"}].Ports[0].Cluster[0]
	for name, spoil := range map[string]func() error{
		"weight":  func() error { return b.kernel.ChangeReal(key, real, 0) },
		"real":    func() error { return b.kernel.DeleteReal(key, real) },
		"extra":   func() error { return b.kernel.AddReal(key, netip.MustParseAddrPort("9.9.9.9:9"), 1) },
		"server":  func() error { return b.kernel.DeleteServer(key) },
		"changed": func() error { return b.kernel.ChangeServer(key, ipvs.Server{Scheduler: "lc"}) },
		"stale":   func() error { return b.kernel.AddServer(tcp("10.0.0.1", 99), ipvs.Server{Scheduler: "rr"}) },
		"address": func() error { return b.kernel.Unbind(key.Addr) },
		"bound":   func() error { return b.kernel.Bind(ip("9.9.9.9")) },
		"device":  func() error { return b.kernel.DeleteDevice() },
		"entry": func() error {
			return b.kernel.ChangeSets([]ipvs.SetChange{{Name: "KUBE-CLUSTER-IP", Type: ipvs.HashIPPort, Remove: []ipvs.Entry{"10.0.0.1,tcp:80"}}})
		},
		"set": func() error { return b.kernel.DeleteSets([]ipvs.SetName{"KUBE-IPVS-IPS"}) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			diff, err := b.plane.Verify(context.Background(), b.r)
			if err != nil || diff.Count == 0 || !diff.Drifted {
				t.Errorf("%v, %+v", err, diff)
			}
			b.restart()
			b.apply()
			if got := b.state(); got != want {
				t.Errorf("%s\nwant\n%s", got, want)
			}
			b.verified()
		})
	}
}

// TestForeignServers: what others have made stays, and is not taken.
func TestForeignServers(t *testing.T) {
	b := newBench(t)
	rr := ipvs.Server{Scheduler: "rr"}
	foreign := []ipvs.Key{tcp("5.5.5.5", 80), tcp("192.168.0.2", 8080), tcp("10.0.0.1", 443), tcp("192.168.0.2", 30001)}
	for _, k := range foreign {
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
		if got := names(result.Refused); !slices.Equal(got, []string{"svc0001", "svc0002"}) {
			t.Errorf("refused %v", result.Refused)
		}
		for _, k := range foreign {
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
	if why := b.apply().Refused[nodePort.Name]; !strings.Contains(why, "192.168.0.2:30001/TCP is not served") || !strings.Contains(why, "ipvsadm -D -t 192.168.0.2:30001") {
		t.Error(why)
	}
	for _, k := range foreign {
		if err := b.kernel.DeleteServer(k); err != nil {
			t.Fatal(err)
		}
	}
	b.r.Full = true
	if result := b.apply(); len(result.Refused) != 0 || b.kernel.Server(tcp("10.0.0.1", 80)) == "" || b.kernel.Server(tcp("192.168.1.2", 30001)) == "" {
		t.Errorf("%v", result.Refused)
	}
}

// TestForeignServerThatCame stands where one is needed since the last look.
func TestForeignServerThatCame(t *testing.T) {
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
		if got := names(result.Refused); !slices.Equal(got, []string{"svc0002"}) || b.kernel.Server(k) != "lc" {
			t.Errorf("refused %v, there %q", result.Refused, b.kernel.Server(k))
		}
		bound, _, _ := b.kernel.Bound()
		if slices.Contains(bound, k.Addr) || slices.Contains(b.kernel.Entries("KUBE-CLUSTER-IP"), "10.0.0.2,tcp:80") {
			t.Error("it looks ours")
		}
		b.verified()
		b.restart()
	}
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

// TestPrune: without it what belongs to nobody stays.
func TestPrune(t *testing.T) {
	b := newBench(t)
	one, two := service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80")
	b.set(one, two)
	b.apply()
	full := b.state()
	b.r.Prune = false
	b.remove(two)
	b.r.Dirty = map[dataplane.ServiceName]struct{}{} // as of an agent that has not seen it
	b.restart()
	b.apply()
	if got := b.state(); got != full {
		t.Errorf("%s\nwant\n%s", got, full)
	}
	b.set(with(one, "10.180.0.9:80"))
	b.r.Full = true
	if b.apply(); b.kernel.Server(tcp("10.0.0.1", 80)) != "rr 10.180.0.9:80" {
		t.Errorf("%s", b.state())
	}
	// Of one that has ended, what we have made goes all the same.
	b.set(two)
	b.apply()
	b.remove(two)
	b.r.Full = true
	if b.apply(); b.kernel.Server(tcp("10.0.0.2", 80)) != "" || slices.Contains(b.kernel.Entries("KUBE-CLUSTER-IP"), "10.0.0.2,tcp:80") {
		t.Error(b.state())
	}
}

// TestRulesOfUnknownServices stay while nothing may be pruned.
func TestRulesOfUnknownServices(t *testing.T) {
	b := newBench(t)
	s := service(1, "10.180.0.1:80")
	s.LoadBalancerIPs, s.SourceRanges = []netip.Addr{ip("1.2.3.4")}, []netip.Prefix{netip.MustParsePrefix("9.0.0.0/8")}
	b.set(s)
	b.apply()
	before := b.state()
	b.remove(s)
	b.r.Dirty, b.r.Prune = map[dataplane.ServiceName]struct{}{}, false
	b.restart()
	b.apply()
	if got := b.state(); got != before || !strings.Contains(got, "--vaddr 1.2.3.4") {
		t.Errorf("%s\nwant\n%s", got, before)
	}
	b.verified()
	b.set(service(2, "10.180.0.2:80"))
	b.apply()
	if !strings.Contains(b.state(), "--vaddr 1.2.3.4") {
		t.Error(b.state())
	}
	b.verified()
	b.r.Prune, b.r.Full = true, true
	b.remove(service(2))
	b.apply()
	if got, want := b.state(), b.fresh(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestKeep: what the kernel holds of a Service from disk stays as it is.
func TestKeep(t *testing.T) {
	b := newBench(t)
	one, two := service(1, "10.180.0.1:80", "10.180.0.2:80"), service(2, "10.180.0.3:80")
	one.LoadBalancerIPs = []netip.Addr{ip("1.2.3.4")}
	b.set(one, two)
	b.apply()
	before := b.state()
	old := with(one, "10.180.0.1:80", "10.180.0.7:80")
	old.AffinitySeconds, old.ExternalLocal = 60, true
	old.SourceRanges = []netip.Prefix{netip.MustParsePrefix("9.0.0.0/8")}
	old.Ports[0].Local = ends("10.180.0.7:80")
	b.set(old)
	b.r.Keep = map[dataplane.ServiceName]struct{}{one.Name: {}}
	b.r.Prune = false
	b.restart()
	b.apply()
	b.wants()
	if got := b.state(); got != before {
		t.Errorf("%s\nwant\n%s", got, before)
	}
	b.verified()
	if err := b.kernel.DeleteServer(tcp("10.0.0.1", 80)); err != nil {
		t.Fatal(err)
	}
	b.restart()
	b.apply()
	b.wants("AddServer 10.0.0.1,tcp:80 rr 0x1 60", "AddReal 10.0.0.1,tcp:80 10.180.0.1:80 1", "AddReal 10.0.0.1,tcp:80 10.180.0.7:80 1")
	// The real state comes.
	b.r.Keep, b.r.Prune = nil, true
	b.set(one)
	if b.apply(); b.state() != before {
		t.Errorf("%s\nwant\n%s", b.state(), before)
	}
}

// TestOneServiceIsRefused: it fails alone.
func TestOneServiceIsRefused(t *testing.T) {
	b := newBench(t)
	bad := tcp("10.0.0.2", 80)
	b.kernel.Refuse = func(c ipvstest.Call) error {
		if c.Method == "AddReal" && c.Key == bad {
			return errBoom
		}
		return nil
	}
	b.set(service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80"), service(3, "10.180.0.3:80"))
	for _, kind := range []string{"full", "one that has changed", "full"} {
		result := b.apply()
		if got := names(result.Refused); !slices.Equal(got, []string{"svc0002"}) || !strings.Contains(result.Refused[service(2).Name], "10.0.0.2:80/TCP: boom") {
			t.Errorf("%s: %v", kind, result.Refused)
		}
		if b.kernel.Server(tcp("10.0.0.3", 80)) != "rr 10.180.0.3:80" {
			t.Errorf("%s: %s", kind, b.state())
		}
		b.verified()
		b.set(with(service(2), "10.180.0.5:80"))
		b.r.Full = kind == "one that has changed"
	}
	b.kernel.Refuse = nil
	b.set(service(2, "10.180.0.5:80"))
	if result := b.apply(); len(result.Refused) != 0 || b.kernel.Server(bad) != "rr 10.180.0.5:80" {
		t.Errorf("%v, %s", result.Refused, b.state())
	}
	b.verified()
}

// TestRefusedEntry: what an ipset does not take fails its Service alone.
func TestRefusedEntry(t *testing.T) {
	b := newBench(t)
	b.kernel.Refuse = func(c ipvstest.Call) error {
		for _, s := range c.Sets {
			if slices.Contains(s.Add, "10.0.0.2,tcp:80") {
				return &ipvs.SetError{Set: s.Name, Entry: "10.0.0.2,tcp:80", Err: errBoom}
			}
		}
		return nil
	}
	b.set(service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80"))
	if result := b.apply(); !slices.Equal(names(result.Refused), []string{"svc0002"}) || b.kernel.Server(tcp("10.0.0.1", 80)) == "" {
		t.Errorf("%v, %s", result.Refused, b.state())
	}
}

// TestKernelFails: an error of the kernel as a whole is one of the Apply, and the
// next one is full.
func TestKernelFails(t *testing.T) {
	b := newBench(t)
	b.set(many(3)...)
	b.kernel.Refuse = func(c ipvstest.Call) error {
		if c.Method == "AddServer" {
			return errBoom
		}
		return nil
	}
	if _, err := b.try(); err == nil || !strings.Contains(err.Error(), "all 3 Services") {
		t.Errorf("%v", err)
	}
	b.kernel.Refuse = nil
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

// TestScheduler: one that is missing is named, and looked for again.
func TestScheduler(t *testing.T) {
	b := newBench(t)
	b.kernel.Schedulers = []string{"rr"}
	one := service(1, "10.180.0.1:80")
	one.IPVSScheduler = "sh"
	b.set(one, service(2, "10.180.0.2:80"))
	result := b.apply()
	if b.kernel.Server(tcp("10.0.0.1", 80)) != "rr 10.180.0.1:80" || len(result.Warnings) == 0 || !strings.Contains(strings.Join(result.Warnings, "\n"), "Service ns/svc0001: the kernel has no IPVS scheduler sh") {
		t.Errorf("%s, %q", b.state(), result.Warnings)
	}
	three := service(3, "10.180.0.3:80")
	three.IPVSScheduler = "mh"
	b.set(three)
	if result := b.apply(); result.Kind != v1alpha1.SyncPartial || !strings.Contains(strings.Join(result.Warnings, "\n"), "ns/svc0003") {
		t.Errorf("%+v", result)
	}
	b.verified()
	b.kernel.Schedulers = append(b.kernel.Schedulers, "sh", "mh")
	b.r.Full = true
	result = b.apply()
	if b.kernel.Server(tcp("10.0.0.1", 80)) != "sh 10.180.0.1:80" || b.kernel.Server(tcp("10.0.0.3", 80)) != "mh 0x10 10.180.0.3:80" || strings.Contains(strings.Join(result.Warnings, "\n"), "scheduler") {
		t.Errorf("%s, %q", b.state(), result.Warnings)
	}
	b.r.Full = true
	b.apply()
	for _, c := range b.kernel.Calls() {
		if c.Method == "Probe" {
			t.Error("probed again")
		}
	}
	*b.r.Node.Settings.IPVS.Scheduler = "lc"
	err := b.plane.Supported(context.Background(), &b.r.Node)
	if err == nil || !strings.Contains(err.Error(), dataplane.ErrUnsupported.Error()) {
		t.Errorf("%v", err)
	}
}

// TestAddressesAreFollowed: NodePorts and bound addresses follow the interfaces.
func TestAddressesAreFollowed(t *testing.T) {
	b := newBench(t)
	s := service(1, "10.180.0.1:80")
	s.Ports[0].NodePort, s.ExternalIPs = 30001, []netip.Addr{ip("192.168.7.7")}
	b.set(s, service(2, "10.180.0.2:80"))
	b.apply()
	ctx, cancel := context.WithCancel(context.Background())
	changed, done := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(done)
		b.plane.Follow(ctx, func() { changed <- struct{}{} })
	}()
	defer func() { cancel(); <-done }()
	step := func(writes []string, addresses ...string) {
		t.Helper()
		var list []netip.Addr
		for _, a := range addresses {
			list = append(list, ip(a))
		}
		b.kernel.SetAddresses(list...)
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatal("not noticed")
		}
		b.r.Recheck = true
		if result := b.apply(); result.Kind != v1alpha1.SyncPartial {
			t.Errorf("%+v", result)
		}
		b.wants(writes...)
		b.verified()
	}
	step([]string{"AddServer 192.168.3.2,tcp:30001 rr 0x0 0", "AddReal 192.168.3.2,tcp:30001 10.180.0.1:80 1", "DeleteServer 192.168.1.2,tcp:30001"},
		"192.168.0.2", "192.168.3.2", "127.0.0.1")
	step([]string{"AddServer 192.168.7.7,tcp:30001 rr 0x0 0", "AddReal 192.168.7.7,tcp:30001 10.180.0.1:80 1", "DeleteServer 192.168.3.2,tcp:30001", "ChangeSets -KUBE-IPVS-IPS 192.168.7.7", "Unbind 192.168.7.7"},
		"192.168.0.2", "192.168.7.7")
	state := b.state()
	b.restart() // our server on the node's own address is known by the ipset
	if b.apply(); b.state() != state {
		t.Errorf("%s\nwant\n%s", b.state(), state)
	}
}

// TestContested: of two Services that ask for the same, the one whose name comes
// before has it.
func TestContested(t *testing.T) {
	b := newBench(t)
	one, two := service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80")
	one.Ports[0].NodePort = 80
	two.ExternalIPs = []netip.Addr{ip("192.168.0.2")}
	b.set(two)
	b.apply()
	b.set(one)
	result := b.apply()
	if !slices.Equal(names(result.Refused), []string{"svc0002"}) || b.kernel.Server(tcp("192.168.0.2", 80)) != "rr 10.180.0.1:80" {
		t.Errorf("%v, %s", result.Refused, b.state())
	}
	b.remove(one)
	if result := b.apply(); len(result.Refused) != 0 || b.kernel.Server(tcp("192.168.0.2", 80)) != "rr 10.180.0.2:80" {
		t.Errorf("%v, %s", result.Refused, b.state())
	}
	b.verified()
}

func TestTune(t *testing.T) {
	b := newBench(t)
	on := v1alpha1.Enabled
	b.r.Node.Settings.IPVS.StrictARP = &on
	seconds := int32(30)
	b.r.Node.Settings.IPVS.UDPTimeoutSeconds = &seconds
	b.kernel.RemoveSysctl("net/ipv4/vs/expire_nodest_conn")
	result := b.apply()
	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "net.ipv4.vs.expire_nodest_conn could not be set to 1") {
		t.Errorf("%q", result.Warnings)
	}
	for name, want := range map[string]string{"net/ipv4/vs/conntrack": "1", "net/ipv4/ip_forward": "1", "net/ipv4/conf/all/arp_ignore": "1", "net/ipv4/conf/all/arp_announce": "2"} {
		if got, err := b.kernel.Sysctl(name); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if got, _ := b.kernel.Timeouts(); got != (ipvs.Timeouts{TCP: 900, TCPFin: 120, UDP: 30}) {
		t.Errorf("%+v", got)
	}
}

var _ = fmt.Sprint
var _ = fs.ErrExist
