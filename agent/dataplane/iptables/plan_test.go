package iptables

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// testConfig is a node with pods in 10.0.0.0/8 and defaults otherwise.
func testConfig(t testing.TB, edit ...func(*v1alpha1.ProxySettings)) *config {
	t.Helper()
	node := testNode(edit...)
	c, err := newConfig(dataplane.IPv4, &node, kernelFacts{randomFully: true})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func testNode(edit ...func(*v1alpha1.ProxySettings)) dataplane.Node {
	settings := v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{DetectLocal: &v1alpha1.DetectLocalSettings{
		Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"10.0.0.0/8", "fd00::/56"},
	}})
	for _, f := range edit {
		f(settings)
	}
	return dataplane.Node{Settings: settings, Addresses: []netip.Addr{netip.MustParseAddr("192.168.0.2")}}
}

func endpoints(list ...string) []netip.AddrPort {
	out := make([]netip.AddrPort, len(list))
	for i, s := range list {
		out[i] = netip.MustParseAddrPort(s)
	}
	return out
}

func addrs(list ...string) []netip.Addr {
	out := make([]netip.Addr, len(list))
	for i, s := range list {
		out[i] = netip.MustParseAddr(s)
	}
	return out
}

// testService has one TCP port, 80, named p80.
func testService(name, clusterIP string, port dataplane.Port) *dataplane.Service {
	namespace, name, _ := strings.Cut(name, "/")
	port.Name, port.Protocol = "p80", v1alpha1.ProtocolTCP
	if port.Port == 0 {
		port.Port = 80
	}
	return &dataplane.Service{
		Name:      dataplane.ServiceName{Namespace: namespace, Name: name},
		ClusterIP: netip.MustParseAddr(clusterIP),
		Ports:     []dataplane.Port{port},
	}
}

// lines renders a plan as "table -A CHAIN …" lines, sorted.
func (p *servicePlan) lines() []string {
	var out []string
	for _, c := range p.chains {
		for l := range strings.SplitSeq(strings.TrimSpace(c.text), "\n") {
			out = append(out, "nat "+l)
		}
	}
	slices.Sort(out)
	var shared []string
	for _, r := range p.dispatch {
		shared = append(shared, r.in.table+" -A "+r.in.name+" "+r.spec)
	}
	slices.Sort(shared)
	return append(shared, out...)
}

func TestChainHashIsKubeProxys(t *testing.T) {
	for _, c := range []struct{ name, protocol, endpoint, want string }{
		{"ns1/svc1:p80", "tcp", "", "XPGD46QRK7WJZT7O"},
		{"ns1/svc1", "tcp", "", "AQI2S6QIMU7PVVRP"},
		{"default/kubernetes:https", "tcp", "", "NPX46M4PTMTKRN6Y"},
		{"kube-system/kube-dns:dns", "udp", "", "TCOU7JCQXEZGVUNU"},
		{"kube-system/kube-dns:dns-tcp", "tcp", "", "ERIFXISQEP7F7OF4"},
		{"ns1/svc1:p80", "tcp", "10.180.0.1:80", "SXIVWICOYRO3J4NJ"},
		{"ns1/svc1:p80", "tcp", "[fd00::1]:80", "T5UNFIPVCZXM3U7X"},
	} {
		if got := chainHash(c.name, c.protocol, c.endpoint); got != c.want {
			t.Errorf("chainHash(%q, %q, %q) = %s, want %s", c.name, c.protocol, c.endpoint, got, c.want)
		}
	}
}

