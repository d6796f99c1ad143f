package iptablesmodel

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// servers is an IPVS with two real servers at 10.96.0.1:80, none at
// 10.96.0.2:80, one on the node itself at 192.168.0.2:3001 and at 10.96.0.3:3001, which
// is not the node's, one that is rejected at times at 192.168.0.2:3002, and the ipset "own".
type servers struct{}

func (servers) Bound(a netip.Addr) bool {
	return slices.Contains([]string{"10.96.0.1", "10.96.0.2"}, a.String())
}

func (servers) Choose(p kernelmodel.Packet) ([]netip.AddrPort, bool) {
	reals, ok := map[string][]netip.AddrPort{
		"10.96.0.1:80":     {netip.MustParseAddrPort("10.0.0.1:8080"), netip.MustParseAddrPort("10.0.0.2:8080")},
		"10.96.0.2:80":     nil,
		"192.168.0.2:3001": {netip.MustParseAddrPort("192.168.0.2:80")},
		"10.96.0.3:3001":   {netip.MustParseAddrPort("192.168.0.2:80")},
		"192.168.0.2:3002": {{}, netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80"), {}},
	}[p.Destination.String()]
	return reals, ok
}

func (servers) Name() string { return "servers" }

func (servers) HasSet(set string) bool { return set == "own" }

func (servers) InSet(_ string, directions []string, p kernelmodel.Packet) (bool, error) {
	if !slices.Equal(directions, []string{"dst", "dst"}) {
		return false, fmt.Errorf("directions %q", directions)
	}
	return p.Destination == netip.MustParseAddrPort("10.96.0.1:80"), nil
}

// TestTraceBalancer: it acts after the rules of INPUT, and what it translates passes
// those of OUTPUT and POSTROUTING.
func TestTraceBalancer(t *testing.T) {
	const ext, node = "203.0.113.2", "192.168.0.2"
	for _, c := range []struct{ name, input, in, source, destination, want string }{
		{"spread", "", "eth0", ext, "10.96.0.1:80", "DELIVERED 10.0.0.1:8080 0.500, DELIVERED 10.0.0.2:8080 0.500"},
		{"apart from what a rule sends there", "*nat\n-A PREROUTING -m statistic --mode random --probability 0.5 -p tcp -j DNAT --to-destination 10.0.0.1:8080\nCOMMIT\n", "eth0", ext, "10.96.0.1:80",
			"DELIVERED 10.0.0.1:8080 0.500, DELIVERED 10.0.0.1:8080 0.250, DELIVERED 10.0.0.2:8080 0.250"},
		{"of a process", "", "", node, "10.96.0.1:80", "DELIVERED 10.0.0.1:8080 0.500, DELIVERED 10.0.0.2:8080 0.500"},
		{"no real server", "", "eth0", ext, "10.96.0.2:80", "REJECT 1.000"},
		{"another port", "", "eth0", ext, "10.96.0.2:81", "PASS 1.000"},
		{"an address that is not the node's", "", "eth0", ext, "10.96.0.3:80", "PASS 1.000"},
		{"on the node itself", "*nat\n-A POSTROUTING -j MASQUERADE\nCOMMIT\n", "eth0", ext, "192.168.0.2:3001", "DELIVERED 192.168.0.2:80 1.000"},
		{"INPUT comes first", "*filter\n-A INPUT -d 10.96.0.2 -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.2:80", "DROP 1.000"},
		{"FORWARD does not see it", "*filter\n-A FORWARD -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.1:80", "DELIVERED 10.0.0.1:8080 0.500, DELIVERED 10.0.0.2:8080 0.500"},
		{"OUTPUT knows no interface that it entered by", "*filter\n:A - [0:0]\n-A OUTPUT -j A\n-A A -i eth0 -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.1:80", "DELIVERED 10.0.0.1:8080 0.500, DELIVERED 10.0.0.2:8080 0.500"},
		{"OUTPUT comes afterwards", "*filter\n-A OUTPUT -d 10.0.0.1 -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.1:80", "DROP 0.500, DELIVERED 10.0.0.2:8080 0.500"},
		{"POSTROUTING too", "*nat\n-A POSTROUTING -d 10.0.0.0/8 -j MASQUERADE\nCOMMIT\n", "eth0", ext, "10.96.0.1:80",
			"DELIVERED 10.0.0.1:8080 masqueraded 0.500, DELIVERED 10.0.0.2:8080 masqueraded 0.500"},
		{"by the previous destination", "*filter\n-A OUTPUT -m ipvs --vaddr 10.96.0.1 --vproto tcp --vport 80 -j DROP\nCOMMIT\n", "", node, "10.96.0.1:80", "DROP 1.000"},
		{"not by a virtual server", "*filter\n-A INPUT -m ipvs ! --vaddr 10.0.0.0/8 -j DROP\n-A INPUT -m ipvs ! --vproto udp -j DROP\n" +
			"-A INPUT -m ipvs ! --vport 81 -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.2:81", "PASS 1.000"},
		{"by another virtual server", "*filter\n-A OUTPUT -m ipvs ! --vport 81 -j DROP\nCOMMIT\n", "", node, "10.96.0.1:80", "DROP 1.000"},
		{"rejected at times", "", "eth0", ext, "192.168.0.2:3002", "REJECT 0.500, DELIVERED 10.0.0.1:80 0.250, DELIVERED 10.0.0.2:80 0.250"},
		{"from the node to itself", "*filter\n-A INPUT -j DROP\nCOMMIT\n", "", node, "192.168.0.2:3001", "DROP 1.000"},
		{"from the node to itself by a route out", "*filter\n-A INPUT -j DROP\nCOMMIT\n", "", node, "10.96.0.3:3001", "DELIVERED 192.168.0.2:80 1.000"},
		{"in an ipset", "*filter\n-A INPUT -m set --match-set own dst,dst -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.1:80", "DROP 1.000"},
		{"not in an ipset", "*filter\n-A INPUT -m set --match-set own dst,dst -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.2:80", "REJECT 1.000"},
		{"not by a bridge", "*filter\n-A INPUT -m physdev ! --physdev-is-in -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.2:80", "DROP 1.000"},
		{"an ipset without such directions", "*filter\n-A INPUT -m set --match-set own src -j DROP\nCOMMIT\n", "eth0", ext, "10.96.0.1:80", `directions ["src"]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := NewKernel(netip.MustParseAddr(node))
			k.Balancer = servers{}
			if err := k.Restore(c.input); err != nil {
				t.Fatal(err)
			}
			if got := trace(t, k, c.in, c.source, c.destination); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	k := NewKernel()
	k.Balancer = servers{}
	if err := k.Restore("*filter\n-A INPUT -m set --match-set other dst -j DROP\nCOMMIT\n"); err == nil {
		t.Error("a rule about an ipset that does not exist is taken")
	}
}
