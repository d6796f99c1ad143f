package iptables

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netns"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// interfaces are the addresses of a node, those of its pods' interfaces among
// them.
var interfaces = addrs("127.0.0.1", "::1", "192.168.0.2", "192.168.1.2", "10.180.0.254", "fe80::1", "2001:db8::2", "2001:db8:1::2")

func nodePorts(mode v1alpha1.NodePortAddressMode, localhost v1alpha1.Toggle, cidrs ...string) func(*v1alpha1.ProxySettings) {
	return func(s *v1alpha1.ProxySettings) {
		*s.NodePorts.AddressMode, *s.NodePorts.Localhost, s.NodePorts.CIDRs = mode, localhost, cidrs
	}
}

func TestNodePortAddresses(t *testing.T) {
	const (
		all     = v1alpha1.NodePortsAll
		primary = v1alpha1.NodePortsPrimary
		cidrs   = v1alpha1.NodePortsCIDRs
		on      = v1alpha1.Enabled
		off     = v1alpha1.Disabled
		local   = "-m addrtype --dst-type LOCAL "
	)
	for name, c := range map[string]struct {
		settings func(*v1alpha1.ProxySettings)
		node     string   // addresses, separated by spaces
		v4, v6   []string // of the tail of KUBE-SERVICES, what selects
		firewall bool     // localhost is served
	}{
		"all":                         {nodePorts(all, on), "192.168.0.2", []string{local}, []string{local + "! -d ::1/128 "}, true},
		"all, not on localhost":       {nodePorts(all, off), "192.168.0.2", []string{local + "! -d 127.0.0.0/8 "}, []string{local + "! -d ::1/128 "}, false},
		"primary of both families":    {nodePorts(primary, on), "192.168.0.2 2001:db8::2 192.168.1.2", []string{"-d 192.168.0.2 "}, []string{"-d 2001:db8::2 "}, false},
		"primary of one family":       {nodePorts(primary, on), "192.168.0.2", []string{"-d 192.168.0.2 "}, []string{local + "! -d ::1/128 "}, false},
		"primary, no address yet":     {nodePorts(primary, on), "", []string{local}, []string{local + "! -d ::1/128 "}, true},
		"primary that no one has":     {nodePorts(primary, on), "192.168.7.7", nil, []string{local + "! -d ::1/128 "}, false},
		"ranges of both families":     {nodePorts(cidrs, off, "192.168.0.0/24", "192.168.1.0/24", "2001:db8::/64"), "", []string{"-d 192.168.0.2 ", "-d 192.168.1.2 "}, []string{"-d 2001:db8::2 "}, false},
		"ranges of IPv4 only":         {nodePorts(cidrs, on, "192.168.0.0/24"), "", []string{"-d 192.168.0.2 "}, []string{local + "! -d ::1/128 "}, false},
		"ranges of IPv6 only":         {nodePorts(cidrs, on, "2001:db8:1::/64"), "", []string{local}, []string{"-d 2001:db8:1::2 "}, true},
		"a range without any address": {nodePorts(cidrs, on, "198.51.100.0/24"), "", nil, []string{local + "! -d ::1/128 "}, false},
		"zero range beside another":   {nodePorts(cidrs, on, "192.168.0.0/24", "0.0.0.0/0"), "", []string{local}, []string{local + "! -d ::1/128 "}, true},
		"zero range of IPv6":          {nodePorts(cidrs, on, "192.168.0.0/24", "2001:db8::/64", "::/0"), "", []string{"-d 192.168.0.2 "}, []string{local + "! -d ::1/128 "}, false},
		"loopback beside another":     {nodePorts(cidrs, on, "192.168.0.0/24", "127.0.0.1/32"), "", []string{"-d 127.0.0.1 ", "-d 192.168.0.2 "}, []string{local + "! -d ::1/128 "}, true},
		"loopback, but switched off":  {nodePorts(cidrs, off, "192.168.0.0/24", "127.0.0.1/32"), "", []string{"-d 192.168.0.2 "}, []string{local + "! -d ::1/128 "}, false},
		"range inside the loopback's": {nodePorts(cidrs, on, "127.9.0.0/16"), "", nil, []string{local + "! -d ::1/128 "}, true},
		"range around the loopback's": {nodePorts(cidrs, on, "126.0.0.0/7"), "", []string{"-d 127.0.0.1 "}, []string{local + "! -d ::1/128 "}, true},
		"loopback of IPv6":            {nodePorts(cidrs, on, "::1/128", "2001:db8::/64"), "", []string{local}, []string{"-d 2001:db8::2 "}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for family, want := range map[dataplane.Family][]string{dataplane.IPv4: c.v4, dataplane.IPv6: c.v6} {
				node := testNode(c.settings)
				node.Addresses = nil
				for _, ip := range addrs(strings.Fields(c.node)...) {
					if family.Of(ip) {
						node.Addresses = append(node.Addresses, ip)
					}
				}
				config, err := newConfig(family, &node, kernelFacts{interfaceIPs: interfaces})
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, spec := range config.nodePortTail() {
					_, spec, _ = strings.Cut(spec, `chain" `)
					got = append(got, strings.TrimSuffix(spec, "-j KUBE-NODEPORTS"))
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", family, diff)
				}
				if want := c.firewall && family == dataplane.IPv4; config.nodePorts.Localhost != want {
					t.Errorf("%s on localhost: %t, want %t", family, config.nodePorts.Localhost, want)
				}
			}
		})
	}
}

