package iptablesmodel_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablesmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/test/ipvs/modeltest"
)

// onRealKernel runs a test for each IP family and variant of iptables.
func onRealKernel(t *testing.T, test func(l *modeltest.Lab, six bool, variant string)) {
	programs := map[string]string{"nf_tables": "xtables-nft-multi", "legacy": "xtables-legacy-multi"}
	for _, variant := range []string{"nf_tables", "legacy"} { // in this order, so that a seed repeats all
		program := programs[variant]
		for _, six := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, IPv6 %t", variant, six), func(t *testing.T) {
				if os.Geteuid() != 0 {
					t.Skip("needs root: run sudo make test")
				}
				path, err := exec.LookPath(program)
				if err != nil {
					t.Fatalf("%s not found: apt-get install iptables", program)
				}
				dir := t.TempDir()
				for _, name := range []string{"iptables", "ip6tables"} {
					for _, end := range []string{"-restore", "-save"} {
						if err := os.Symlink(path, filepath.Join(dir, name+end)); err != nil {
							t.Fatal(err)
						}
					}
				}
				test(modeltest.NewLab(t, six, dir), six, variant)
			})
		}
	}
}

// TestRandomOnRealKernel sends random packets through random rules and compares which
// rules they meet, where they go and what answers them. NODEPROXY_SEED repeats a run.
func TestRandomOnRealKernel(t *testing.T) {
	const packets = 16
	sets := map[string]int{"nf_tables": 6, "legacy": 4}
	seed := dataplanetest.Seed(t)
	counts := map[string]int{}
	var stream uint64
	onRealKernel(t, func(l *modeltest.Lab, six bool, variant string) {
		stream++
		r := &modeltest.Random{Rand: rand.New(rand.NewPCG(seed, stream)), Six: six, SCTP: l.SCTP()} //nolint:gosec // to be repeated
		for i := range sets[variant] {
			r.Chance = i%4 == 3
			var list, before []kernelmodel.Packet
			for range packets {
				p := r.Packet()
				list = append(list, p)
				if p.State == "ESTABLISHED" {
					before = append(before, p)
				}
			}
			l.Establish(before...)
			compare(l, six, r.RuleSet(), list, counts)
		}
	})
	t.Logf("compared: %v", counts)
	for what, n := range enough {
		if counts[what] < n {
			t.Errorf("%s: %d, want %d at least", what, counts[what], n)
		}
	}
}

// enough is how often each kind of thing is compared at least. Usually it is several times as often; once in
// some hundred seeds, a verdict is met nine times only.
var enough = map[string]int{
	"ACCEPT": 3, "DELIVERED": 12, "DROP": 3, "PASS": 60, "REJECT": 3, "packets whose rules are compared": 120, "rules met": 250,
}

// compare sends packets through a rule set, and counts what the model predicted.
func compare(l *modeltest.Lab, six bool, rules string, packets []kernelmodel.Packet, counts map[string]int) {
	l.Helper()
	k := iptablesmodel.NewKernel(modeltest.Node(six)...)
	if err := cmp.Or(k.Restore(rules), l.Load(rules)); err != nil {
		l.Fatalf("%v\n%s", err, rules)
	}
	exact := !strings.Contains(rules, "--probability")
	for _, p := range packets {
		outcomes, err := k.Trace(p)
		if err != nil {
			l.Fatalf("%+v: %v\n%s", p, err, rules)
		}
		if modeltest.Unpredictable(p, outcomes, modeltest.Node(six)...) {
			continue
		}
		if len(outcomes) == 0 {
			l.Fatalf("%+v: the model has no outcome\n%s", p, rules)
		}
		seen := l.Send(p)
		var all []string
		for i := range outcomes {
			o := &outcomes[i]
			differences := modeltest.Differences(p, o, &seen, exact)
			if len(differences) == 0 {
				counts[string(o.Fate)]++
				if exact {
					counts["packets whose rules are compared"]++
					for _, n := range seen.Met {
						counts["rules met"] += n
					}
				}
				k.Remember(*o)
				all = nil
				break
			}
			all = append(all, fmt.Sprintf("%s: %s", o.Fate, strings.Join(differences, "\n")))
		}
		if len(all) > 0 {
			l.Fatalf("%+v\n%s\n%+v\n%s", p, strings.Join(all, "\n"), seen, rules)
		}
	}
}

