package tracer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/combine"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// node makes the NodeProxyRules of a node with pods in 10.244.1.0/24.
func node(edit ...func(*v1alpha1.NodeProxyRulesSpec)) *v1alpha1.NodeProxyRules {
	o := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	o.Spec = v1alpha1.NodeProxyRulesSpec{FormatVersion: v1alpha1.FormatVersion, Node: v1alpha1.NodeFacts{
		Addresses: []string{"192.0.2.21"}, PodCIDRs: []string{"10.244.1.0/24"},
	}}
	o.Spec.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNodeCIDR}
	for _, e := range edit {
		e(&o.Spec)
	}
	return o
}

func mode(m v1alpha1.ProxyMode) func(*v1alpha1.NodeProxyRulesSpec) {
	return func(s *v1alpha1.NodeProxyRulesSpec) { s.Settings.Mode = &m }
}

// object makes the ServiceProxyRules of shop/name.
func object(name string, edit func(*v1alpha1.ServiceProxyRulesSpec), endpoints ...string) v1alpha1.ServiceProxyRules {
	o := v1alpha1.ServiceProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "shop." + name}, Spec: v1alpha1.ServiceProxyRulesSpec{
		FormatVersion: v1alpha1.FormatVersion, ClusterIPs: []string{"10.96.0.10"},
		Ports: []v1alpha1.ServicePort{{
			Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80, NodePort: 30080,
			Endpoints: []v1alpha1.EndpointGroup{{State: v1alpha1.EndpointReady, Addresses: endpoints}},
		}},
	}}
	if edit != nil {
		edit(&o.Spec)
	}
	return o
}

func packet(from, to string) Packet {
	p := Packet{Protocol: v1alpha1.ProtocolTCP, Destination: netip.MustParseAddrPort(to)}
	if from != "" {
		p.Source = netip.MustParseAddr(from)
	}
	return p
}