func TestPlanLocalLoadBalancerWithoutLocalEndpoint(t *testing.T) {
	svc := testService("ns2/svc2", "172.30.0.42", dataplane.Port{
		NodePort: 3001, Available: true, Cluster: endpoints("10.180.0.2:80"),
	})
	svc.ExternalIPs, svc.LoadBalancerIPs = addrs("192.168.99.22"), addrs("1.2.3.4")
	svc.ExternalLocal, svc.HealthCheckNodePort = true, 30000
	plan := testConfig(t).planService(svc)
	const (
		h = "GNZBNJ2PO5MGZ6GT"
		c = "-m comment --comment "
	)
	want := []string{
		`filter -A KUBE-EXTERNAL-SERVICES ` + c + `"ns2/svc2:p80 has no local endpoints" -m addrtype --dst-type LOCAL -m tcp -p tcp --dport 3001 -j DROP`,
		`filter -A KUBE-EXTERNAL-SERVICES ` + c + `"ns2/svc2:p80 has no local endpoints" -m tcp -p tcp -d 1.2.3.4 --dport 80 -j DROP`,
		`filter -A KUBE-EXTERNAL-SERVICES ` + c + `"ns2/svc2:p80 has no local endpoints" -m tcp -p tcp -d 192.168.99.22 --dport 80 -j DROP`,
		`filter -A KUBE-NODEPORTS ` + c + `"ns2/svc2:p80 health check node port" -m tcp -p tcp --dport 30000 -j ACCEPT`,
		`nat -A KUBE-NODEPORTS ` + c + `ns2/svc2:p80 -m tcp -p tcp --dport 3001 -j KUBE-EXT-` + h,
		`nat -A KUBE-SERVICES ` + c + `"ns2/svc2:p80 cluster IP" -m tcp -p tcp -d 172.30.0.42 --dport 80 -j KUBE-SVC-` + h,
		`nat -A KUBE-SERVICES ` + c + `"ns2/svc2:p80 external IP" -m tcp -p tcp -d 192.168.99.22 --dport 80 -j KUBE-EXT-` + h,
		`nat -A KUBE-SERVICES ` + c + `"ns2/svc2:p80 loadbalancer IP" -m tcp -p tcp -d 1.2.3.4 --dport 80 -j KUBE-EXT-` + h,
		`nat -A KUBE-EXT-` + h + ` ` + c + `"masquerade LOCAL traffic for ns2/svc2:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ`,
		`nat -A KUBE-EXT-` + h + ` ` + c + `"pod traffic for ns2/svc2:p80 external destinations" -s 10.0.0.0/8 -j KUBE-SVC-` + h,
		`nat -A KUBE-EXT-` + h + ` ` + c + `"route LOCAL traffic for ns2/svc2:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-` + h,
		`nat -A KUBE-SEP-RS4RBKLTHTF2IUXJ ` + c + `ns2/svc2:p80 -m tcp -p tcp -j DNAT --to-destination 10.180.0.2:80`,
		`nat -A KUBE-SEP-RS4RBKLTHTF2IUXJ ` + c + `ns2/svc2:p80 -s 10.180.0.2 -j KUBE-MARK-MASQ`,
		`nat -A KUBE-SVC-` + h + ` ` + c + `"ns2/svc2:p80 -> 10.180.0.2:80" -j KUBE-SEP-RS4RBKLTHTF2IUXJ`,
		`nat -A KUBE-SVC-` + h + ` ` + c + `"ns2/svc2:p80 cluster IP" -m tcp -p tcp -d 172.30.0.42 --dport 80 ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ`,
	}
	if diff := cmp.Diff(want, plan.lines()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

// TestPlanRules holds one characteristic rule, or its absence, of each case.
func TestPlanRules(t *testing.T) {
	two := endpoints("10.180.0.1:80", "10.180.2.1:80")
	one := two[:1]
	for _, c := range []struct {
		name     string
		settings func(*v1alpha1.ProxySettings)
		edit     func(*dataplane.Service)
		port     dataplane.Port
		has      []string
		lacks    []string
	}{
		{
			name: "no endpoint is a reject everywhere",
			edit: func(s *dataplane.Service) {
				s.LoadBalancerIPs, s.SourceRanges = addrs("1.2.3.4"), []netip.Prefix{netip.MustParsePrefix("203.0.113.0/25")}
			},
			port: dataplane.Port{NodePort: 3001},
			has: []string{
				`filter -A KUBE-SERVICES .* has no endpoints" .* -d 172.30.0.41 --dport 80 -j REJECT`,
				`filter -A KUBE-EXTERNAL-SERVICES .* -d 1.2.3.4 --dport 80 -j REJECT`,
				`filter -A KUBE-EXTERNAL-SERVICES .* --dst-type LOCAL .* --dport 3001 -j REJECT`,
			},
			lacks: []string{"nat ", "KUBE-PROXY-FIREWALL"},
		},
		{
			name:  "internal policy Local without local endpoint is a drop",
			edit:  func(s *dataplane.Service) { s.InternalLocal = true },
			port:  dataplane.Port{Available: true},
			has:   []string{`filter -A KUBE-SERVICES .* has no local endpoints" .* -d 172.30.0.41 .* -j DROP`},
			lacks: []string{"nat "},
		},
		{
			name:  "internal policy Local masquerades in the local chain",
			edit:  func(s *dataplane.Service) { s.InternalLocal = true },
			port:  dataplane.Port{Available: true, NodePort: 3003, Cluster: two, Local: one},
			has:   []string{`nat -A KUBE-SVL-\w+ .* cluster IP" .* ! -s 10.0.0.0/8 -j KUBE-MARK-MASQ`, `nat -A KUBE-EXT-\w+ -j KUBE-SVC-`},
			lacks: []string{`nat -A KUBE-SVC-\w+ .* cluster IP"`},
		},
		{
			name: "policy Cluster masquerades all external traffic",
			port: dataplane.Port{Available: true, NodePort: 3001, Cluster: two},
			has:  []string{`nat -A KUBE-EXT-\w+ .* "masquerade traffic for ns/svc:p80 external destinations" -j KUBE-MARK-MASQ`},
		},
		{
			name: "one of two endpoints is taken half of the time",
			port: dataplane.Port{Available: true, Cluster: two},
			has: []string{
				`nat -A KUBE-SVC-\w+ .* -> 10.180.0.1:80" -m statistic --mode random --probability 0.5000000000 -j KUBE-SEP-`,
				`nat -A KUBE-SVC-\w+ .* -> 10.180.2.1:80" -j KUBE-SEP-`,
			},
		},
		{
			name: "session affinity looks up and records the client",
			edit: func(s *dataplane.Service) { s.AffinitySeconds = 600 },
			port: dataplane.Port{Available: true, Cluster: one},
			has: []string{
				`nat -A KUBE-SVC-\w+ .* -m recent --name KUBE-SEP-\w+ --rcheck --seconds 600 --reap -j KUBE-SEP-`,
				`nat -A KUBE-SEP-\w+ .* -m recent --name KUBE-SEP-\w+ --set -m tcp -p tcp -j DNAT --to-destination 10.180.0.1:80`,
			},
		},
		{
			name:     "masquerade all",
			settings: func(s *v1alpha1.ProxySettings) { *s.Masquerade.All = v1alpha1.Enabled },
			port:     dataplane.Port{Available: true, Cluster: one},
			has:      []string{`nat -A KUBE-SVC-\w+ .* -d 172.30.0.41 --dport 80 -j KUBE-MARK-MASQ`},
		},
		{
			name:     "without a way to recognize pods, cluster IP traffic is not masqueraded",
			settings: func(s *v1alpha1.ProxySettings) { s.DetectLocal.Mode = v1alpha1.DetectLocalNone },
			port:     dataplane.Port{Available: true, Cluster: one},
			lacks:    []string{`cluster IP" .* -j KUBE-MARK-MASQ`},
		},
		{
			name: "interfaces identify pods",
			settings: func(s *v1alpha1.ProxySettings) {
				prefix := "veth"
				s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalInterfaceNamePrefix, InterfaceNamePrefix: &prefix}
			},
			port: dataplane.Port{Available: true, Cluster: one},
			has:  []string{`cluster IP" .* ! -i veth\+ -j KUBE-MARK-MASQ`},
		},
		{
			name: "an address that an older Service claims is left to it",
			edit: func(s *dataplane.Service) {
				s.ExternalIPs, s.LoadBalancerIPs = addrs("192.168.99.11", "192.168.99.12"), addrs("1.2.3.4")
			},
			port:  dataplane.Port{Available: true, Cluster: one, Lost: addrs("1.2.3.4", "192.168.99.11")},
			has:   []string{`nat -A KUBE-SERVICES .* -d 172.30.0.41 `, `nat -A KUBE-SERVICES .* -d 192.168.99.12 `},
			lacks: []string{"-d 192.168.99.11 ", "-d 1.2.3.4 "},
		},
		{
			name: "source ranges that hold the node let load-balancer IPs in as source",
			edit: func(s *dataplane.Service) {
				s.LoadBalancerIPs = addrs("1.2.3.4")
				s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}
			},
			port: dataplane.Port{Available: true, Cluster: one},
			has: []string{
				`nat -A KUBE-SERVICES .* -d 1.2.3.4 --dport 80 -j KUBE-FW-`,
				`nat -A KUBE-FW-\w+ .* -s 192.168.0.0/24 -j KUBE-EXT-`,
				`nat -A KUBE-FW-\w+ .* -s 1.2.3.4 -j KUBE-EXT-`,
				`filter -A KUBE-PROXY-FIREWALL .* -d 1.2.3.4 --dport 80 -j DROP`,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := testService("ns/svc", "172.30.0.41", c.port)
			if c.edit != nil {
				c.edit(svc)
			}
			settings := func(*v1alpha1.ProxySettings) {}
			if c.settings != nil {
				settings = c.settings
			}
			plan := testConfig(t, settings).planService(svc)
			lines := plan.lines()
			for _, pattern := range c.has {
				if !anyMatch(pattern, lines) {
					t.Errorf("no line matches %s in\n%s", pattern, strings.Join(lines, "\n"))
				}
			}
			for _, pattern := range c.lacks {
				if anyMatch(pattern, lines) {
					t.Errorf("a line matches %s in\n%s", pattern, strings.Join(lines, "\n"))
				}
			}
		})
	}
}