// TestCornersOnRealKernel compares what rules are easily misread: in each case the
// packets go through the rules one after the other.
func TestCornersOnRealKernel(t *testing.T) {
	const ext, eth = "203.0.113.2", "eth0"
	packet := func(in, from, to, state string) kernelmodel.Packet {
		return kernelmodel.Packet{
			Protocol: "udp", In: in, Source: netip.MustParseAddr(from), Destination: netip.MustParseAddrPort(to), State: state, Bridged: in == "cni0",
		}
	}
	for _, c := range []struct {
		name, rules string
		packets     []kernelmodel.Packet
	}{
		{
			"translated to where it goes anyway", "*nat\n-A PREROUTING -p udp -j DNAT --to-destination 10.180.0.7:80\n" +
				"COMMIT\n*filter\n-A FORWARD -m conntrack --ctstate DNAT -j DROP\nCOMMIT\n",
			[]kernelmodel.Packet{packet(eth, ext, "10.180.0.7:80", ""), packet(eth, ext, "10.180.0.7:81", ""), packet(eth, ext, "10.180.0.8:80", "")},
		},
		{
			"any interface", "*filter\n:A - [0:0]\n-A A -i +\n-A A ! -i lo\n-A A ! -i eth+\n-A A -i eth\n" +
				"-A INPUT -j A\n-A FORWARD -j A\n-A OUTPUT -j A\nCOMMIT\n",
			[]kernelmodel.Packet{packet(eth, ext, "10.180.0.7:80", ""), packet("", "192.168.0.2", "10.180.0.7:80", ""), packet("", "192.168.0.2", "10.244.0.1:80", "")},
		},
		{
			"remembered by the same packet", "*filter\n-A FORWARD -m recent --name C --rcheck -j DROP\n-A FORWARD -m recent --name C --set\n" +
				"-A FORWARD -m recent --name C --rcheck -j REJECT\nCOMMIT\n",
			[]kernelmodel.Packet{packet(eth, ext, "10.180.0.7:80", ""), packet(eth, ext, "10.180.0.7:80", ""), packet(eth, "203.0.113.3", "10.180.0.7:80", "")},
		},
		{
			"remembered by its address before masquerading", "*nat\n-A PREROUTING -m recent --name E --set\n-A POSTROUTING -m recent --name E --rcheck -j MASQUERADE\nCOMMIT\n",
			[]kernelmodel.Packet{packet(eth, ext, "10.180.0.7:80", ""), packet("", "192.168.0.2", "10.180.0.7:80", "")},
		},
		{
			"remembered by its address after masquerading", "*nat\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n*filter\n" +
				"-A OUTPUT -m recent --name F --rcheck -j DROP\n-A INPUT -m recent --name F --set\nCOMMIT\n",
			[]kernelmodel.Packet{packet("", "127.0.0.1", "127.0.0.1:80", ""), packet("", "127.0.0.1", "127.0.0.1:80", "")},
		},
		{
			"marks", "*nat\n-A PREROUTING -j MARK --or-mark 0x4000\n-A PREROUTING -m mark --mark 0x4000 -j MARK --set-xmark 0x8001/0xc000\n" +
				"-A PREROUTING -m mark --mark 0x8001 -j MARK --xor-mark 0x1\n-A POSTROUTING -m mark --mark 0x8000/0xc001 -j MASQUERADE\nCOMMIT\n" +
				"*filter\n-A FORWARD -m mark ! --mark 0x8000/0x8000 -j DROP\nCOMMIT\n",
			[]kernelmodel.Packet{packet(eth, ext, "10.180.0.7:80", ""), packet("cni0", "10.244.0.5", "10.180.0.7:80", "")},
		},
		{
			"from the node to itself", "*nat\n-A PREROUTING -p udp -j DNAT --to-destination 10.180.0.8:1\n-A OUTPUT -d 10.96.0.1 -p udp -j DNAT --to-destination 10.244.0.1:80\n" +
				"COMMIT\n*filter\n-A INPUT -i lo -m addrtype --src-type LOCAL -d 10.244.0.1 -j REJECT\nCOMMIT\n",
			[]kernelmodel.Packet{
				packet("", "192.168.0.2", "10.96.0.1:80", ""), packet("", "192.168.0.2", "192.168.0.2:80", ""), packet("", "127.0.0.1", "127.0.0.1:80", ""),
			},
		},
		{
			"what ends a chain", "*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-A A -p udp -j DNAT --to-destination 10.180.0.8:1\n-A B -d 10.96.0.1 -j RETURN\n" +
				"-A B -d 10.96.0.2 -j ACCEPT\n-A PREROUTING -s 203.0.113.3 -j RETURN\n-A PREROUTING -j A\n-A PREROUTING\nCOMMIT\n",
			[]kernelmodel.Packet{packet(eth, ext, "10.96.0.1:80", ""), packet(eth, ext, "10.96.0.2:80", ""), packet(eth, "203.0.113.3", "10.96.0.1:80", "")},
		},
		{
			"a connection that exists", "*nat\n-A PREROUTING -p udp -j DNAT --to-destination 10.180.0.8:1\nCOMMIT\n" +
				"*filter\n-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n-A FORWARD -j DROP\nCOMMIT\n",
			[]kernelmodel.Packet{packet(eth, ext, "10.96.0.1:80", "ESTABLISHED"), packet(eth, ext, "10.96.0.1:80", "")},
		},
		{
			"by a port of a bridge", "*filter\n-A FORWARD -m physdev --physdev-is-in -j REJECT\n-A FORWARD -m physdev ! --physdev-is-in -j DROP\nCOMMIT\n",
			[]kernelmodel.Packet{packet("cni0", "10.244.0.5", "10.180.0.7:80", ""), packet(eth, ext, "10.180.0.7:80", "")},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root: run sudo make test")
			}
			l := modeltest.NewLab(t, false, "")
			var before []kernelmodel.Packet
			for _, p := range c.packets {
				if p.State == "ESTABLISHED" {
					before = append(before, p)
				}
			}
			l.Establish(before...)
			compare(l, false, modeltest.Tag(c.rules), c.packets, map[string]int{})
		})
	}
}

