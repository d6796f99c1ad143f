package ipvs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest/ipvstest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestOneEndpointIsOneMessage: the cost of an Apply does not depend on the number of Services.
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

// TestRealServersAreProgress: one virtual server may have thousands.
func TestRealServersAreProgress(t *testing.T) {
	b := newBench(t)
	b.set(service(1, "10.180.0.0:80"))
	b.apply()
	var list []string
	for i := range 640 {
		list = append(list, fmt.Sprintf("10.180.%d.%d:80", i>>8, i&0xff))
	}
	steps := 0
	ctx := dataplane.WithProgress(t.Context(), func() { steps++ })
	for _, endpoints := range [][]string{list, list[:1]} {
		steps = 0
		b.set(service(1, endpoints...))
		if _, err := b.plane.Apply(ctx, b.r); err != nil {
			t.Fatal(err)
		}
		if want := len(list)/64 - 1; steps < want {
			t.Errorf("%d steps when %d real servers change, want %d", steps, len(list)-1, want)
		}
	}
}

// TestPause: what waits is written before the rest of a large Service, of which each Apply writes some. There is
// always a real server, and Verify finds no difference.
func TestPause(t *testing.T) {
	list := func(first int) (out []string) {
		for i := range 1000 {
			out = append(out, fmt.Sprintf("10.%d.%d.%d:80", first, i>>8, i&0xff))
		}
		return out
	}
	b := newBench(t)
	count := func(s *dataplane.Service) int {
		reals, _ := b.kernel.Reals(tcp(s.ClusterIP.String(), 80)) // none if it does not exist
		return len(reals)
	}
	b.set(service(1))
	b.apply()
	b.r.Pause = func() bool { return true }
	for _, step := range []struct {
		name    string
		set     *dataplane.Service
		applies int
	}{
		{"new endpoints", service(1, list(180)...), 4},
		{"all others", service(1, list(181)...), 4},
		{"few", service(1, "10.181.0.0:80"), 1},
		{"a new Service", service(2, list(182)...), 4},
	} {
		b.set(step.set)
		before := count(step.set)
		for applies := 1; ; applies++ {
			result := b.apply()
			b.verified()
			reals := count(step.set)
			if reals == 0 || reals == before {
				t.Errorf("%s: %d real servers after an Apply, %d before", step.name, reals, before)
			}
			before = reals
			if len(result.Unfinished) == 0 {
				if applies != step.applies || reals != len(step.set.Ports[0].Cluster) || result.ServicesChanged != 1 {
					t.Errorf("%s: %d real servers after %d of %d Apply, %d changed", step.name, reals, applies, step.applies, result.ServicesChanged)
				}
				break
			}
			if _, left := result.Unfinished[step.set.Name]; !left || len(result.Unfinished) != 1 || applies > step.applies || result.ServicesChanged != 0 {
				t.Fatalf("%s: unfinished %v after %d Apply, %d changed", step.name, names(result.Unfinished), applies, result.ServicesChanged)
			}
			b.set(step.set) // as the agent does
		}
	}
	// A new Service of two addresses: both answer at once.
	both := service(3, list(184)...)
	both.ExternalIPs = []netip.Addr{ip("198.51.100.1")}
	b.set(both)
	if left := b.apply().Unfinished; len(left) != 1 {
		t.Errorf("unfinished: %v", names(left))
	}
	for _, address := range []string{both.ClusterIP.String(), "198.51.100.1"} {
		if reals, err := b.kernel.Reals(tcp(address, 80)); err != nil || len(reals) < 2 {
			t.Errorf("%v, %d real servers of %s", err, len(reals), address)
		}
	}
	for range 7 {
		b.set(both)
		b.apply()
		b.verified()
	}
	// What blocks clients, or has changed only because of the node, is not written in part.
	outside := service(4, list(185)...)
	outside.Ports[0].NodePort = 30080
	b.set(outside)
	for range 4 {
		b.set(outside)
		b.apply()
	}
	local := with(outside, list(186)...)
	local.ExternalLocal, local.Ports[0].Local = true, ends(list(186)[:600]...)
	b.set(local)
	if left := b.apply().Unfinished; len(left) != 0 {
		t.Errorf("unfinished when policy Local begins: %v", names(left))
	}
	b.kernel.SetAddresses(ip("192.168.0.2"), ip("192.168.7.7"), ip("127.0.0.1"))
	b.r.Recheck = true
	if left := b.apply().Unfinished; len(left) != 0 {
		t.Errorf("unfinished when the node has another address: %v", names(left))
	}
	if got, want := b.state(), b.fresh(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	b.r.Pause = nil
	// Endpoints that drain, and come back while the Service is unfinished.
	b.set(service(1, append(list(180), "10.181.0.0:80")...))
	b.apply()
	b.r.Pause = func() bool { return true }
	if err := b.kernel.SetConnections(tcp("10.0.0.1", 80), netip.MustParseAddrPort("10.180.0.0:80"), 1, 0); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*dataplane.Service{service(1, list(181)...), service(1, list(180)...)} {
		for range 7 {
			b.set(s)
			b.apply()
			b.verified()
		}
	}
	if n := count(service(1)); n != 1000 {
		t.Errorf("%d real servers when all is written", n)
	}
	b.set(service(1, list(183)...))
	b.apply()
	b.remove(service(1))
	if result := b.apply(); len(result.Unfinished) > 0 {
		t.Errorf("unfinished: %v, which has ended", names(result.Unfinished))
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
	b.wants("ChangeSets +KUBE-CLUSTER-IP 10.0.0.2,tcp:80 +KUBE-LOAD-BALANCER 1.2.3.4,tcp:80 +KUBE-IPVS-IPS 1.2.3.4 +KUBE-IPVS-IPS 10.0.0.2",
		"AddServer 1.2.3.4,tcp:80 rr 0x0 0", "AddReal 1.2.3.4,tcp:80 10.180.0.2:80 1",
		"AddServer 10.0.0.2,tcp:80 rr 0x0 0", "AddReal 10.0.0.2,tcp:80 10.180.0.2:80 1",
		"Bind 1.2.3.4", "Bind 10.0.0.2")
	b.verified()
	b.rules.before = func() error {
		if b.kernel.Server(tcp("1.2.3.4", 80)) != "" {
			t.Error("the rules go before the virtual server")
		}
		return nil
	}
	b.remove(s)
	b.apply()
	b.wants("ChangeSets -KUBE-CLUSTER-IP 10.0.0.2,tcp:80 -KUBE-LOAD-BALANCER 1.2.3.4,tcp:80",
		"DeleteServer 1.2.3.4,tcp:80", "DeleteServer 10.0.0.2,tcp:80",
		"Unbind 1.2.3.4", "Unbind 10.0.0.2",
		"ChangeSets -KUBE-IPVS-IPS 1.2.3.4 -KUBE-IPVS-IPS 10.0.0.2")
	if after := b.state(); after != before {
		t.Errorf("%s\nwant\n%s", after, before)
	}
}

// TestSharedAddress: an address of two Services stays while one needs it.
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

// TestRestart: a full pass writes only what differs.
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
		"forward": func() error { return b.kernel.SetForwarding(key, real, 3) },
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
			diff, err := b.plane.Verify(context.Background(), b.r, dataplane.VerifyOptions{})
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

// TestAddressesAreFollowed: NodePorts and bound addresses follow the interfaces.
func TestAddressesAreFollowed(t *testing.T) {
	b := newBench(t)
	s := service(1, "10.180.0.1:80")
	s.Ports[0].NodePort, s.ExternalIPs = 30001, []netip.Addr{ip("192.168.7.7")}
	b.set(s, service(2, "10.180.0.2:80"))
	b.apply()
	changed, stop := b.follow()
	defer stop()
	step := func(writes []string, addresses ...string) {
		t.Helper()
		var list []netip.Addr
		for _, a := range addresses {
			list = append(list, ip(a))
		}
		b.kernel.SetAddresses(list...)
		b.settle(changed)
		b.r.Recheck, b.r.Dirty = true, nil
		if result := b.apply(); result.Kind != v1alpha1.SyncPartial {
			t.Errorf("%+v", result)
		}
		b.wants(writes...)
		b.verified()
	}
	step([]string{"AddServer 192.168.3.2,tcp:30001 rr 0x0 0", "AddReal 192.168.3.2,tcp:30001 10.180.0.1:80 1", "DeleteServer 192.168.1.2,tcp:30001"},
		"192.168.0.2", "192.168.3.2", "127.0.0.1")
	step([]string{"AddServer 192.168.7.7,tcp:30001 rr 0x0 0", "AddReal 192.168.7.7,tcp:30001 10.180.0.1:80 1", "DeleteServer 192.168.3.2,tcp:30001", "Unbind 192.168.7.7", "ChangeSets -KUBE-IPVS-IPS 192.168.7.7"},
		"192.168.0.2", "192.168.7.7")
	state := b.state()
	b.restart() // our server on the node's own address is known by the ipset
	if b.apply(); b.state() != state {
		t.Errorf("%s\nwant\n%s", b.state(), state)
	}
}

// TestNodePortAddressesAreFollowed: including link-local ones.
func TestNodePortAddressesAreFollowed(t *testing.T) {
	b := newBench(t)
	b.useIPv6()
	*b.r.Node.Settings.NodePorts.AddressMode, b.r.Node.Settings.NodePorts.CIDRs = v1alpha1.NodePortsCIDRs, []string{"fe80::/10"}
	b.set(nodePort6())
	b.apply()
	changed, stop := b.follow()
	defer stop()
	b.kernel.SetAddresses(ip("2001:db8::2"), ip("::1"), ip("fe80::2"))
	b.settle(changed)
	b.r.Recheck = true
	b.apply()
	b.wants("AddServer fe80::2,tcp:30001 rr 0x0 0", "AddReal fe80::2,tcp:30001 [fd00:244::1]:80 1", "DeleteServer fe80::1,tcp:30001")
	b.verified()
}

// follow runs Follow until stop is called.
func (b *bench) follow() (changed <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	c, done := make(chan struct{}, 100), make(chan struct{})
	go func() {
		defer close(done)
		b.plane.Follow(ctx, func() { c <- struct{}{} })
	}()
	return c, func() { cancel(); <-done }
}

// settle lets time pass until Follow reports a change.
func (b *bench) settle(changed <-chan struct{}) {
	b.Helper()
	for deadline := time.After(10 * time.Second); ; {
		if b.clock.HasWaiters() {
			b.clock.Step(250 * time.Millisecond)
		}
		select {
		case <-changed:
			return
		case <-deadline:
			b.Fatal("not noticed")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestTune(t *testing.T) {
	b := newBench(t)
	on := v1alpha1.Enabled
	b.r.Node.Settings.IPVS.StrictARP = &on
	seconds := int32(30)
	b.r.Node.Settings.IPVS.UDPTimeoutSeconds = &seconds
	b.kernel.Reject = func(c ipvsmodel.Call) error {
		if strings.HasPrefix(c.Name, "net/ipv4/vs/expire_nodest_conn") {
			return fs.ErrNotExist
		}
		return nil
	}
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

// useIPv6 makes the node an IPv6 node.
func (b *bench) useIPv6() {
	b.Helper()
	proc := b.TempDir()
	if err := os.MkdirAll(proc+"/thread-self/net", 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(proc+"/thread-self/net/if_inet6", nil, 0o600); err != nil {
		b.Fatal(err)
	}
	b.family, b.kernel = dataplane.IPv6, ipvstest.New(dataplane.IPv6, ip("2001:db8::2"), ip("::1"), ip("fe80::1"))
	b.r.Node.Addresses = []netip.Addr{ip("2001:db8::2")}
	b.plane = ipvs.New(b.family, ipvs.Options{Kernel: b.kernel, Rules: b.rules, Clock: b.clock, ProcDirectory: proc})
}

// nodePort6 returns a Service of IPv6 with the NodePort 30001.
func nodePort6() *dataplane.Service {
	s := service(1)
	s.ClusterIP, s.Ports[0].NodePort = ip("fd00:96::1"), 30001
	return with(s, "[fd00:244::1]:80")
}

// TestIPv6: everything has its own names, and the error names a missing family.
func TestIPv6(t *testing.T) {
	b := newBench(t)
	b.useIPv6()
	without := ipvs.New(b.family, ipvs.Options{Kernel: b.kernel, Rules: b.rules, Clock: b.clock, ProcDirectory: t.TempDir()})
	if err := without.Supported(context.Background(), b.r); !errors.Is(err, dataplane.ErrUnsupported) {
		t.Errorf("%v", err)
	}
	b.set(nodePort6())
	b.apply()
	if got := strings.Join(b.kernel.Keys(), " "); got != "2001:db8::2,tcp:30001 fd00:96::1,tcp:80" {
		t.Error(got)
	}
	if got := b.kernel.Entries("KUBE-6-CLUSTER-IP"); !slices.Equal(got, []string{"fd00:96::1,tcp:80"}) {
		t.Error(got)
	}
	b.verified()
}
