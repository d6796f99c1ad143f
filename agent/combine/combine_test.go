package combine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	ready       = v1alpha1.EndpointReady
	terminating = v1alpha1.EndpointTerminating
)

// group of endpoints; hints are zones, or nodes when they begin with "node".
func groupOf(state v1alpha1.EndpointState, hints string, addresses ...string) v1alpha1.EndpointGroup {
	g := v1alpha1.EndpointGroup{State: state}
	for h := range strings.FieldsSeq(hints) {
		if strings.HasPrefix(h, "node") {
			g.Nodes = append(g.Nodes, h)
		} else {
			g.Zones = append(g.Zones, h)
		}
	}
	for _, a := range addresses {
		g.Addresses = append(g.Addresses, full(a))
	}
	return g
}

// full completes ".3" to 10.0.1.3:80.
func full(a string) string {
	if strings.HasPrefix(a, ".") {
		return "10.0.1" + a + ":80"
	}
	return a
}

// short renders a list as ".3 .4".
func short(list []netip.AddrPort) string {
	var out []string
	for _, e := range list {
		s := e.String()
		if rest, ok := strings.CutPrefix(s, "10.0.1"); ok {
			s = strings.TrimSuffix(rest, ":80")
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func rulesOf(external, internal v1alpha1.TrafficPolicy, nodePort int32, groups ...v1alpha1.EndpointGroup) *v1alpha1.ServiceProxyRulesSpec {
	return &v1alpha1.ServiceProxyRulesSpec{
		FormatVersion: 1, ClusterIPs: []string{"172.30.0.42"},
		ExternalTrafficPolicy: external, InternalTrafficPolicy: internal,
		Ports: []v1alpha1.ServicePort{{Name: "p", Protocol: v1alpha1.ProtocolTCP, Port: 80, NodePort: nodePort, Endpoints: groups}},
	}
}

func localEndpointsOf(addresses string) []v1alpha1.PortLocalEndpoints {
	m := v1alpha1.PortLocalEndpoints{Name: "p", Protocol: v1alpha1.ProtocolTCP}
	for a := range strings.FieldsSeq(addresses) {
		m.Endpoints = append(m.Endpoints, full(a))
	}
	return []v1alpha1.PortLocalEndpoints{m}
}

// inFormat2 returns the same rules as the controller writes them now: with endpoints beside the ports,
// and without defaults.
func inFormat2(rules *v1alpha1.ServiceProxyRulesSpec) *v1alpha1.ServiceProxyRulesSpec {
	out := rules.DeepCopy()
	out.FormatVersion = 2
	for i := range out.Ports {
		for _, g := range out.Ports[i].Endpoints {
			for _, a := range g.Addresses {
				at := netip.MustParseAddrPort(a)
				group := v1alpha1.EndpointGroup{
					TargetPorts: map[string]int32{out.Ports[i].Name: int32(at.Port())}, State: g.State, Zones: g.Zones, Nodes: g.Nodes,
					Addresses: []string{at.Addr().String()},
				}
				if group.State == ready {
					group.State = ""
				}
				out.Endpoints = append(out.Endpoints, group)
			}
		}
		out.Ports[i].Endpoints = nil
	}
	for _, policy := range []*v1alpha1.TrafficPolicy{&out.ExternalTrafficPolicy, &out.InternalTrafficPolicy} {
		if *policy == v1alpha1.TrafficPolicyCluster {
			*policy = ""
		}
	}
	return out
}

func TestEndpointSelection(t *testing.T) {
	const cluster, local = v1alpha1.TrafficPolicyCluster, v1alpha1.TrafficPolicyLocal
	type groups = []v1alpha1.EndpointGroup
	tests := []struct {
		name               string // with the row of the reference's scenarios
		external, internal v1alpha1.TrafficPolicy
		nodePort           int32
		node               Node
		groups             groups
		localEndpoints     string
		wantCluster        string
		wantLocal          string
		wantUnavailable    bool
	}{
		{name: "25 cluster policies have no local list", external: cluster, internal: cluster, nodePort: 3001,
			groups: groups{groupOf(ready, "", ".1", ".2")}, localEndpoints: ".2", wantCluster: ".1 .2"},
		{name: "30-33 external local, both lists", external: local, internal: cluster, nodePort: 3002,
			groups: groups{groupOf(ready, "", ".1", ".2")}, localEndpoints: ".2", wantCluster: ".1 .2", wantLocal: ".2"},
		{name: "39-41 external local, remote endpoint only", external: local, internal: cluster, nodePort: 3002,
			groups: groups{groupOf(ready, "", ".1")}, wantCluster: ".1"},
		{name: "external local means nothing without external address", external: local, internal: cluster,
			groups: groups{groupOf(ready, "", ".1", ".2")}, localEndpoints: ".2", wantCluster: ".1 .2"},
		{name: "46 internal local with node port: both lists", external: cluster, internal: local, nodePort: 3003,
			groups: groups{groupOf(ready, "", ".1", ".2")}, localEndpoints: ".2", wantCluster: ".1 .2", wantLocal: ".2"},
		{name: "50 internal local, cluster IP only: no cluster list", external: cluster, internal: local,
			groups: groups{groupOf(ready, "", ".1", ".2", ".3")}, localEndpoints: ".1 .2", wantLocal: ".1 .2"},
		{name: "51 internal local, remote only: available, none local", external: cluster, internal: local,
			groups: groups{groupOf(ready, "", ".1")}},
		{name: "52 no endpoints at all", external: cluster, internal: local, localEndpoints: ".1", wantUnavailable: true},
		{name: "54 both local, remote only", external: local, internal: local, nodePort: 3003,
			groups: groups{groupOf(ready, "", ".1")}, wantCluster: ".1"},
		{name: "55 local terminating, remote ready", external: cluster, internal: local,
			groups: groups{groupOf(ready, "", ".5"), groupOf(terminating, "", ".2")}, localEndpoints: ".2", wantLocal: ".2"},
		{name: "56 local unusable, remote terminating", external: cluster, internal: local,
			groups: groups{groupOf(terminating, "", ".5")}, localEndpoints: ".2"},
		{name: "58-59 mixed states", external: local, internal: cluster, nodePort: 3001,
			groups: groups{groupOf(ready, "", ".1", ".2", ".5"), groupOf(terminating, "", ".3")}, localEndpoints: ".1 .2 .3 .4",
			wantCluster: ".1 .2 .5", wantLocal: ".1 .2"},
		{name: "60-61 local all terminating", external: local, internal: cluster, nodePort: 3001,
			groups: groups{groupOf(ready, "", ".5"), groupOf(terminating, "", ".2", ".3")}, localEndpoints: ".2 .3 .4",
			wantCluster: ".5", wantLocal: ".2 .3"},
		{name: "62-63 remote terminating only", external: local, internal: cluster, nodePort: 3001,
			groups: groups{groupOf(terminating, "", ".5")}, wantCluster: ".5"},
		{name: "64 unusable endpoints only", external: local, internal: cluster, nodePort: 3001, localEndpoints: ".1", wantUnavailable: true},
		{name: "65 terminating is not used beside ready", external: cluster, internal: cluster, nodePort: 3001,
			groups: groups{groupOf(ready, "", ".1", ".2", ".5"), groupOf(terminating, "", ".3")}, localEndpoints: ".1 .2", wantCluster: ".1 .2 .5"},
		{name: "66 all terminating", external: cluster, internal: cluster, nodePort: 3001,
			groups: groups{groupOf(terminating, "", ".2", ".3", ".5")}, localEndpoints: ".2 .3", wantCluster: ".2 .3 .5"},

		{name: "90 zone hints", node: Node{Zone: "a"},
			groups: groups{groupOf(ready, "a", ".3", ".6"), groupOf(ready, "b", ".4"), groupOf(ready, "c", ".5")}, wantCluster: ".3 .6"},
		{name: "91 hints never filter local, external", external: local, nodePort: 3001, node: Node{Zone: "a"},
			groups:         groups{groupOf(ready, "a", ".3", ".6"), groupOf(ready, "b", ".4"), groupOf(ready, "c", ".5")},
			localEndpoints: ".3 .4", wantCluster: ".3 .6", wantLocal: ".3 .4"},
		{name: "92 hints never filter local, internal", internal: local, nodePort: 3001, node: Node{Zone: "a"},
			groups:         groups{groupOf(ready, "a", ".3", ".6"), groupOf(ready, "b", ".4"), groupOf(ready, "c", ".5")},
			localEndpoints: ".3 .4", wantCluster: ".3 .6", wantLocal: ".3 .4"},
		{name: "93 node without zone", groups: groups{groupOf(ready, "a", ".3")}, wantCluster: ".3"},
		{name: "93 node without zone, an empty hint", groups: groups{{State: ready, Zones: []string{""}, Addresses: []string{full(".3")}}, groupOf(ready, "a", ".4")}, wantCluster: ".3 .4"},
		{name: "94 no endpoint for the zone", node: Node{Zone: "b"}, groups: groups{groupOf(ready, "a", ".3")}, wantCluster: ".3"},
		{name: "97 one without hint", node: Node{Zone: "a"},
			groups: groups{groupOf(ready, "", ".5"), groupOf(ready, "a", ".3", ".6"), groupOf(ready, "b", ".4")}, wantCluster: ".3 .4 .5 .6"},
		{name: "98 several zones", node: Node{Zone: "c"},
			groups:      groups{groupOf(ready, "a b c", ".3"), groupOf(ready, "b c", ".4"), groupOf(ready, "b d", ".5"), groupOf(ready, "c", ".6")},
			wantCluster: ".3 .4 .6"},
		{name: "99 node hints come first", node: Node{Name: "node-1", Zone: "a"},
			groups:      groups{groupOf(ready, "node-1 a", ".3"), groupOf(ready, "node-2 b", ".4"), groupOf(ready, "node-3 c", ".5"), groupOf(ready, "node-4 a", ".6")},
			wantCluster: ".3"},
		{name: "100 one has neither hint", node: Node{Name: "node-1", Zone: "a"},
			groups:      groups{groupOf(ready, "node-1 a", ".3"), groupOf(ready, "", ".4"), groupOf(ready, "node-3 c", ".5")},
			wantCluster: ".3 .4 .5"},
		{name: "101 no hint for the node: by zone", node: Node{Name: "node-0", Zone: "a"},
			groups:      groups{groupOf(ready, "node-1 a", ".3"), groupOf(ready, "node-2 b", ".4"), groupOf(ready, "node-4 a", ".6")},
			wantCluster: ".3 .6"},
		{name: "102 local hinted elsewhere", external: local, nodePort: 3001, node: Node{Zone: "a"},
			groups:         groups{groupOf(ready, "a", ".11"), groupOf(ready, "b", ".12", ".2")},
			localEndpoints: ".2", wantCluster: ".11", wantLocal: ".2"},
		{name: "103 only a terminating one in the zone", node: Node{Zone: "a"},
			groups: groups{groupOf(ready, "b", ".5"), groupOf(terminating, "a", ".2")}, wantCluster: ".5"},
		{name: "terminating ones ignore hints", node: Node{Zone: "a"},
			groups: groups{groupOf(terminating, "a", ".2"), groupOf(terminating, "b", ".5")}, wantCluster: ".2 .5"},
		{name: "a local endpoint without state is ignored", external: local, nodePort: 3001,
			groups: groups{groupOf(ready, "", ".1")}, localEndpoints: ".1 .9", wantCluster: ".1", wantLocal: ".1"},
		{name: "sorted as strings over groups, each once",
			groups: groups{groupOf(ready, "", ".9", ".1"), groupOf(ready, "a", ".10", ".1")}, wantCluster: ".10 .1 .9"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := Input{
				Name:           dataplane.ServiceName{Namespace: "ns", Name: "svc"},
				Rules:          rulesOf(tt.external, tt.internal, tt.nodePort, tt.groups...),
				LocalEndpoints: localEndpointsOf(tt.localEndpoints), Node: tt.node, Family: dataplane.IPv4,
			}
			svc, problems := Service(in)
			if len(problems) > 0 {
				t.Errorf("unexpected problems: %v", problems)
			}
			in.Rules = inFormat2(in.Rules)
			if other, problems := Service(in); len(problems) > 0 || !Equal(svc, other) {
				t.Errorf("in format 2: problems %v, %s", problems, cmp.Diff(fmt.Sprint(svc), fmt.Sprint(other)))
			}
			p := svc.Ports[0]
			if got := short(p.Cluster); got != tt.wantCluster {
				t.Errorf("cluster list: got %q, want %q", got, tt.wantCluster)
			}
			if got := short(p.Local); got != tt.wantLocal {
				t.Errorf("local list: got %q, want %q", got, tt.wantLocal)
			}
			if p.Available == tt.wantUnavailable {
				t.Errorf("available: got %v", p.Available)
			}
			if got := short(p.LocalEndpoints); got != tt.localEndpoints {
				t.Errorf("localEndpoints: got %q, want %q", got, tt.localEndpoints)
			}
		})
	}
}

func dualStack() *v1alpha1.ServiceProxyRulesSpec {
	return &v1alpha1.ServiceProxyRulesSpec{
		FormatVersion: 1,
		ClusterIPs:    []string{"10.96.12.7", "fd00:10:96::c7"},
		ExternalIPs:   []string{"192.0.2.9", "192.0.2.10", "2001:db8::9"}, LoadBalancerIPs: []string{"203.0.113.9"},
		LoadBalancerSourceRanges: []string{"198.51.100.7/24", "2001:db8::/32"},
		ExternalTrafficPolicy:    "Local", SessionAffinity: &v1alpha1.SessionAffinity{ClientIPTimeoutSeconds: 600},
		HealthCheckNodePort: 31234, IPVSScheduler: "sh",
		Ports: []v1alpha1.ServicePort{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080,
			Endpoints: []v1alpha1.EndpointGroup{{State: ready, Addresses: []string{"10.244.1.5:8080", "[fd00::5]:8080"}}}}},
	}
}

func TestFamilies(t *testing.T) {
	name := dataplane.ServiceName{Namespace: "shop", Name: "cart"}
	localEndpoints := []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: []string{"10.244.1.5:8080", "[fd00::5]:8080"}}}
	want := map[dataplane.Family]*dataplane.Service{
		dataplane.IPv4: {Name: name, ClusterIP: netip.MustParseAddr("10.96.12.7"),
			ExternalIPs:     []netip.Addr{netip.MustParseAddr("192.0.2.9"), netip.MustParseAddr("192.0.2.10")},
			LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.9")},
			SourceRanges:    []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
			ExternalLocal:   true, AffinitySeconds: 600, HealthCheckNodePort: 31234, LocalReady: 1, IPVSScheduler: "sh",
			Ports: []dataplane.Port{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080, Available: true,
				Cluster:        []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080")},
				Local:          []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080")},
				LocalEndpoints: []netip.AddrPort{netip.MustParseAddrPort("10.244.1.5:8080")}}}},
		dataplane.IPv6: {Name: name, ClusterIP: netip.MustParseAddr("fd00:10:96::c7"),
			ExternalIPs:   []netip.Addr{netip.MustParseAddr("2001:db8::9")},
			SourceRanges:  []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")},
			ExternalLocal: true, AffinitySeconds: 600, HealthCheckNodePort: 31234, LocalReady: 1, IPVSScheduler: "sh",
			Ports: []dataplane.Port{{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080, Available: true,
				Cluster:        []netip.AddrPort{netip.MustParseAddrPort("[fd00::5]:8080")},
				Local:          []netip.AddrPort{netip.MustParseAddrPort("[fd00::5]:8080")},
				LocalEndpoints: []netip.AddrPort{netip.MustParseAddrPort("[fd00::5]:8080")}}}},
	}
	equate := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	equatePrefix := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	equatePort := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	for family, want := range want {
		got, problems := Service(Input{Name: name, Rules: dualStack(), LocalEndpoints: localEndpoints, Family: family})
		if diff := cmp.Diff(want, got, equate, equatePrefix, equatePort); diff != "" {
			t.Errorf("%s (-want +got):\n%s", family, diff)
		}
		if len(problems) > 0 {
			t.Errorf("%s: %v", family, problems)
		}
		if !Equal(want, got) {
			t.Errorf("%s: Equal does not agree", family)
		}
	}
	only4 := dualStack()
	only4.ClusterIPs = only4.ClusterIPs[:1]
	if svc, _ := Service(Input{Rules: only4, Family: dataplane.IPv6}); svc != nil {
		t.Errorf("a Service without IPv6 cluster IP gives %v", svc)
	}
}

