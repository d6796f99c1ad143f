package render

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// knownCluster has an API server on a node, one beside the nodes, a node and service ranges.
func knownCluster() Cluster {
	nodes := map[netip.Addr]bool{}
	for _, text := range []string{"172.20.0.11", "172.20.0.12", "fd00:172::12"} {
		nodes[netip.MustParseAddr(text)] = true
	}
	return Cluster{
		APIServers: map[netip.Addr][]uint16{
			netip.MustParseAddr("172.20.0.11"):  {6443},
			netip.MustParseAddr("192.0.2.10"):   {443},
			netip.MustParseAddr("2001:db8::10"): {443},
		},
		Ranges: NewServiceRanges([]string{"10.96.0.0/16", "10.0.0.0/8", "fd00:10:96::/112", "nonsense"}),
		OfNode: func(a netip.Addr) bool { return nodes[a] },
	}
}

// both is a Service of both IP families.
func both(s *corev1.Service) {
	s.Spec.ClusterIPs = []string{"10.96.12.7", "fd00:10:96::c7"}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
}

// TestSkippedAddresses: what no Service may have is left out and named, and the rest stays.
func TestSkippedAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1":           "is a loopback address",
		"127.255.255.254":     "is a loopback address",
		"::1":                 "is a loopback address",
		"0.0.0.0":             "is the unspecified address",
		"::":                  "is the unspecified address",
		"224.0.0.251":         "is a multicast address",
		"239.255.255.255":     "is a multicast address",
		"ff02::1":             "is a multicast address",
		"169.254.169.254":     "is a link-local address",
		"fe80::1":             "is a link-local address",
		"febf::1":             "is a link-local address",
		"::ffff:127.0.0.1":    "is a loopback address",
		"172.20.0.11":         "", // and a Node's: the port is another one
		"192.0.2.10":          "is the address of an API server",
		"2001:db8:0::10":      "is the address of an API server",
		"10.96.0.10":          "is inside the service range 10.0.0.0/8",
		"10.255.0.1":          "is inside the service range 10.0.0.0/8",
		"fd00:10:96::ffff":    "is inside the service range fd00:10:96::/112",
		"fd00:10:96::1:0":     "",
		"11.0.0.0":            "",
		"126.255.255.255":     "",
		"128.0.0.1":           "",
		"169.253.255.255":     "",
		"fec0::1":             "",
		"198.51.100.20":       "",
		"172.20.0.12":         "",
		"::ffff:198.51.100.9": "",
	} {
		svc := service(both, func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"198.51.100.1", text, "2001:db8::1"} })
		rules, problems := Service(svc, nil, Shape{}, knownCluster(), 1)
		addr, _ := parseAddr(text)
		included := slices.Contains(rules.Spec.ExternalIPs, addr.String())
		skipped := ""
		for _, s := range rules.Spec.SkippedAddresses {
			if s.Address != addr.String() {
				t.Errorf("%s: named is %s", text, s.Address)
			}
			skipped = s.Reason
		}
		if included != (want == "") || skipped != want || len(problems) != 0 {
			t.Errorf("%s: included %t, skipped because it %q, want %q", text, included, skipped, want)
		}
		if !slices.Contains(rules.Spec.ExternalIPs, "198.51.100.1") || !slices.Contains(rules.Spec.ExternalIPs, "2001:db8::1") {
			t.Errorf("%s: the others are gone: %v", text, rules.Spec.ExternalIPs)
		}
		// A caller that only knows the stored rules renders the same.
		again, _ := Service(svc, nil, Shape{}, StoredCluster(&rules.Spec), 1)
		if !slices.Equal(again.Spec.SkippedAddresses, rules.Spec.SkippedAddresses) || !slices.Equal(again.Spec.NodeAddresses, rules.Spec.NodeAddresses) {
			t.Errorf("%s: from what is stored %+v, want %+v", text, again.Spec.SkippedAddresses, rules.Spec.SkippedAddresses)
		}
	}
}

