package ipvs

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func endpoints(list ...string) []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range list {
		out = append(out, netip.MustParseAddrPort(s))
	}
	return out
}

// testConfig is that of a node with the addresses 192.168.0.2 and 192.168.1.2.
func testConfig(t testing.TB, family dataplane.Family, change func(*v1alpha1.ProxySettings), missing ...string) *config {
	t.Helper()
	s := v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{})
	if change != nil {
		change(s)
	}
	n := &dataplane.Node{Settings: s, Addresses: addrs("192.168.0.2")}
	if family == dataplane.IPv6 {
		n.Addresses = addrs("2001:db8::2")
	}
	c, err := newConfig(family, n, addrs("192.168.1.2", "192.168.0.2", "127.0.0.1", "::1", "2001:db8::2", "fe80::1"), missing)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// serverTexts prints virtual servers human-readable.
func serverTexts(list []plannedServer) []string {
	var out []string
	for _, s := range list {
		text := fmt.Sprintf("%s %s", keyEntry(s.Key), s.Scheduler)
		if s.Flags != 0 {
			text += fmt.Sprintf(" %#x %d", uint32(s.Flags), s.Timeout)
		}
		if s.bind {
			text += " bound"
		}
		out = append(out, fmt.Sprintf("%s %v", text, s.reals))
	}
	return out
}

// TestScheduler: a Service's virtual servers have its scheduler if the kernel does, else the node's,
// with a note.
func TestScheduler(t *testing.T) {
	for _, c := range []struct {
		name, own, missing, want string
		notes                    int
	}{
		{"the node's", "", "", "10.0.0.1,tcp:80 lc bound []", 0},
		{"its own", "sh", "", "10.0.0.1,tcp:80 sh bound []", 0},
		{"maglev", "mh", "", "10.0.0.1,tcp:80 mh 0x10 0 bound []", 0},
		{"one that is missing", "mh", "mh", "10.0.0.1,tcp:80 lc bound []", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := testConfig(t, dataplane.IPv4, func(s *v1alpha1.ProxySettings) { *s.IPVS.Scheduler = "lc" }, c.missing)
			plan := config.planService(&dataplane.Service{
				ClusterIP: netip.MustParseAddr("10.0.0.1"), IPVSScheduler: c.own,
				Ports: []dataplane.Port{{Protocol: v1alpha1.ProtocolTCP, Port: 80}},
			}, nil)
			if got := serverTexts(plan.servers); !slices.Equal(got, []string{c.want}) || len(plan.notes) != c.notes {
				t.Errorf("%q, notes %q", got, plan.notes)
			}
		})
	}
}

// TestNodeAddresses: the roles of the node's addresses.
func TestNodeAddresses(t *testing.T) {
	mode := func(m v1alpha1.NodePortAddressMode, cidrs ...string) func(*v1alpha1.ProxySettings) {
		return func(s *v1alpha1.ProxySettings) { *s.NodePorts.AddressMode, s.NodePorts.CIDRs = m, cidrs }
	}
	own := map[dataplane.Family][]netip.Addr{dataplane.IPv4: addrs("192.168.0.2", "192.168.1.2"), dataplane.IPv6: addrs("2001:db8::2")}
	for _, c := range []struct {
		name   string
		family dataplane.Family
		change func(*v1alpha1.ProxySettings)
		want   []netip.Addr
	}{
		{"all", dataplane.IPv4, nil, addrs("192.168.0.2", "192.168.1.2")},
		{"all of IPv6", dataplane.IPv6, nil, addrs("2001:db8::2")},
		{"the primary one", dataplane.IPv4, mode(v1alpha1.NodePortsPrimary), addrs("192.168.0.2")},
		{"of a range", dataplane.IPv4, mode(v1alpha1.NodePortsCIDRs, "192.168.1.0/24"), addrs("192.168.1.2")},
		{"a link-local range", dataplane.IPv6, mode(v1alpha1.NodePortsCIDRs, "fe80::/10"), addrs("fe80::1")},
		{"never the loopback ones", dataplane.IPv4, mode(v1alpha1.NodePortsCIDRs, "127.0.0.0/8"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := testConfig(t, c.family, c.change)
			if !slices.Equal(config.nodePortIPs, c.want) {
				t.Errorf("node ports on %v, want %v", config.nodePortIPs, c.want)
			}
			if !slices.Equal(config.addresses, own[c.family]) { // NodePorts or not, and no link-local one
				t.Errorf("the node's addresses are %v, want %v", config.addresses, own[c.family])
			}
			if again := testConfig(t, c.family, c.change); !reflect.DeepEqual(config, again) {
				t.Errorf("the same makes another: %+v, %+v", config, again)
			}
		})
	}
}