func trace(t *testing.T, n *v1alpha1.NodeProxyRules, p Packet, services ...v1alpha1.ServiceProxyRules) *Result {
	t.Helper()
	set, err := combine.Whole(n, services, dataplane.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(set).Trace(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// text is what people see of a result.
func text(r *Result) string {
	var out []string
	for _, o := range r.Outcomes {
		line := strings.Join(o.Via(), " > ")
		if o.Masqueraded {
			line += " masqueraded"
		}
		if o.Message != "" {
			line += ": " + o.Message
		}
		out = append(out, fmt.Sprintf("%.2f %s", o.Share, line))
	}
	return withoutHashes(strings.Join(out, "\n"))
}

// withoutHashes takes the hash out of chains' names.
func withoutHashes(s string) string {
	words := strings.Fields(s)
	for i, w := range words {
		if parts := strings.SplitN(w, "-", 3); len(parts) == 3 && len(parts[2]) == 16 {
			words[i] = parts[0] + "-" + parts[1]
		}
	}
	return strings.Join(words, " ")
}

func local(s *v1alpha1.ServiceProxyRulesSpec) { s.ExternalTrafficPolicy = v1alpha1.TrafficPolicyLocal }

// TestTrace: the output for the paths that a packet may take.
func TestTrace(t *testing.T) {
	ownEndpoint := func(s *v1alpha1.NodeProxyRulesSpec) {
		s.LocalEndpoints = []v1alpha1.ServiceLocalEndpoints{{Namespace: "shop", Name: "web", Ports: []v1alpha1.PortLocalEndpoints{{
			Name: "http", Protocol: v1alpha1.ProtocolTCP, Endpoints: []string{"10.244.1.5:8080"},
		}}}}
	}
	bridge := func(s *v1alpha1.NodeProxyRulesSpec) {
		name := "cni0"
		s.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalBridgeInterface, Interface: &name}
	}
	balanced := func(ranges ...string) func(*v1alpha1.ServiceProxyRulesSpec) {
		return func(s *v1alpha1.ServiceProxyRulesSpec) {
			s.LoadBalancerIPs, s.LoadBalancerSourceRanges = []string{"198.51.100.1"}, ranges
		}
	}
	inIPVS, inNFTables := mode(v1alpha1.ModeIPVS), mode(v1alpha1.ModeNFTables)
	for _, c := range []struct {
		name, from, to string
		node           *v1alpha1.NodeProxyRules
		service        v1alpha1.ServiceProxyRules
		want           string
	}{
		{
			"a client outside, by node port", "203.0.113.9", "192.0.2.21:30080", node(), object("web", nil, "10.244.1.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-NODEPORTS > KUBE-EXT > KUBE-MARK-MASQ > KUBE-SVC > KUBE-SEP > 10.244.1.5:8080 masqueraded",
		},
		{
			"a pod of the node, by cluster IP", "10.244.1.9", "10.96.0.10:80", node(), object("web", nil, "10.244.1.5:8080", "10.244.2.5:8080"),
			"0.50 KUBE-SERVICES > KUBE-SVC > KUBE-SEP > 10.244.1.5:8080 0.50 KUBE-SERVICES > KUBE-SVC > KUBE-SEP > 10.244.2.5:8080",
		},
		{
			"a pod that reaches itself", "10.244.1.5", "10.96.0.10:80", node(ownEndpoint), object("web", nil, "10.244.1.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-SVC > KUBE-SEP > KUBE-MARK-MASQ > 10.244.1.5:8080 masqueraded",
		},
		{
			"a pod that is recognized by its bridge", "10.244.1.5", "10.96.0.10:80", node(ownEndpoint, bridge), object("web", nil, "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-SVC > KUBE-SEP > 10.244.2.5:8080",
		},
		{
			"a client outside, where pods are recognized by their bridge", "10.244.2.9", "10.96.0.10:80", node(bridge), object("web", nil, "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-SVC > KUBE-MARK-MASQ > KUBE-SEP > 10.244.2.5:8080 masqueraded",
		},
		{
			"a process of the node", "", "10.96.0.10:80", node(), object("web", nil, "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-SVC > KUBE-MARK-MASQ > KUBE-SEP > 10.244.2.5:8080 masqueraded",
		},
		{
			"no endpoints", "10.244.1.9", "10.96.0.10:80", node(), object("web", nil),
			"1.00 KUBE-SERVICES > filter KUBE-SERVICES > REJECT: shop/web:http has no endpoint anywhere that is ready, or terminating and still serving",
		},
		{
			"no local endpoint", "203.0.113.9", "192.0.2.21:30080", node(), object("web", local, "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-NODEPORTS > KUBE-EXT > filter KUBE-EXTERNAL-SERVICES > DROP: the external traffic policy of shop/web:http is Local, and none of its endpoints on node-1 is ready, or terminating and still serving",
		},
		{
			"outside of source ranges", "203.0.113.9", "198.51.100.1:80", node(), object("web", balanced("192.0.2.0/24"), "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-FW > filter KUBE-PROXY-FIREWALL > DROP: 203.0.113.9 is outside of the source ranges of shop/web:http: 192.0.2.0/24",
		},
		{
			"outside of source ranges, and no endpoints", "203.0.113.9", "198.51.100.1:80", node(), object("web", balanced("192.0.2.0/24")),
			"1.00 KUBE-SERVICES > filter KUBE-EXTERNAL-SERVICES > REJECT: shop/web:http has no endpoint anywhere that is ready, or terminating and still serving",
		},
		{
			"another port", "10.244.1.9", "10.96.0.10:81", node(), object("web", nil, "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > PASS: 10.96.0.10 is the cluster IP of shop/web, which does not have port 81/TCP; no rule matches it",
		},
		{
			"no Service's", "10.244.1.9", "10.96.0.77:80", node(), object("web", nil, "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > PASS: no Service has this destination, and no rule matches it: it continues to the owner of the address",
		},
		{
			"a node port, of an address that may be the node's", "203.0.113.9", "192.0.2.99:30080", node(), object("web", nil, "10.244.1.5:8080"),
			"1.00 KUBE-SERVICES > PASS: no Service has this destination, and no rule matches it: it continues to the owner of the address; 30080/TCP is the node port of shop/web: nodes answer it at their own addresses, and the rules of node-1 do not list 192.0.2.99 (spec.node.addresses)",
		},
		{
			"IPVS, by node port", "203.0.113.9", "192.0.2.21:30080", node(inIPVS), object("web", nil, "10.244.1.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-NODE-PORT > KUBE-MARK-MASQ > virtual server 192.0.2.21:30080 > 10.244.1.5:8080 masqueraded",
		},
		{
			"IPVS, no endpoints", "10.244.1.9", "10.96.0.10:80", node(inIPVS), object("web", nil),
			"1.00 KUBE-SERVICES > KUBE-NODE-PORT > virtual server 10.96.0.10:80 > REJECT: shop/web:http has no endpoint anywhere that is ready, or terminating and still serving",
		},
		{
			"IPVS, no local endpoint", "203.0.113.9", "192.0.2.21:30080", node(inIPVS), object("web", local, "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-NODE-PORT > filter KUBE-IPVS-FILTER > DROP: the external traffic policy of shop/web:http is Local, and none of its endpoints on node-1 is ready, or terminating and still serving",
		},
		{
			"IPVS, another port", "10.244.1.9", "10.96.0.10:81", node(inIPVS), object("web", nil, "10.244.2.5:8080"),
			"1.00 KUBE-SERVICES > KUBE-NODE-PORT > filter KUBE-IPVS-FILTER > REJECT: 10.96.0.10 is the cluster IP of shop/web, which does not have port 81/TCP",
		},
		{
			"NFTables, by node port", "203.0.113.9", "192.0.2.21:30080", node(inNFTables), object("web", nil, "10.244.1.5:8080"),
			"1.00 map service-ips > external-1 > pick-1 > map endpoints > 10.244.1.5:8080 masqueraded",
		},
		{
			"NFTables, a pod that reaches itself", "10.244.1.5", "10.96.0.10:80", node(ownEndpoint, inNFTables), object("web", nil, "10.244.1.5:8080"),
			"1.00 map service-ips > cluster-1 > pick-1 > map endpoints > 10.244.1.5:8080 masqueraded",
		},
		{
			"NFTables, no endpoints", "10.244.1.9", "10.96.0.10:80", node(inNFTables), object("web", nil),
			"1.00 map service-ips > no-endpoints > REJECT: shop/web:http has no endpoint anywhere that is ready, or terminating and still serving",
		},
		{
			"NFTables, no local endpoint", "203.0.113.9", "192.0.2.21:30080", node(inNFTables), object("web", local, "10.244.2.5:8080"),
			"1.00 map service-ips > external-local-0 > DROP: the external traffic policy of shop/web:http is Local, and none of its endpoints on node-1 is ready, or terminating and still serving",
		},
		{
			"NFTables, outside of source ranges", "203.0.113.9", "198.51.100.1:80", node(inNFTables), object("web", balanced("192.0.2.0/24"), "10.244.2.5:8080"),
			"1.00 map service-ips > limited-external-1 > allowed-sources > DROP: 203.0.113.9 is outside of the source ranges of shop/web:http: 192.0.2.0/24",
		},
		{
			"NFTables, another port", "10.244.1.9", "10.96.0.10:81", node(inNFTables), object("web", nil, "10.244.2.5:8080"),
			"1.00 no-endpoints > REJECT: 10.96.0.10 is the cluster IP of shop/web, which does not have port 81/TCP",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := text(trace(t, c.node, packet(c.from, c.to), c.service)); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// TestTraceReportsTheService: who has the destination, for how long clients keep
// their endpoint, and who does not get what it asks for.
func TestTraceReportsTheService(t *testing.T) {
	sticky := func(s *v1alpha1.ServiceProxyRulesSpec) {
		s.SessionAffinity = &v1alpha1.SessionAffinity{ClientIPTimeoutSeconds: 600}
		s.ExternalIPs = []string{"nonsense"}
	}
	r := trace(t, node(), packet("10.244.1.9", "10.96.0.10:80"), object("a", sticky, "10.244.1.5:8080"), object("b", nil))
	if r.Service == nil || r.Service.String() != "shop/a:http" || r.Service.AddressType != dataplane.ClusterIP || r.AffinitySeconds != 600 || r.Origin != Pod {
		t.Errorf("%+v", r)
	}
	if len(r.Notes) != 2 || !strings.Contains(r.Notes[0], "shop.a: spec.externalIPs") || !strings.Contains(r.Notes[1], "shop/b claims 10.96.0.10:80 too") {
		t.Errorf("notes %q", r.Notes)
	}
	if r := trace(t, node(), packet("10.244.1.9", "192.0.2.21:30080"), object("a", nil, "10.244.1.5:8080")); r.Service == nil || r.Service.AddressType != dataplane.NodePort {
		t.Errorf("%+v", r)
	}
	set, err := combine.Whole(node(), nil, dataplane.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(set).Trace(t.Context(), packet("fd00::1", "10.96.0.10:80")); err == nil {
		t.Error("a packet of two families is traced")
	}
}

// TestRelevantServicesAreEnough: with all Services in the kernel, what becomes of
// packets is the same as with those that have to do with them.
func TestRelevantServicesAreEnough(t *testing.T) {
	fates := map[Fate]int{}
	for seed := range uint64(12) {
		w := rand.New(rand.NewPCG(seed, 3))
		pick := func(list ...string) string { return list[w.IntN(len(list))] }
		some := func(list ...string) []string {
			return slices.DeleteFunc(list, func(string) bool { return w.IntN(2) == 0 })
		}
		policy := func() v1alpha1.TrafficPolicy { return v1alpha1.TrafficPolicy(pick("Cluster", "Local")) }
		address := func() string { return fmt.Sprintf("10.96.0.%d", 1+w.IntN(40)) }
		endpoint := func() string { // some are addresses of Services and of the node
			return pick("10.244.1.5", "10.244.1.5", "10.244.1.5", "10.244.1.6", "10.244.2.5", "192.0.2.21", address()) + pick(":80", ":80", ":81", ":30080")
		}
		n := node(mode([]v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS, v1alpha1.ModeNFTables}[seed%3]))
		var services []v1alpha1.ServiceProxyRules
		for i := range 14 {
			services = append(services, object(fmt.Sprint("s", i), func(s *v1alpha1.ServiceProxyRulesSpec) {
				s.ClusterIPs, s.ExternalIPs = []string{address()}, some("198.51.100.9", "192.0.2.21")
				s.LoadBalancerIPs, s.LoadBalancerSourceRanges = some("198.51.100.1", "198.51.100.2"), some("203.0.113.0/24", "10.244.0.0/16")
				s.ExternalTrafficPolicy, s.InternalTrafficPolicy = policy(), policy()
				s.Ports[0].Port, s.Ports[0].NodePort = int32(80+w.IntN(2)), int32(0)
				if w.IntN(5) == 0 {
					s.Ports[0].NodePort = int32(30080 + w.IntN(2))
				}
				var list []string
				for range w.IntN(4) {
					list = append(list, endpoint())
				}
				slices.Sort(list)
				list = slices.Compact(list)
				s.Ports[0].Endpoints[0].Addresses = list
				n.Spec.LocalEndpoints = append(n.Spec.LocalEndpoints, v1alpha1.ServiceLocalEndpoints{Namespace: "shop", Name: fmt.Sprint("s", i), Ports: []v1alpha1.PortLocalEndpoints{{
					Name: "http", Protocol: v1alpha1.ProtocolTCP, Endpoints: slices.DeleteFunc(slices.Clone(list), func(e string) bool { return strings.HasPrefix(e, "10.244.2.") || w.IntN(3) == 0 }),
				}}})
			}))
		}
		destination := func() string { return services[w.IntN(len(services))].Spec.ClusterIPs[0] }
		set, err := combine.Whole(n, services, dataplane.IPv4)
		if err != nil {
			t.Fatal(err)
		}
		tracer := New(set)
		all, err := tracer.program(t.Context(), set.Services)
		if err != nil {
			t.Fatal(err)
		}
		for range 300 {
			p := packet(pick("", "10.244.1.5", "10.244.1.5", "10.244.1.6", "192.0.2.21", "203.0.113.9", "10.244.2.5", address()),
				pick("192.0.2.21", "198.51.100.1", "198.51.100.2", "198.51.100.9", destination(), destination(), destination())+pick(":80", ":80", ":81", ":30080", ":30081"))
			got, err := tracer.Trace(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			sent, origin := tracer.send(&p, all)
			outcomes, err := all.Trace(sent)
			if err != nil {
				t.Fatal(err)
			}
			want := (&question{Tracer: tracer, services: set.Services, packet: sent, protocol: p.Protocol, kernel: all}).answer(origin, outcomes)
			if text(got) != text(want) || got.Origin != want.Origin || got.Source != want.Source {
				t.Fatalf("seed %d, %s, %+v: %s by the relevant Services\n%s\nwant %s\n%s", seed, set.Mode, p, got.Origin, text(got), want.Origin, text(want))
			}
			total := 0.0
			for _, o := range got.Outcomes {
				total += o.Share
				fates[o.Fate]++
			}
			if math.Abs(total-1) > 1e-6 {
				t.Errorf("seed %d, %+v: shares of %f", seed, p, total)
			}
		}
	}
	for _, f := range []Fate{Delivered, Rejected, Dropped, Passed} {
		if fates[f] < 20 {
			t.Errorf("only %d packets of %s: the worlds are dull", fates[f], f)
		}
	}
	t.Logf("%v", fates)
}

// BenchmarkTrace combines and traces with 5,000 Services of ten endpoints.
func BenchmarkTrace(b *testing.B) {
	var services []v1alpha1.ServiceProxyRules
	for i := range 5000 {
		var endpoints []string
		for e := range 10 {
			endpoints = append(endpoints, fmt.Sprintf("10.%d.%d.%d:8080", 128+e, i/250, i%250))
		}
		services = append(services, object(fmt.Sprint("s", i), func(s *v1alpha1.ServiceProxyRulesSpec) {
			s.ClusterIPs, s.Ports[0].NodePort = []string{fmt.Sprintf("10.96.%d.%d", i/250, i%250)}, int32(30000+i)
		}, endpoints...))
	}
	for _, m := range []v1alpha1.ProxyMode{v1alpha1.ModeIPTables, v1alpha1.ModeIPVS, v1alpha1.ModeNFTables} {
		b.Run(string(m), func(b *testing.B) {
			for b.Loop() {
				set, err := combine.Whole(node(mode(m)), services, dataplane.IPv4)
				if err != nil {
					b.Fatal(err)
				}
				r, err := New(set).Trace(b.Context(), packet("10.244.1.9", "10.96.3.7:80"))
				if err != nil || len(r.Outcomes) != 10 {
					b.Fatal(r, err)
				}
			}
		})
	}
}