func TestSourceRanges(t *testing.T) {
	tests := []struct {
		name   string
		ranges []string
		want   string
	}{
		{"canonical, in order, each once", []string{"9.0.0.0/8", "10.1.2.3/16", "10.1.0.0/16"}, "[9.0.0.0/8 10.1.0.0/16]"},
		{"other family only: unrestricted", []string{"2001:db8::/32"}, "[]"},
		{"unparsable only: unrestricted", []string{"nonsense"}, "[]"},
		{"everything: unrestricted", []string{"10.1.0.0/16", "0.0.0.0/0"}, "[]"},
		{"everything of the other family does not count", []string{"10.1.0.0/16", "::/0"}, "[10.1.0.0/16]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rules := rulesOf("", "", 0)
			rules.LoadBalancerSourceRanges = tt.ranges
			svc, _ := Service(Input{Rules: rules, Family: dataplane.IPv4})
			if got := fmt.Sprint(svc.SourceRanges); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestBadEntriesAreSkippedAndReported(t *testing.T) {
	good := func() *v1alpha1.ServiceProxyRulesSpec { return rulesOf("", "", 0, groupOf(ready, "", ".1")) }
	tests := []struct {
		name    string
		edit    func(*v1alpha1.ServiceProxyRulesSpec)
		problem string
		ports   int
		cluster string
	}{
		{"second cluster IP", func(s *v1alpha1.ServiceProxyRulesSpec) { s.ClusterIPs = append(s.ClusterIPs, "172.30.0.99") }, "only 172.30.0.42 is used", 1, ".1"},
		{"external IP", func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"host.example"} }, `spec.externalIPs[0]: "host.example"`, 1, ".1"},
		{"mapped address", func(s *v1alpha1.ServiceProxyRulesSpec) { s.LoadBalancerIPs = []string{"::ffff:1.2.3.4"} }, "spec.loadBalancerIPs[0]", 1, ".1"},
		{"unspecified address", func(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalIPs = []string{"0.0.0.0"} }, "spec.externalIPs[0]", 1, ".1"},
		{"policy", func(s *v1alpha1.ServiceProxyRulesSpec) { s.InternalTrafficPolicy = "Nowhere" }, "spec.internalTrafficPolicy", 1, ".1"},
		{"affinity", func(s *v1alpha1.ServiceProxyRulesSpec) { s.SessionAffinity = &v1alpha1.SessionAffinity{} }, "spec.sessionAffinity", 1, ".1"},
		{"health check port", func(s *v1alpha1.ServiceProxyRulesSpec) { s.HealthCheckNodePort = 70000 }, "spec.healthCheckNodePort", 1, ".1"},
		{"scheduler", func(s *v1alpha1.ServiceProxyRulesSpec) { s.IPVSScheduler = "rr; reboot" }, "spec.ipvsScheduler", 1, ".1"},
		{"port number", func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Port = 0 }, "spec.ports[0]: port 0", 0, ""},
		{"node port number", func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].NodePort = -1 }, "spec.ports[0]: nodePort -1", 0, ""},
		{"protocol", func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Protocol = "ICMP" }, `protocol "ICMP"`, 0, ""},
		{"port name that would break a rule's comment", func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports[0].Name = "x\" -j ACCEPT\n-F" }, "is not a DNS label", 0, ""},
		{"same name twice", func(s *v1alpha1.ServiceProxyRulesSpec) { s.Ports = append(s.Ports, s.Ports[0]) }, "spec.ports[1]: spec.ports[0] has the same name", 1, ".1"},
		{"same number twice", func(s *v1alpha1.ServiceProxyRulesSpec) {
			s.Ports = append(s.Ports, s.Ports[0])
			s.Ports[1].Name = "q"
		}, "spec.ports[1]: spec.ports[0] has the same port", 1, ".1"},
		{"endpoint", func(s *v1alpha1.ServiceProxyRulesSpec) {
			s.Ports[0].Endpoints[0].Addresses = []string{"10.0.1.9", "10.0.1.1:80", "10.0.1.2:0", "[10.0.1.2]:80"}
		}, `endpoint "10.0.1.9"`, 1, ".1"},
		{"endpoint state", func(s *v1alpha1.ServiceProxyRulesSpec) {
			s.Ports[0].Endpoints = append(s.Ports[0].Endpoints, groupOf("Sleepy", "", ".2"))
		}, `endpoint state "Sleepy"`, 1, ".1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rules := good()
			tt.edit(rules)
			svc, problems := Service(Input{Rules: rules, Family: dataplane.IPv4})
			if !strings.Contains(strings.Join(problems, "\n"), tt.problem) {
				t.Errorf("problems %q lack %q", problems, tt.problem)
			}
			if len(svc.Ports) != tt.ports {
				t.Fatalf("got %d ports, want %d", len(svc.Ports), tt.ports)
			}
			if tt.ports > 0 && short(svc.Ports[0].Cluster) != tt.cluster {
				t.Errorf("cluster list: got %q, want %q", short(svc.Ports[0].Cluster), tt.cluster)
			}
		})
	}
}