// TestLocalhostNeedsASysctl: it is set, and declared, only where NodePorts answer on 127.0.0.1.
func TestLocalhostNeedsASysctl(t *testing.T) {
	const name = "net/ipv4/conf/all/route_localnet"
	if owned := Declaration().Owns.Sysctls; !slices.Contains(owned, name) {
		t.Errorf("the mode owns only %q", owned)
	}
	for localhost, want := range map[v1alpha1.Toggle]string{v1alpha1.Enabled: "1", v1alpha1.Disabled: "0"} {
		f, directory := newFixture(t), t.TempDir()
		file := filepath.Join(directory, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte("0\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		f.plane.sysctls = dataplane.Sysctls(directory)
		f.rules.Node = testNode(nodePorts(v1alpha1.NodePortsAll, localhost))
		f.set(someServices(1)...)
		if result := f.apply(); len(result.Warnings) > 0 {
			t.Errorf("%s: warnings %q", localhost, result.Warnings)
		}
		if got, err := f.plane.sysctls.Read(name); err != nil || got != want {
			t.Errorf("%s: the sysctl is %q (%v), want %q", localhost, got, err, want)
		}
	}
}

// at gives the node these addresses.
func (f *fixture) at(list ...string) {
	f.plane.interfaceIPs = func() ([]netip.Addr, error) { return addrs(list...), nil }
}

func (f *fixture) tail() string {
	f.Helper()
	var out []string
	for _, spec := range f.kernel.chain(f.T, nat, chainServices) {
		if _, rest, ok := strings.Cut(spec, `last rule in this chain" -d `); ok {
			ip, _, _ := strings.Cut(rest, " ")
			out = append(out, ip)
		}
	}
	return strings.Join(out, " ")
}

func TestChangedAddressRewritesTheTailOnly(t *testing.T) {
	f := newFixture(t)
	f.rules.Node = testNode(nodePorts(v1alpha1.NodePortsCIDRs, v1alpha1.Enabled, "192.168.0.0/16"))
	f.at("127.0.0.1", "192.168.0.2")
	services := someServices(3)
	services[0].Ports[0].NodePort = 30080
	f.set(services...)
	f.check(f.apply())
	step := func(kind v1alpha1.SyncKind, tail string, writes int, addresses ...string) dataplane.Result {
		t.Helper()
		f.at(addresses...)
		if want := tail != f.tail(); f.plane.addresses.Changed(f.plane.interfaceIPs) != want {
			t.Errorf("addresses have changed: %t, want %t", !want, want)
		}
		f.rules.Recheck = true
		result := f.apply()
		f.rules.Recheck = false
		if result.Kind != kind || f.tail() != tail || len(f.kernel.writes) != writes {
			t.Errorf("%s, tail %q, writes %q; want %s, %q", result.Kind, f.tail(), f.kernel.writes, kind, tail)
		}
		f.check(result)
		if f.plane.addresses.Changed(f.plane.interfaceIPs) {
			t.Error("what has just been applied counts as changed")
		}
		return result
	}
	step(v1alpha1.SyncPartial, "192.168.0.2 192.168.1.2", 1, "127.0.0.1", "192.168.1.2", "192.168.0.2")
	step(v1alpha1.SyncPartial, "192.168.0.2 192.168.1.2", 0, "192.168.0.2", "192.168.1.2", "10.0.0.1", "fe80::7")
	step(v1alpha1.SyncPartial, "192.168.1.2", 1, "192.168.1.2")
	result := step(v1alpha1.SyncPartial, "", 1, "10.0.0.1")
	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "NodePorts answer on no IPv4 address: no interface of the node has an address inside [192.168.0.0/16]") {
		t.Errorf("warnings %q", result.Warnings)
	}
	if result = step(v1alpha1.SyncPartial, "192.168.0.2", 1, "192.168.0.2"); len(result.Warnings) != 0 {
		t.Errorf("warnings %q", result.Warnings)
	}
	// A change of a Service comes at the same time.
	f.set(someServices(4)[3])
	step(v1alpha1.SyncPartial, "192.168.0.3", 2, "192.168.0.3")
	// Another program has removed the tail.
	chain := chainID{nat, chainServices}
	f.kernel.set(t, chain, slices.DeleteFunc(f.kernel.chain(t, chain.table, chain.name), func(s string) bool { return strings.Contains(s, "last rule") })...)
	f.at("192.168.0.3")
	f.rules.Recheck = true
	f.apply() // finds nothing to do
	f.at("192.168.0.4")
	if result := f.apply(); result.Kind != v1alpha1.SyncFull || f.tail() != "192.168.0.4" {
		t.Errorf("%s, tail %q", result.Kind, f.tail())
	}
	// Besides addresses, something else has changed.
	f.at("192.168.0.5")
	f.plane.actual.config.dropInvalid = false
	if result := f.apply(); result.Kind != v1alpha1.SyncFull || f.tail() != "192.168.0.5" {
		t.Errorf("%s, tail %q", result.Kind, f.tail())
	}
}

func TestAddressesDoNotMatterWhereAllDo(t *testing.T) {
	f := newFixture(t)
	f.at("192.168.0.2")
	if f.plane.addresses.Changed(f.plane.interfaceIPs) {
		t.Error("before the first Apply")
	}
	f.set(someServices(1)...)
	f.apply()
	f.at("192.168.0.3")
	if f.plane.addresses.Changed(f.plane.interfaceIPs) {
		t.Error("NodePorts answer on all addresses, but a new one counts as a change")
	}
}

func TestFailedChangeOfAddressesIsRepeated(t *testing.T) {
	f := newFixture(t)
	f.rules.Node = testNode(nodePorts(v1alpha1.NodePortsCIDRs, v1alpha1.Enabled, "192.168.0.0/16"))
	f.at("192.168.0.2")
	f.set(someServices(1)...)
	f.apply()
	f.at("192.168.0.3")
	f.rules.Recheck = true
	f.kernel.fail = &toolError{program: "iptables-restore", cause: locked}
	if _, err := f.plane.Apply(context.Background(), f.rules); err == nil {
		t.Fatal("no error")
	}
	f.rules.Recheck, f.rules.Full = false, true
	if f.check(f.apply()); f.tail() != "192.168.0.3" {
		t.Errorf("tail %q", f.tail())
	}
}

// TestFollowsAddresses changes addresses of a real interface.
func TestFollowsAddresses(t *testing.T) {
	onRealKernel(t, func(t *testing.T, directory string) {
		run(t, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "wire")
		run(t, "ip", "link", "set", "eth0", "up")
		run(t, "ip", "address", "add", "192.168.0.2/24", "dev", "eth0")
		plane, rules := New(dataplane.IPv4, Options{Programs: NewPrograms(directory, "")}), newRuleset(someServices(2)...)
		rules.Node = testNode(nodePorts(v1alpha1.NodePortsCIDRs, v1alpha1.Disabled, "192.168.0.0/16"))
		mustApply(t, plane, rules)

		changed := make(chan struct{}, 100)
		follow(t, plane, func() { changed <- struct{}{} })
		for _, step := range []struct{ command, tail string }{
			{"add 192.168.1.2/24", "192.168.0.2/32 192.168.1.2/32"},
			{"del 192.168.0.2/24", "192.168.1.2/32"},
			{"add 192.168.0.7/24", "192.168.0.7/32 192.168.1.2/32"},
		} {
			run(t, "ip", append([]string{"address"}, strings.Fields(step.command+" dev eth0")...)...)
			select {
			case <-changed:
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: not noticed", step.command)
			}
			rules.Recheck = true
			if result := mustApply(t, plane, rules); result.Kind != v1alpha1.SyncPartial {
				t.Errorf("%s: %+v", step.command, result)
			}
			rules.Recheck = false
			var tail []string
			for l := range strings.SplitSeq(run(t, filepath.Join(directory, "iptables-save"), "-t", "nat"), "\n") {
				if _, rest, ok := strings.Cut(l, "-A KUBE-SERVICES -d 192.168."); ok {
					ip, _, _ := strings.Cut(rest, " ")
					tail = append(tail, "192.168."+ip)
				}
			}
			if got := strings.Join(tail, " "); got != step.tail {
				t.Errorf("%s: tail %q, want %q", step.command, got, step.tail)
			}
			if d, err := plane.Verify(t.Context(), rules, dataplane.VerifyOptions{}); err != nil || d.Count != 0 {
				t.Errorf("%s: %+v, %v", step.command, d, err)
			}
		}
	})
}

// TestFollowNoticesWhatCameBefore stands for a subscription that has failed.
func TestFollowNoticesWhatCameBefore(t *testing.T) {
	f := newFixture(t)
	f.rules.Node = testNode(nodePorts(v1alpha1.NodePortsCIDRs, v1alpha1.Enabled, "192.168.0.0/16"))
	f.at("192.168.0.2")
	f.apply()
	f.at("192.168.0.3")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	noticed := false
	f.plane.Follow(ctx, func() { noticed = true; cancel() })
	if !noticed {
		t.Error("not noticed")
	}
}

// follow runs Follow in the network namespace of the calling thread until the
// test ends.
func follow(t *testing.T, plane *Dataplane, changed func()) {
	t.Helper()
	beside(t, func(ctx context.Context) { plane.Follow(ctx, changed) })
}

// beside runs do in the network namespace of the calling thread until the test
// ends.
func beside(t *testing.T, do func(context.Context)) {
	t.Helper()
	ns, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		do(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := ns.Close(); err != nil {
			t.Error(err)
		}
	})
}
