package render

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestEligible(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*corev1.Service)
		want bool
	}{
		"cluster IP":    {edit: func(*corev1.Service) {}, want: true},
		"no cluster IP": {edit: func(s *corev1.Service) { s.Spec.ClusterIP = "" }},
		"headless":      {edit: func(s *corev1.Service) { s.Spec.ClusterIP = "None" }},
		"external name, cluster IP left over": {
			edit: func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }},
		"another proxy's, empty value": {
			edit: func(s *corev1.Service) { s.Labels = map[string]string{LabelServiceProxyName: ""} }},
		"no ports":                  {edit: func(s *corev1.Service) { s.Spec.Ports = nil }},
		"no families listed":        {edit: func(s *corev1.Service) { s.Spec.IPFamilies, s.Spec.ClusterIPs = nil, nil }, want: true},
		"address of another family": {edit: func(s *corev1.Service) { s.Spec.ClusterIPs[0] = "fd00::1" }},
		"not an address":            {edit: func(s *corev1.Service) { s.Spec.ClusterIPs[0] = "ten" }},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Eligible(service(c.edit)); got != c.want {
				t.Errorf("Eligible = %v, want %v", got, c.want)
			}
		})
	}
}

// The example of the API's documentation.
func TestServiceComplete(t *testing.T) {
	local := corev1.ServiceInternalTrafficPolicyCluster
	svc := service(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Spec.ClusterIPs = []string{"10.96.12.7", "fd00:10:96:0::00c7"}
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
		s.Spec.Ports[0].NodePort = 30080
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, NodePort: 30443})
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
		s.Spec.HealthCheckNodePort = 31234
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.7/24"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.009"}}
	})
	a := slice("cart-a",
		endpoint("10.244.1.6", on("edge-1"), hints([]string{"zone-a"}, nil)),
		endpoint("10.244.1.5", on("edge-1"), hints([]string{"zone-a"}, nil)),
		endpoint("10.244.9.9", notReady()))
	a.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-20T05:59:00Z"}
	b := slice("cart-b",
		endpoint("10.244.2.9", on("work-7"), hints([]string{"zone-b"}, []string{"work-7"})),
		endpoint("10.244.3.4", terminating()))
	b.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-11-20T06:00:00.123Z"}

	got, problems := Service(svc, []*discoveryv1.EndpointSlice{b, a}, Shape{}, Cluster{}, 2)
	http := map[string]int32{"http": 8080}
	want := &v1alpha1.ServiceProxyRules{}
	want.Name = "shop.cart"
	want.Annotations = map[string]string{"nodeproxy.io/last-change-trigger-time": "2026-11-20T06:00:00.123Z"}
	want.Spec = v1alpha1.ServiceProxyRulesSpec{
		FormatVersion:            2,
		ServiceCreated:           created,
		ClusterIPs:               []string{"10.96.12.7", "fd00:10:96::c7"},
		LoadBalancerIPs:          []string{"203.0.113.9"},
		LoadBalancerSourceRanges: []string{"198.51.100.0/24"},
		ExternalTrafficPolicy:    "Local",
		SessionAffinity:          &v1alpha1.SessionAffinity{ClientIPTimeoutSeconds: 10800},
		HealthCheckNodePort:      31234,
		PortSummary:              "80:30080/TCP,443:30443/TCP",
		EndpointCount:            4,
		Ports: []v1alpha1.ServicePort{
			{Name: "http", Protocol: "TCP", Port: 80, NodePort: 30080}, {Name: "https", Protocol: "TCP", Port: 443, NodePort: 30443},
		},
		Endpoints: []v1alpha1.EndpointGroup{
			{TargetPorts: http, Zones: []string{"zone-a"}, Addresses: []string{"10.244.1.5", "10.244.1.6"}},
			{TargetPorts: http, Zones: []string{"zone-b"}, Nodes: []string{"work-7"}, Addresses: []string{"10.244.2.9"}},
			{TargetPorts: http, State: "Terminating", Addresses: []string{"10.244.3.4"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}

func TestServiceFields(t *testing.T) {
	type spec = v1alpha1.ServiceProxyRulesSpec
	dual := func(s *corev1.Service) {
		s.Spec.ClusterIPs = []string{"10.96.12.7", "fd00::1"}
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	ipMode := func(m corev1.LoadBalancerIPMode) *corev1.LoadBalancerIPMode { return &m }
	for name, c := range map[string]struct {
		edit func(*corev1.Service)
		of   func(spec) any
		want any
	}{
		"addresses keep their order and lose leading zeros, repetition and the family that has no cluster IP": {
			edit: func(s *corev1.Service) {
				s.Spec.ExternalIPs = []string{"1.2.3.004", " 1.2.3.4", "fd00::9", "bogus", "1.2.3.10"}
			},
			of: func(s spec) any { return s.ExternalIPs }, want: []string{"1.2.3.4", "1.2.3.10"},
		},
		"cluster IP loses leading zeros": {
			edit: func(s *corev1.Service) {
				s.Spec.ClusterIP, s.Spec.ClusterIPs = "172.30.0.041", []string{"172.30.0.041"}
			},
			of: func(s spec) any { return s.ClusterIPs }, want: []string{"172.30.0.41"},
		},
		"secondary family only": {
			edit: func(s *corev1.Service) { dual(s); s.Spec.ClusterIPs[0] = "bogus" },
			of:   func(s spec) any { return s.ClusterIPs }, want: []string{"fd00::1"},
		},
		"load-balancer IPs in proxy mode are not ours": {
			edit: func(s *corev1.Service) {
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
					{IP: "203.0.113.1", IPMode: ipMode(corev1.LoadBalancerIPModeProxy)},
					{IP: "203.0.113.2", IPMode: ipMode(corev1.LoadBalancerIPModeVIP)},
					{Hostname: "lb.example.org"},
				}
			},
			of: func(s spec) any { return s.LoadBalancerIPs }, want: []string{"203.0.113.2"},
		},
		"ranges of both families, in order": {
			edit: func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{"fd00:1::5/64", " 203.0.113.000/025 ", "bogus"}
			},
			of: func(s spec) any { return s.LoadBalancerSourceRanges }, want: []string{"fd00:1::/64", "203.0.113.0/25"},
		},
		"a range of length 0 lifts the restriction of its family only": {
			edit: func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24", "0.0.0.0/0", "fd00:1::/64"}
			},
			of: func(s spec) any { return s.LoadBalancerSourceRanges }, want: []string{"fd00:1::/64"},
		},
		"no valid range is no restriction": {
			edit: func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"bogus"} },
			of:   func(s spec) any { return s.LoadBalancerSourceRanges == nil }, want: true,
		},
		"Local without anything external has no effect": {
			edit: func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = "Local" },
			of:   func(s spec) any { return s.ExternalTrafficPolicy }, want: v1alpha1.TrafficPolicyCluster,
		},
		"Local with an external IP, of whatever family": {
			edit: func(s *corev1.Service) {
				s.Spec.ExternalTrafficPolicy, s.Spec.ExternalIPs = "Local", []string{"fd00::9"}
			},
			of: func(s spec) any { return s.ExternalTrafficPolicy }, want: v1alpha1.TrafficPolicyLocal,
		},
		"Local of a NodePort Service has no health check": {
			edit: func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ExternalTrafficPolicy, s.Spec.HealthCheckNodePort = "NodePort", "Local", 31234
			},
			of:   func(s spec) any { return []any{s.ExternalTrafficPolicy, s.HealthCheckNodePort} },
			want: []any{v1alpha1.TrafficPolicyLocal, int32(0)},
		},
		"health check only with Local": {
			edit: func(s *corev1.Service) { s.Spec.Type, s.Spec.HealthCheckNodePort = "LoadBalancer", 31234 },
			of:   func(s spec) any { return s.HealthCheckNodePort }, want: int32(0),
		},
		"internal Local": {
			edit: func(s *corev1.Service) {
				p := corev1.ServiceInternalTrafficPolicyLocal
				s.Spec.InternalTrafficPolicy = &p
			},
			of: func(s spec) any { return s.InternalTrafficPolicy }, want: v1alpha1.TrafficPolicyLocal,
		},
		"affinity timeout": {
			edit: func(s *corev1.Service) {
				seconds := int32(60)
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
			},
			of: func(s spec) any { return s.SessionAffinity.ClientIPTimeoutSeconds }, want: int32(60),
		},
		"node port of a ClusterIP Service, UDP": {
			edit: func(s *corev1.Service) {
				s.Spec.Ports = []corev1.ServicePort{{Protocol: "UDP", Port: 53, NodePort: 30053}, {Name: "t", Port: 53}}
			},
			of: func(s spec) any { return s.PortSummary }, want: "53:30053/UDP,53/TCP",
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules, _ := Service(service(c.edit), nil, Shape{}, Cluster{}, 1)
			if diff := cmp.Diff(c.want, c.of(rules.Spec)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestServiceEndpoints(t *testing.T) {
	unnamed := func(s *corev1.Service) { s.Spec.Ports[0].Name = "" }
	edited := func(s *discoveryv1.EndpointSlice, edit func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
		edit(s)
		return s
	}
	for name, c := range map[string]struct {
		service  []func(*corev1.Service)
		slices   []*discoveryv1.EndpointSlice
		want     []v1alpha1.EndpointGroup
		problems []string
	}{
		"states": {
			slices: []*discoveryv1.EndpointSlice{slice("a",
				endpoint("10.0.0.1"),
				endpoint("10.0.0.2", conditions(true, false, true)), // publishNotReadyAddresses
				endpoint("10.0.0.3", terminating()),
				endpoint("10.0.0.4", conditions(false, true, false)),
				endpoint("10.0.0.5", conditions(false, false, true)),
			)},
			want: []v1alpha1.EndpointGroup{
				{State: "Ready", Addresses: []string{"10.0.0.1:8080", "10.0.0.2:8080"}},
				{State: "Terminating", Addresses: []string{"10.0.0.3:8080"}},
			},
		},
		"sorted as strings": {
			slices: []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.1.1"), endpoint("10.0.1.10"))},
			want:   []v1alpha1.EndpointGroup{{State: "Ready", Addresses: []string{"10.0.1.10:8080", "10.0.1.1:8080"}}},
		},
		"not terminating beats terminating, though it is ready": {
			slices: []*discoveryv1.EndpointSlice{
				slice("a", endpoint("10.0.0.1", conditions(true, true, true))),
				slice("b", endpoint("10.0.0.01", notReady())),
			},
		},
		"ready beats not ready": {
			slices: []*discoveryv1.EndpointSlice{slice("a", endpoint("10.0.0.1", notReady())), slice("b", endpoint("10.0.0.1"))},
			want:   []v1alpha1.EndpointGroup{{State: "Ready", Addresses: []string{"10.0.0.1:8080"}}},
		},
		"lower slice name wins": {
			slices: []*discoveryv1.EndpointSlice{
				slice("b", endpoint("10.0.0.1", hints([]string{"zone-b"}, nil))),
				slice("a", endpoint("10.0.0.1", hints([]string{"zone-a"}, nil))),
			},
			want: []v1alpha1.EndpointGroup{{State: "Ready", Zones: []string{"zone-a"}, Addresses: []string{"10.0.0.1:8080"}}},
		},
		"hints are sets": {
			slices: []*discoveryv1.EndpointSlice{slice("a",
				endpoint("10.0.0.1", hints([]string{"z2", "z1", "z1"}, []string{"n2", "n1"})),
				endpoint("10.0.0.2", hints([]string{"z1", "z2"}, []string{"n1", "n2"})),
			)},
			want: []v1alpha1.EndpointGroup{{State: "Ready", Zones: []string{"z1", "z2"}, Nodes: []string{"n1", "n2"},
				Addresses: []string{"10.0.0.1:8080", "10.0.0.2:8080"}}},
		},
		"port matches by name and protocol": {
			slices: []*discoveryv1.EndpointSlice{
				edited(slice("a", endpoint("10.0.0.1")), func(s *discoveryv1.EndpointSlice) { s.Ports[0] = slicePortOf("other", 8080) }),
				edited(slice("b", endpoint("10.0.0.2")), func(s *discoveryv1.EndpointSlice) {
					udp := corev1.ProtocolUDP
					s.Ports[0].Protocol = &udp
				}),
			},
		},
		"unnamed port, protocol left out": {
			service: []func(*corev1.Service){unnamed},
			slices: []*discoveryv1.EndpointSlice{edited(slice("a", endpoint("10.0.0.1")), func(s *discoveryv1.EndpointSlice) {
				s.Ports[0] = slicePortOf("", 81)
				s.Ports[0].Protocol = nil
			})},
			want: []v1alpha1.EndpointGroup{{State: "Ready", Addresses: []string{"10.0.0.1:81"}}},
		},
		"only the first address counts": {
			slices: []*discoveryv1.EndpointSlice{edited(slice("a", endpoint("10.0.0.1")), func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Addresses = append(s.Endpoints[0].Addresses, "10.0.0.2")
			})},
			want: []v1alpha1.EndpointGroup{{State: "Ready", Addresses: []string{"10.0.0.1:8080"}}},
		},
		"a slice of a family that the Service lacks is passed over": {
			slices: []*discoveryv1.EndpointSlice{edited(slice("a", endpoint("fd00::1")), func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
			})},
		},
		"IPv6": {
			service: []func(*corev1.Service){func(s *corev1.Service) {
				s.Spec.ClusterIPs, s.Spec.IPFamilies = []string{"fd00::7"}, []corev1.IPFamily{corev1.IPv6Protocol}
			}},
			slices: []*discoveryv1.EndpointSlice{edited(slice("a", endpoint("fd00:0::00a1")), func(s *discoveryv1.EndpointSlice) {
				s.AddressType = discoveryv1.AddressTypeIPv6
			})},
			want: []v1alpha1.EndpointGroup{{State: "Ready", Addresses: []string{"[fd00::a1]:8080"}}},
		},
		"what cannot be used is named, the rest is rendered": {
			slices: []*discoveryv1.EndpointSlice{
				edited(slice("b", endpoint("10.0.0.1")), func(s *discoveryv1.EndpointSlice) {
					s.Ports = append(s.Ports, discoveryv1.EndpointPort{}, slicePortOf("zero", 0), slicePortOf("big", 70000))
					s.Ports[2].Port = nil
				}),
				slice("a", endpoint("bogus"), endpoint("fd00::1"), endpoint("bogus"), discoveryv1.Endpoint{},
					endpoint("239.1.2.3"), endpoint("0.0.0.0")),
				edited(slice("c", endpoint("host.example.org")), func(s *discoveryv1.EndpointSlice) {
					s.AddressType = discoveryv1.AddressTypeFQDN
				}),
			},
			want: []v1alpha1.EndpointGroup{{State: "Ready", Addresses: []string{"10.0.0.1:8080"}}},
			problems: []string{
				`EndpointSlice a: an endpoint has no address`,
				`EndpointSlice a, address "0.0.0.0": a multicast or unspecified address`,
				`EndpointSlice a, address "239.1.2.3": a multicast or unspecified address`,
				`EndpointSlice a, address "bogus": not an IP address`,
				`EndpointSlice a, address "fd00::1": not an address of the slice's addressType`,
				`EndpointSlice b: a port without a name field matches no Service port`,
				`EndpointSlice b: port "big" has the number 70000, which is outside 1-65535`,
				`EndpointSlice b: port "zero" has no number`,
				`EndpointSlice c: addresses of type "FQDN" cannot be proxied`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			rules, problems := Service(service(c.service...), c.slices, Shape{}, Cluster{}, 1)
			if diff := cmp.Diff(c.want, rules.Spec.Ports[0].Endpoints); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
			var texts []string
			for _, p := range problems {
				texts = append(texts, p.String())
			}
			if diff := cmp.Diff(c.problems, texts); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// The order of slices, endpoints and ports never shows.
func TestServiceOrder(t *testing.T) {
	svc := service(func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "metrics", Port: 9090})
	})
	in := crowd(250)
	// The same endpoint twice in one slice, alike but for node and hints.
	in = append(in, slice("cart-a", endpoint("10.1.0.1", on("n2")), endpoint("10.1.0.1", on("n1"), hints([]string{"z"}, nil))))
	want := encoded(t, svc, in)
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		if got := encoded(t, svc, permuted(random, in)); got != want {
			t.Fatalf("another order gives other bytes:\n%s", cmp.Diff(want, got))
		}
	}
}