func TestLostClaims(t *testing.T) {
	rules := dualStack()
	rules.Ports = append(rules.Ports, v1alpha1.ServicePort{Name: "https", Protocol: "TCP", Port: 443, NodePort: 30443})
	lost := map[Claim]bool{
		{netip.MustParseAddr("203.0.113.9"), 80, "TCP"}: true,
		{netip.IPv4Unspecified(), 30443, "TCP"}:         true,
	}
	svc, _ := Service(Input{Rules: rules, Family: dataplane.IPv4, Lost: func(c Claim) bool { return lost[c] }})
	if p := &svc.Ports[0]; p.Serves(netip.MustParseAddr("203.0.113.9")) || !p.Serves(svc.ClusterIP) || p.NodePort != 30080 {
		t.Errorf("http lost %v, node port %d", p.Lost, p.NodePort)
	}
	if p := &svc.Ports[1]; !p.Serves(netip.MustParseAddr("203.0.113.9")) || p.NodePort != 0 {
		t.Errorf("https lost %v, node port %d", p.Lost, p.NodePort)
	}
}

func TestClaims(t *testing.T) {
	rules := dualStack()
	rules.LoadBalancerIPs = []string{"203.0.113.9", "192.0.2.9"} // also an external IP
	var got []string
	for _, c := range Claims(rules) {
		got = append(got, fmt.Sprintf("%s %d %s", c.Address, c.Port, c.Protocol))
	}
	want := []string{
		"10.96.12.7 80 TCP", "192.0.2.9 80 TCP", "192.0.2.10 80 TCP", "203.0.113.9 80 TCP", "0.0.0.0 30080 TCP", "0.0.0.0 31234 TCP",
		"fd00:10:96::c7 80 TCP", "2001:db8::9 80 TCP", ":: 30080 TCP", ":: 31234 TCP",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
}

// TestOrderOfInputDoesNotMatter permutes what a hand edit may permute.
func TestOrderOfInputDoesNotMatter(t *testing.T) {
	rules := rulesOf("Local", "", 3001, groupOf(ready, "a", ".1", ".2", ".10"), groupOf(ready, "b", ".3"), groupOf(terminating, "", ".4", ".5"))
	in := Input{Rules: rules, LocalEndpoints: localEndpointsOf(".1 .10 .4"), Node: Node{Zone: "a"}, Family: dataplane.IPv4}
	want, _ := Service(in)
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		groups := rules.Ports[0].Endpoints
		random.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
		for _, g := range groups {
			random.Shuffle(len(g.Addresses), func(i, j int) { g.Addresses[i], g.Addresses[j] = g.Addresses[j], g.Addresses[i] })
		}
		if got, _ := Service(in); !Equal(want, got) {
			t.Fatalf("order changed the result:\n%s", cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)))
		}
	}
}