// TestAddressesOfNodes: an address that is a Node's and an API server's is allowed but with the API
// server's port, as load-balancer and as external IP.
func TestAddressesOfNodes(t *testing.T) {
	for name, c := range map[string]struct {
		port               int32
		protocol           corev1.Protocol
		external, balanced []string
		in                 Cluster
		want, nodes        []string // load-balancer IPs, and which of all are Nodes'
		wantExternal       []string
		skipped            int
	}{
		"all nodes": {
			port: 80, balanced: []string{"172.20.0.11", "172.20.0.12"}, in: knownCluster(),
			want: []string{"172.20.0.11", "172.20.0.12"}, nodes: []string{"172.20.0.11", "172.20.0.12"},
		},
		"the API server's port": {
			port: 6443, balanced: []string{"172.20.0.11", "172.20.0.12"}, in: knownCluster(),
			want: []string{"172.20.0.12"}, nodes: []string{"172.20.0.12"}, skipped: 1,
		},
		"its number of another protocol": {
			port: 6443, protocol: corev1.ProtocolUDP, balanced: []string{"172.20.0.11"}, in: knownCluster(),
			want: []string{"172.20.0.11"}, nodes: []string{"172.20.0.11"},
		},
		"an API server beside the nodes": {port: 80, balanced: []string{"192.0.2.10"}, in: knownCluster(), skipped: 1},
		"as external IP too": {
			port: 80, external: []string{"172.20.0.11"}, balanced: []string{"172.20.0.11"}, in: knownCluster(),
			want: []string{"172.20.0.11"}, nodes: []string{"172.20.0.11"}, wantExternal: []string{"172.20.0.11"},
		},
		"as external IP with the API server's port": {port: 6443, external: []string{"172.20.0.11", "172.20.0.12"}, in: knownCluster(),
			nodes: []string{"172.20.0.12"}, wantExternal: []string{"172.20.0.12"}, skipped: 1},
		"an external IP of an API server beside the nodes": {port: 80, external: []string{"192.0.2.10"}, in: knownCluster(), skipped: 1},
		"loopback":                    {port: 80, balanced: []string{"127.0.0.1"}, skipped: 1},
		"its own cluster IP":          {port: 80, balanced: []string{"10.96.12.7"}, in: knownCluster(), want: []string{"10.96.12.7"}},
		"the same node's twice":       {port: 80, external: []string{"172.20.0.12"}, balanced: []string{"172.20.0.12"}, in: knownCluster(), want: []string{"172.20.0.12"}, nodes: []string{"172.20.0.12"}, wantExternal: []string{"172.20.0.12"}},
		"nothing is known":            {port: 80, balanced: []string{"10.96.0.9", "172.20.0.11"}, want: []string{"10.96.0.9", "172.20.0.11"}},
		"of a family it lacks":        {port: 80, balanced: []string{"::1", "fd00:10:96::9"}, in: knownCluster()},
		"skipped with more knowledge": {port: 80, balanced: []string{"10.96.0.9"}, in: Cluster{Skipped: []v1alpha1.SkippedAddress{{Address: "10.96.0.9", Reason: "is taken"}}}, skipped: 1},
	} {
		t.Run(name, func(t *testing.T) {
			svc := service(func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, c.external
				s.Spec.Ports[0].Port = c.port
				if c.protocol != "" {
					s.Spec.Ports[0].Protocol = c.protocol
				}
				for _, ip := range c.balanced {
					s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
				}
			})
			rules, _ := Service(svc, nil, Shape{}, c.in, 1)
			if !slices.Equal(rules.Spec.LoadBalancerIPs, c.want) || !slices.Equal(rules.Spec.ExternalIPs, c.wantExternal) || !slices.Equal(rules.Spec.NodeAddresses, c.nodes) || len(rules.Spec.SkippedAddresses) != c.skipped {
				t.Errorf("external IPs %v, load-balancer IPs %v, of Nodes %v, skipped %v", rules.Spec.ExternalIPs, rules.Spec.LoadBalancerIPs, rules.Spec.NodeAddresses, rules.Spec.SkippedAddresses)
			}
		})
	}
}

// TestSkippedByPolicy: what a policy takes out is not named as skipped.
func TestSkippedByPolicy(t *testing.T) {
	svc := service(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"127.0.0.1"} })
	rules, _ := Service(svc, nil, Shape{Overrides: &v1alpha1.ServiceOverrides{ExternalIPs: new(v1alpha1.Disabled)}}, Cluster{}, 1)
	if len(rules.Spec.ExternalIPs)+len(rules.Spec.SkippedAddresses) != 0 {
		t.Errorf("%v, skipped %v", rules.Spec.ExternalIPs, rules.Spec.SkippedAddresses)
	}
}

// TestOutsideIPs: no address is looked up of a Service that is rejected for its many addresses.
func TestOutsideIPs(t *testing.T) {
	svc := service(func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{" 198.51.100.1", "no address", "::ffff:198.51.100.2"}
		proxy := corev1.LoadBalancerIPModeProxy
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}, {Hostname: "lb"}, {IP: "203.0.113.2", IPMode: &proxy}}
	})
	var got []string
	for _, a := range OutsideIPs(svc) {
		got = append(got, a.String())
	}
	if strings.Join(got, " ") != "198.51.100.1 198.51.100.2 203.0.113.1" {
		t.Errorf("%v", got)
	}
	svc.Spec.ExternalIPs = slices.Repeat([]string{"198.51.100.1"}, v1alpha1.MaxServiceAddresses)
	if got := OutsideIPs(svc); len(got) != 0 {
		t.Errorf("%d of a Service over the limit", len(got))
	}
}

// TestAPIServers: every place that names API servers counts, ready or not.
func TestAPIServers(t *testing.T) {
	of := slice("kubernetes", endpoint("192.0.2.1"), endpoint("192.0.2.2", notReady()), endpoint("192.0.2.1"))
	np := &v1alpha1.NodeProxy{}
	if got := APIServers([]*discoveryv1.EndpointSlice{of}, np); len(got) != 2 || !slices.Equal(got[netip.MustParseAddr("192.0.2.1")], []uint16{8080}) {
		t.Errorf("of EndpointSlices %v", got)
	}
	np.Spec.APIServer = &v1alpha1.APIServerSettings{Endpoints: []string{"https://192.0.2.3:6443", "https://api.example.org:6443"}}
	got := APIServers(nil, np, "https://[2001:db8::1]", "https://192.0.2.3:443", "%nonsense")
	if len(got) != 2 || !slices.Equal(got[netip.MustParseAddr("192.0.2.3")], []uint16{443, 6443}) || !slices.Equal(got[netip.MustParseAddr("2001:db8::1")], []uint16{443}) {
		t.Errorf("of URLs %v", got)
	}
}