// TestChanceOnRealKernel compares how often each outcome happens: by more than five
// standard deviations it differs once in a million runs.
func TestChanceOnRealKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	const (
		packets = 1000
		rules   = "*nat\n:A - [0:0]\n-A PREROUTING -m statistic --mode random --probability 0.25 -p udp -j DNAT --to-destination 10.180.0.7:1\n" +
			"-A PREROUTING -m statistic --mode random --probability 0.5 -j A\n-A PREROUTING -p udp -j DNAT --to-destination 10.180.0.7:3\n" +
			"-A A -m statistic --mode random --probability 0.3333333333 -p udp -j DNAT --to-destination 10.180.0.7:2\nCOMMIT\n"
	)
	l := modeltest.NewLab(t, false, "")
	k := iptablesmodel.NewKernel(modeltest.Node(false)...)
	if err := cmp.Or(k.Restore(rules), l.Load(modeltest.Tag(rules))); err != nil {
		t.Fatal(err)
	}
	p := kernelmodel.Packet{
		Protocol: "udp", In: "eth0", Source: netip.MustParseAddr("203.0.113.2"), Destination: netip.MustParseAddrPort("10.96.0.1:80"),
	}
	outcomes, err := k.Trace(p)
	if err != nil {
		t.Fatal(err)
	}
	l.CheckShares(p, outcomes, packets)
}