// FuzzService feeds what a hand edit might leave. Nothing may panic, what comes out
// must be usable as it is and stand in the input, and the order of endpoints there
// must not matter.
func FuzzService(f *testing.F) {
	for _, rules := range []*v1alpha1.ServiceProxyRulesSpec{dualStack(), inFormat2(dualStack()), rulesOf("Local", "Local", 3001, groupOf(ready, "a node-1", ".1"), groupOf(terminating, "", ".2"))} {
		text, err := json.Marshal(rules)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "10.244.1.5:8080")
	}
	f.Fuzz(func(t *testing.T, text []byte, endpoint string) {
		rules := &v1alpha1.ServiceProxyRulesSpec{}
		if json.Unmarshal(text, rules) != nil {
			return
		}
		localEndpoints := []v1alpha1.PortLocalEndpoints{{Name: "http", Protocol: "TCP", Endpoints: []string{endpoint}}}
		given := endpointsIn(rules, endpoint)
		reversed := rules.DeepCopy()
		slices.Reverse(reversed.Endpoints)
		for _, g := range reversed.Endpoints {
			slices.Reverse(g.Addresses)
		}
		for i := range reversed.Ports {
			slices.Reverse(reversed.Ports[i].Endpoints)
			for _, g := range reversed.Ports[i].Endpoints {
				slices.Reverse(g.Addresses)
			}
		}
		claims := Claims(rules)
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			in := Input{Rules: rules, LocalEndpoints: localEndpoints, Node: Node{Name: "node-1", Zone: "a"}, Family: family}
			svc, problems := Service(in)
			if len(problems) > maxProblems {
				t.Errorf("%d problems are reported", len(problems))
			}
			in.Rules = reversed
			if other, _ := Service(in); (svc == nil) != (other == nil) || svc != nil && !Equal(svc, other) {
				t.Errorf("order changed the result: %+v, %+v", svc, other)
			}
			if svc == nil {
				continue
			}
			if !family.Of(svc.ClusterIP) {
				t.Errorf("cluster IP %s of another family than %s", svc.ClusterIP, family)
			}
			for _, p := range svc.Ports {
				if !slices.Contains(claims, Asked{Claim{Address: svc.ClusterIP, Port: p.Port, Protocol: p.Protocol}, Own}) {
					t.Errorf("%s port %d is served and not claimed", svc.ClusterIP, p.Port)
				}
				for _, e := range slices.Concat(p.Cluster, p.Local, p.LocalEndpoints) {
					if !family.Of(e.Addr()) || e.Port() == 0 || !given[e] {
						t.Errorf("endpoint %s in a Service of %s", e, family)
					}
				}
			}
		}
	})
}