// TestPlanOneAddressAsSeveral has an external IP that is the load balancer's as
// well: source ranges must not depend on which rule was written first.
func TestPlanOneAddressAsSeveral(t *testing.T) {
	svc := testService("ns5/svc5", "172.30.0.41", dataplane.Port{Available: true, Cluster: endpoints("10.180.0.3:80")})
	svc.ExternalIPs, svc.LoadBalancerIPs = addrs("1.2.3.4"), addrs("1.2.3.4", "1.2.3.5")
	svc.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/25")}
	plan := testConfig(t).planService(svc)
	const h = "NUKIZ6OKUXPJNT4C"
	var got []string
	for _, r := range plan.dispatch {
		words := strings.Fields(r.spec)
		dst := words[slices.Index(words, "-d")+1]
		got = append(got, r.in.name+" "+dst+" "+words[len(words)-1])
	}
	want := []string{
		"KUBE-SERVICES 172.30.0.41 KUBE-SVC-" + h,
		"KUBE-SERVICES 1.2.3.4 KUBE-EXT-" + h,
		"KUBE-PROXY-FIREWALL 1.2.3.4 DROP",
		"KUBE-SERVICES 1.2.3.5 KUBE-FW-" + h,
		"KUBE-PROXY-FIREWALL 1.2.3.5 DROP",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPlanCounts guards the number of rules, which every new connection may
// have to pass.
func TestPlanCounts(t *testing.T) {
	c := testConfig(t)
	count := func(services, n int) int {
		w := &desired{config: c, services: map[dataplane.ServiceName]*planned{}}
		for i := range services {
			var list []netip.AddrPort
			for j := range n {
				list = append(list, netip.MustParseAddrPort(fmt.Sprintf("10.%d.%d.%d:80", i/250, i%250, j+1)))
			}
			svc := testService(fmt.Sprintf("ns/svc%d", i), fmt.Sprintf("172.30.%d.%d", i/250, i%250),
				dataplane.Port{Cluster: list, Available: n > 0})
			plan := c.planService(svc)
			w.services[svc.Name] = plan.planned()
		}
		rules := w.tally().rules
		return rules
	}
	empty := 4 + 5 + len(c.jumps())
	for _, v := range []struct{ services, endpoints, want int }{
		{0, 0, empty},
		{1, 0, empty + 1},
		{1, 3, empty + 2 + 3*3},
		{10, 10, empty + 10*(2+3*10)},
		{1000, 2, empty + 1000*(2+3*2)},
	} {
		if got := count(v.services, v.endpoints); got != v.want {
			t.Errorf("%d Services x %d endpoints: %d rules, want %d", v.services, v.endpoints, got, v.want)
		}
	}
}
