package iptablesmodel

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// trace reports what becomes of a TCP packet.
func trace(t *testing.T, k *Kernel, in, source, destination string) string {
	t.Helper()
	outcomes, err := k.Trace(kernelmodel.Packet{
		Protocol: "tcp", In: in, Source: netip.MustParseAddr(source), Destination: netip.MustParseAddrPort(destination),
	})
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, o := range outcomes {
		text := string(o.Fate)
		if o.Endpoint.IsValid() {
			text += " " + o.Endpoint.String()
		}
		if o.Masqueraded {
			text += " masqueraded"
		}
		out = append(out, fmt.Sprintf("%s %.3f", text, o.Share))
	}
	return strings.Join(out, ", ")
}

// TestTrace holds small rule sets whose effect can be determined without this package.
func TestTrace(t *testing.T) {
	const (
		pod, ext = "10.0.0.2", "203.0.113.2"
		mark     = "*nat\n:M - [0:0]\n-A M -j MARK --or-mark 0x4000\n" +
			"-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE\nCOMMIT\n"
	)
	for _, c := range []struct{ name, input, in, source, destination, want string }{
		{"nothing", "", "eth0", ext, "192.0.2.1:80", "PASS 1.000"},
		{"to the node", "*filter\n-A INPUT -j DROP\nCOMMIT\n", "eth0", ext, "192.168.0.2:80", "DROP 1.000"},
		{"through the node", "*filter\n-A INPUT -j DROP\nCOMMIT\n", "eth0", ext, "192.0.2.1:80", "PASS 1.000"},
		{"from the node", "*filter\n-A OUTPUT -j REJECT\nCOMMIT\n", "", "192.168.0.2", "192.0.2.1:80", "REJECT 1.000"},
		{"from the node to the node", "*filter\n-A INPUT -i lo -j REJECT\nCOMMIT\n", "", "192.168.0.2", "192.168.0.2:80", "REJECT 1.000"},
		{"accepted before dropped", "*filter\n-A INPUT -j ACCEPT\n-A INPUT -j DROP\nCOMMIT\n", "eth0", ext, "192.168.0.2:80", "ACCEPT 1.000"},
		{
			"filter sees what nat has made", "*nat\n-A PREROUTING -d 192.168.0.2 -p tcp -j DNAT --to-destination 10.0.0.9:8080\nCOMMIT\n" +
				"*filter\n-A FORWARD -d 10.0.0.9 -m tcp -p tcp --dport 8080 -j DROP\nCOMMIT\n",
			"eth0", ext, "192.168.0.2:80", "DROP 1.000",
		},
		{
			"chance", "*nat\n-A PREROUTING -m statistic --mode random --probability 0.25 -p tcp -j DNAT --to-destination 10.0.0.1:1\n" +
				"-A PREROUTING -m statistic --mode random --probability 0.5 -p tcp -j DNAT --to-destination 10.0.0.2:2\nCOMMIT\n",
			"eth0", ext, "192.0.2.1:80", "PASS 0.375, DELIVERED 10.0.0.1:1 0.250, DELIVERED 10.0.0.2:2 0.375",
		},
		{
			"mark and return", mark + "*nat\n:A - [0:0]\n-A A -s 203.0.113.0/24 -j RETURN\n-A A -j M\n" +
				"-A PREROUTING -j A\n-A PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:1\nCOMMIT\n",
			"eth0", ext, "192.0.2.1:80", "DELIVERED 10.0.0.1:1 1.000",
		},
		{
			"mark", mark + "*nat\n-A PREROUTING ! -i cni+ -j M\n-A PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:1\nCOMMIT\n",
			"eth0", ext, "192.0.2.1:80", "DELIVERED 10.0.0.1:1 masqueraded 1.000",
		},
		{
			"a pod's interface", mark + "*nat\n-A PREROUTING ! -i cni+ -j M\n-A PREROUTING -p tcp -j DNAT --to-destination 10.0.0.1:1\nCOMMIT\n",
			"cni0", pod, "192.0.2.1:80", "DELIVERED 10.0.0.1:1 1.000",
		},
		{
			"mark that is taken back", mark + "*nat\n-A PREROUTING -j M\n-I POSTROUTING -j MARK --xor-mark 0x4000\nCOMMIT\n",
			"eth0", ext, "192.0.2.1:80", "PASS 1.000",
		},
		{
			"mark as the programs print it", mark + "*nat\n-A PREROUTING -j MARK --set-xmark 0x4000/0x4000\nCOMMIT\n",
			"eth0", ext, "192.0.2.1:80", "PASS masqueraded 1.000",
		},
		{
			"connection states", "*filter\n-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,INVALID -j DROP\n" +
				"-A FORWARD -m conntrack ! --ctstate NEW -j DROP\n-A FORWARD -m conntrack --ctstate NEW -j REJECT\nCOMMIT\n",
			"eth0", ext, "192.0.2.1:80", "REJECT 1.000",
		},
		{
			"local source and destination", "*filter\n-A INPUT -m addrtype --src-type LOCAL -j DROP\n" +
				"-A INPUT -m addrtype ! --dst-type LOCAL -j DROP\nCOMMIT\n",
			"eth0", ext, "192.168.0.2:80", "PASS 1.000",
		},
		{"a circle", "*nat\n:A - [0:0]\n:B - [0:0]\n-A A -j B\n-A B -j A\n-A PREROUTING -j A\nCOMMIT\n", "eth0", ext, "192.0.2.1:80", "chain A: jumps in a circle"},
		{"a verdict out of place", "*nat\n-A PREROUTING -j DROP\nCOMMIT\n", "eth0", ext, "192.0.2.1:80", "PREROUTING of nat: target not allowed here: -j DROP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := NewKernel(netip.MustParseAddr("192.168.0.2"))
			if err := k.Restore(c.input); err != nil {
				t.Fatal(err)
			}
			if got := trace(t, k, c.in, c.source, c.destination); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestUnknownIsRejected: what cannot be evaluated is not taken.
func TestUnknownIsRejected(t *testing.T) {
	for _, rule := range []string{
		"-m set --match-set a src -j DROP",
		"-m tcp --dport 80 -j DROP",
		"-p tcp --dport 80 -j DROP",
		"-m tcp -p tcp --sport 80 -j DROP",
		"-m tcp -p tcp --dport 0 -j DROP",
		"-m statistic --mode nth --every 3 --packet 0 -j DROP",
		"-m statistic --mode random --probability 0.0 -j DROP",
		"-m recent --name A -j DROP",
		"-m addrtype --dst-type UNICAST -j DROP",
		"--ctstate NEW -j DROP",
		"-m conntrack --ctstate SNAT -j DROP",
		"-p tcp -j DNAT",
		"-j DNAT --to-destination 10.0.0.1:80",
		"! -p tcp -j DNAT --to-destination 10.0.0.1:80",
		"! -p tcp -m tcp --dport 80 -j DROP",
		"! -j DROP",
		"-m recent --name A ! --set -j DROP",
		"-m recent --name A --set -m tcp -p tcp --dport 80 -j DROP",
		"-m recent --name A --set -m mark --mark 0x1 -j DROP",
		"-j REJECT --reject-with tcp-reset",
		"-j ACCEPT --to-destination 10.0.0.1:80",
		"-s 10.0.0.300 -j DROP",
		"-j NO-SUCH-CHAIN",
		"-j A-NAME-THAT-HAS-29-CHARACTERS",
		`-m comment --comment "` + strings.Repeat("x", 256) + `" -j DROP`,
		`-m comment --comment "open -j DROP`,
	} {
		k := NewKernel()
		if err := k.Restore("*filter\n-A FORWARD " + rule + "\nCOMMIT\n"); err == nil {
			t.Errorf("taken: %s", rule)
		}
		if rules, _ := k.Chain("filter", "FORWARD"); len(rules) != 0 {
			t.Errorf("half taken: %q", rules)
		}
	}
}

func TestRestore(t *testing.T) {
	k := NewKernel()
	restore := func(input string, want bool) {
		t.Helper()
		if err := k.Restore(input); (err == nil) != want {
			t.Errorf("%q: error %v", input, err)
		}
	}
	restore("*nat\n:A - [0:0]\n-A A -d 10.0.0.1 -j RETURN\n-A PREROUTING -j A\nCOMMIT\n", true)
	restore("*nat\n:B - [0:0]\nCOMMIT\n*nat\n-X A\nCOMMIT\n", false) // the second section: A is in use
	restore("*nat\n-D A -s 10.0.0.1 -j RETURN\nCOMMIT\n", false)     // no such rule
	restore("*nat\n-D A -d 10.0.0.1/32 -j RETURN\n-D PREROUTING -j A\n-X A\nCOMMIT\n", true)
	restore("*nat\n:C - [0:0]\n", false) // no COMMIT
	want := "*nat\n:B - [0:0]\n:INPUT - [0:0]\n:OUTPUT - [0:0]\n:POSTROUTING - [0:0]\n:PREROUTING - [0:0]\nCOMMIT\n"
	if got := k.Save("nat"); got != want {
		t.Errorf("got %s", got)
	}
}