// TestOnce: what a Service needs twice is in its plan once.
func TestOnce(t *testing.T) {
	config := testConfig(t, dataplane.IPv4, nil)
	port := dataplane.Port{
		Protocol: v1alpha1.ProtocolTCP, Port: 80, Available: true,
		Cluster: endpoints("10.1.0.1:80", "10.1.0.10:80", "10.1.0.2:80"), LocalEndpoints: endpoints("10.1.0.1:80"),
	}
	other := port
	other.Port = 81
	plan := config.planService(&dataplane.Service{
		ClusterIP: netip.MustParseAddr("10.0.0.1"), ExternalIPs: addrs("1.2.3.4"), LoadBalancerIPs: addrs("1.2.3.4", "192.168.1.2"),
		Ports: []dataplane.Port{port, other},
	}, nil)
	const reals = " rr bound [10.1.0.1:80 10.1.0.2:80 10.1.0.10:80]"
	unbound := strings.Replace(reals, " bound", "", 1)
	want := []string{
		"10.0.0.1,tcp:80" + reals, "1.2.3.4,tcp:80" + reals, "192.168.1.2,tcp:80" + unbound,
		"10.0.0.1,tcp:81" + reals, "1.2.3.4,tcp:81" + reals, "192.168.1.2,tcp:81" + unbound,
	}
	if got := serverTexts(plan.servers); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	var got []string
	for _, e := range plan.entries {
		got = append(got, fmt.Sprintf("%s %s", e.set, e.entry))
	}
	want = []string{
		"KUBE-CLUSTER-IP 10.0.0.1,tcp:80", "KUBE-CLUSTER-IP 10.0.0.1,tcp:81",
		"KUBE-EXTERNAL-IP 1.2.3.4,tcp:80", "KUBE-EXTERNAL-IP 1.2.3.4,tcp:81",
		"KUBE-IPVS-IPS 1.2.3.4", "KUBE-IPVS-IPS 10.0.0.1",
		"KUBE-LOAD-BALANCER 1.2.3.4,tcp:80", "KUBE-LOAD-BALANCER 1.2.3.4,tcp:81",
		"KUBE-LOAD-BALANCER 192.168.1.2,tcp:80", "KUBE-LOAD-BALANCER 192.168.1.2,tcp:81",
		"KUBE-LOOP-BACK 10.1.0.1,tcp:80,10.1.0.1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestSetNames: IPv6 has its own names, within the kernel's limit.
func TestSetNames(t *testing.T) {
	names := map[SetName]bool{}
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		for _, name := range SetNames(family) {
			if len(name) > maxSetName || names[name] {
				t.Errorf("%s is too long, or there twice", name)
			}
			names[name] = true
		}
	}
	for _, name := range []SetName{
		"KUBE-6-LOAD-BALANCER-SOURCE-CID", "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS", "KUBE-6-IPVS-IPS", "NODEPROXY-NO-LOCAL", "NODEPROXY-6-NO-LOCAL", "NODEPROXY-NO-LOCAL-ALL", "NODEPROXY-6-NO-LOCAL-ALL",
	} {
		if !names[name] {
			t.Errorf("%s is missing", name)
		}
	}
}

// TestRanges: source ranges as entries of a set of networks.
func TestRanges(t *testing.T) {
	k4 := Key{netip.MustParseAddr("1.2.3.4"), 80, v1alpha1.ProtocolTCP}
	k6 := Key{netip.MustParseAddr("fd00::1"), 53, v1alpha1.ProtocolUDP}
	for _, c := range []struct {
		key   Key
		cidr  string
		wants []Entry
	}{
		{k4, "10.1.2.3/16", []Entry{"1.2.3.4,tcp:80,10.1.0.0/16"}},
		{k4, "10.1.2.3/32", []Entry{"1.2.3.4,tcp:80,10.1.2.3"}},
		{k4, "0.0.0.0/0", []Entry{"1.2.3.4,tcp:80,0.0.0.0/1", "1.2.3.4,tcp:80,128.0.0.0/1"}},
		{k6, "2001:db8::/32", []Entry{"fd00::1,udp:53,2001:db8::/32"}},
		{k6, "::/0", []Entry{"fd00::1,udp:53,::/1", "fd00::1,udp:53,8000::/1"}},
	} {
		if got := keyAndRange(c.key, netip.MustParsePrefix(c.cidr)); !slices.Equal(got, c.wants) {
			t.Errorf("%s: %q", c.cidr, got)
		}
	}
}

// TestRules: the fixed rules in their order, of a node that uses all ipsets and of
// one that uses none.
func TestRules(t *testing.T) {
	config := testConfig(t, dataplane.IPv4, func(s *v1alpha1.ProxySettings) {
		s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"10.0.0.0/8"}}
	})
	all := map[SetName]int{}
	for _, name := range SetNames(config.family) {
		all[name] = 1
	}
	var got strings.Builder
	for _, c := range config.rules(all, map[outRule]int{"-s 2.2.2.2 -j DROP": 2, "-s 1.1.1.1 -j DROP": 1}).Chains {
		for _, r := range c.Rules {
			got.WriteString(c.Table + " " + c.Name + " " + r + "\n")
		}
	}
	if want := allRules; got.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", got.String(), want)
	}
	rules := 0
	none := config.rules(nil, nil)
	for _, c := range none.Chains {
		rules += len(c.Rules)
	}
	if len(none.Chains) != 11 || len(none.Jumps) != 9 || rules != 17 {
		t.Errorf("without entries: %d chains, %d jumps, %d rules: %q", len(none.Chains), len(none.Jumps), rules, none)
	}
}