func encoded(t *testing.T, svc *corev1.Service, in []*discoveryv1.EndpointSlice) string {
	t.Helper()
	rules, problems := Service(svc, in, Shape{}, Cluster{}, 1)
	text, err := json.Marshal([]any{rules, problems})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTargetPorts: an address is in as many groups as its target ports need, in each format with the same
// endpoints of each port.
func TestTargetPorts(t *testing.T) {
	svc := service(func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "metrics", Protocol: corev1.ProtocolTCP, Port: 9090})
	})
	withPorts := func(s *discoveryv1.EndpointSlice, ports map[string]int32) *discoveryv1.EndpointSlice {
		s.Ports = nil
		for name, number := range ports {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: &number})
		}
		return s
	}
	both := map[string]int32{"http": 8080, "metrics": 9100}
	all := []*discoveryv1.EndpointSlice{
		withPorts(slice("a", endpoint("10.0.0.1"), endpoint("10.0.0.2")), both),
		withPorts(slice("b", endpoint("10.0.0.3"), endpoint("10.0.0.2")), map[string]int32{"http": 8081}),
		withPorts(slice("c", endpoint("10.0.0.4", terminating())), both),
		withPorts(slice("d", endpoint("10.0.0.4")), map[string]int32{"metrics": 9100, "other": 1}),
	}
	rules, problems := Service(svc, all, Shape{}, Cluster{}, 2)
	want := []v1alpha1.EndpointGroup{
		{TargetPorts: map[string]int32{"http": 8080, "metrics": 9100}, Addresses: []string{"10.0.0.1", "10.0.0.2"}},
		{TargetPorts: map[string]int32{"http": 8081}, Addresses: []string{"10.0.0.2", "10.0.0.3"}},
		{TargetPorts: map[string]int32{"metrics": 9100}, Addresses: []string{"10.0.0.4"}},
		{TargetPorts: map[string]int32{"http": 8080}, State: "Terminating", Addresses: []string{"10.0.0.4"}},
	}
	if diff := cmp.Diff(want, rules.Spec.Endpoints); diff != "" || len(problems) > 0 {
		t.Errorf("endpoints (-want +got), problems %v:\n%s", problems, diff)
	}
	first, _ := Service(svc, all, Shape{}, Cluster{}, 1)
	if diff := cmp.Diff(texts(first), texts(rules)); diff != "" || first.Spec.EndpointCount != rules.Spec.EndpointCount {
		t.Errorf("format 1 and 2 differ (-1 +2), %d and %d endpoints:\n%s", first.Spec.EndpointCount, rules.Spec.EndpointCount, diff)
	}
}

// texts are the endpoints of each port, with their states, sorted.
func texts(rules *v1alpha1.ServiceProxyRules) [][]string {
	var out [][]string
	for _, port := range rules.Spec.EndpointsByPort() {
		var of []string
		for _, group := range port {
			for endpoint := range group.All() {
				of = append(of, endpoint+" "+string(group.Effective()))
			}
		}
		slices.Sort(of)
		out = append(out, of)
	}
	return out
}