// endpointsIn reads all endpoints that an input names.
func endpointsIn(rules *v1alpha1.ServiceProxyRulesSpec, endpoint string) map[netip.AddrPort]bool {
	texts := []string{endpoint}
	for _, port := range rules.EndpointsByPort() {
		for _, g := range port {
			texts = append(texts, slices.Collect(g.All())...)
		}
	}
	out := map[netip.AddrPort]bool{}
	for _, text := range texts {
		if e, err := netip.ParseAddrPort(text); err == nil {
			out[e] = true
		}
	}
	return out
}

// FuzzWhole combines objects as text. What of it is left out has a reason, the rest
// is named as its object is, and a claim has one holder, who is among the rest.
func FuzzWhole(f *testing.F) {
	spec, err := json.Marshal(dualStack())
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"formatVersion":1,"node":{"addresses":["192.168.0.2"],"podCIDRs":["10.244.1.0/24"]}}`), spec, "default.web", "default.copy")
	f.Fuzz(func(t *testing.T, node, service []byte, first, second string) {
		own := v1alpha1.NodeProxyRules{}
		rules := v1alpha1.ServiceProxyRules{}
		if json.Unmarshal(node, &own.Spec) != nil || json.Unmarshal(service, &rules.Spec) != nil || first == second {
			return
		}
		objects := []v1alpha1.ServiceProxyRules{rules, rules}
		objects[0].Name, objects[1].Name = first, second
		for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
			set, err := Whole(&own, objects, family)
			if err != nil {
				continue
			}
			for name := range set.Services {
				object := v1alpha1.ServiceProxyRulesName(name.Namespace, name.Name)
				if _, out := set.LeftOut[object]; out || object != first && object != second {
					t.Errorf("%s is combined, from no object or one that is left out", name)
				}
			}
			for _, c := range Claims(&rules.Spec) {
				holder, found := set.Holders.Of(c.Claim)
				if used := len(set.LeftOut) < len(objects); found != used {
					t.Errorf("%v: has a holder %t, objects in use %t", c, found, used)
				}
				object := v1alpha1.ServiceProxyRulesName(holder.Namespace, holder.Name)
				if _, out := set.LeftOut[object]; found && out {
					t.Errorf("%v belongs to %s, which is left out", c, holder)
				}
			}
		}
	})
}

func BenchmarkService(b *testing.B) {
	rules := rulesOf("", "", 0)
	var addresses []string
	for i := range 10 {
		addresses = append(addresses, fmt.Sprintf("10.244.%d.7:8080", i))
	}
	rules.Ports[0].Endpoints = []v1alpha1.EndpointGroup{{State: ready, Addresses: addresses}}
	b.ReportAllocs()
	for b.Loop() {
		Service(Input{Rules: rules, Family: dataplane.IPv4})
	}
}