const allRules = `nat KUBE-SERVICES -s 127.0.0.0/8 -j RETURN
nat KUBE-SERVICES -m set --match-set NODEPROXY-NO-LOCAL dst,dst -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
nat KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER
nat KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ
nat KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ
nat KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT
nat KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -m addrtype --dst-type LOCAL -j ACCEPT
nat KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT
nat KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -m addrtype --dst-type LOCAL -j ACCEPT
nat KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
nat KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT
nat KUBE-SERVICES -m set --match-set KUBE-LOAD-BALANCER dst,dst -j ACCEPT
nat KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-LOCAL-TCP dst -j RETURN
nat KUBE-NODE-PORT -p tcp -m set --match-set KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ
nat KUBE-NODE-PORT -p udp -m set --match-set KUBE-NODE-PORT-LOCAL-UDP dst -j RETURN
nat KUBE-NODE-PORT -p udp -m set --match-set KUBE-NODE-PORT-UDP dst -j KUBE-MARK-MASQ
nat KUBE-NODE-PORT -p sctp -m set --match-set KUBE-NODE-PORT-LOCAL-SCTP-HASH dst,dst -j RETURN
nat KUBE-NODE-PORT -p sctp -m set --match-set KUBE-NODE-PORT-SCTP-HASH dst,dst -j KUBE-MARK-MASQ
nat KUBE-LOAD-BALANCER -m set --match-set KUBE-LOAD-BALANCER-LOCAL dst,dst -j RETURN
nat KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ
nat KUBE-MARK-MASQ -j MARK --or-mark 0x4000
nat KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE
nat KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
nat KUBE-POSTROUTING -j MARK --xor-mark 0x4000
nat KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
filter KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
filter KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
filter KUBE-NODE-PORT -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT
filter KUBE-PROXY-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL
filter KUBE-SOURCE-RANGES-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN
filter KUBE-SOURCE-RANGES-FIREWALL -m set --match-set KUBE-LOAD-BALANCER-SOURCE-IP dst,dst,src -j RETURN
filter KUBE-SOURCE-RANGES-FIREWALL -j DROP
filter KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set NODEPROXY-NO-LOCAL-ALL dst,dst -j DROP
filter KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set NODEPROXY-NO-LOCAL dst,dst ! -s 10.0.0.0/8 -j DROP
filter KUBE-IPVS-FILTER -m set --match-set KUBE-LOAD-BALANCER dst,dst -j RETURN
filter KUBE-IPVS-FILTER -m set --match-set KUBE-CLUSTER-IP dst,dst -j RETURN
filter KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP dst,dst -j RETURN
filter KUBE-IPVS-FILTER -m set --match-set KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN
filter KUBE-IPVS-FILTER -m set --match-set KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN
filter KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set KUBE-IPVS-IPS dst -j REJECT
filter KUBE-IPVS-OUT-FILTER -s 1.1.1.1 -j DROP
filter KUBE-IPVS-OUT-FILTER -s 2.2.2.2 -j DROP
`

// TestAddressesOfOtherNodes: they are not bound, or they would be local.
func TestAddressesOfOtherNodes(t *testing.T) {
	for _, c := range []struct {
		name, address string
		ofNode        bool
		want          []string
	}{
		{"of no Node", "198.51.100.20", false, []string{"10.0.0.1,tcp:80 rr bound []", "198.51.100.20,tcp:80 rr bound []"}},
		{"of another Node", "192.168.0.3", true, []string{"10.0.0.1,tcp:80 rr bound []"}},
		{"of this Node, on an interface", "192.168.1.2", true, []string{"10.0.0.1,tcp:80 rr bound []", "192.168.1.2,tcp:80 rr []"}},
		{"of this Node, on no interface", "203.0.113.2", true, []string{"10.0.0.1,tcp:80 rr bound []", "203.0.113.2,tcp:80 rr bound []"}},
	} {
		for _, balanced := range []bool{false, true} {
			config := testConfig(t, dataplane.IPv4, nil)
			config.ownIPs = addrs("192.168.0.2", "203.0.113.2")
			svc := &dataplane.Service{
				ClusterIP: netip.MustParseAddr("10.0.0.1"), Ports: []dataplane.Port{{Protocol: v1alpha1.ProtocolTCP, Port: 80}}, ExternalIPs: addrs(c.address),
			}
			if balanced {
				svc.ExternalIPs, svc.LoadBalancerIPs = nil, svc.ExternalIPs
			}
			if c.ofNode {
				svc.NodeAddresses = addrs(c.address)
			}
			plan := config.planService(svc, nil)
			left := len(c.want) == 1
			if got := serverTexts(plan.servers); !slices.Equal(got, c.want) || len(plan.notes) > 0 != left {
				t.Errorf("%s, balanced %t: %q, notes %q", c.name, balanced, got, plan.notes)
			}
			if left && slices.ContainsFunc(plan.entries, func(e setEntry) bool { return strings.Contains(fmt.Sprint(e.entry), c.address) }) {
				t.Errorf("%s, balanced %t: entries %v", c.name, balanced, plan.entries)
			}
		}
	}
}
