package nodes

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// makeServices makes Services of all kinds with two pods on each node, and states
// where connections to them are made. Some more Services make the nodes' rules
// less small.
func (k *take) makeServices() []load.Target {
	var servers []string
	for i, node := range k.cluster.Nodes() {
		for j := range 2 {
			name := fmt.Sprintf("web-%d-%d", i+1, j+1)
			servers = append(servers, name)
			if _, err := node.RunPod(k.Context(), cluster.PodSpec{Name: name, Labels: map[string]string{"app": "web"}}); err != nil {
				k.Fatal(err)
			}
		}
	}
	plain := k.service("cluster-ip", nil)
	affine := k.service("sticky", func(s *corev1.ServiceSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	k.service("node-port", func(s *corev1.ServiceSpec) {
		s.Type, s.Ports[0].NodePort, s.Ports[1].NodePort = corev1.ServiceTypeNodePort, 30080, 30080
		s.ExternalIPs = []string{"198.51.100.20", "2001:db8::20"}
	})
	k.service("local", func(s *corev1.ServiceSpec) {
		s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	}, "203.0.113.10", "2001:db8::10")
	k.service("restricted", func(s *corev1.ServiceSpec) {
		s.Type, s.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"172.20.0.0/24", "fd00:172:20::/64"}
	}, "203.0.113.11", "2001:db8::11")
	for i := range 30 {
		k.service(fmt.Sprintf("other-%d", i), nil)
	}
	for ip, node := range map[string]int{
		"198.51.100.20": 0, "2001:db8::20": 1, "203.0.113.10": 0, "2001:db8::10": 1, "203.0.113.11": 1, "2001:db8::11": 0,
	} {
		if err := k.cluster.RouteFromOutside(ip, k.cluster.Node(node)); err != nil {
			k.Fatal(err)
		}
	}
	outside := k.cluster.Outside()
	targets := []load.Target{
		{Name: "outside to external IP", From: outside, Network: "tcp", Address: "198.51.100.20:80", Servers: servers},
		{Name: "outside to external IP", From: outside, Network: "tcp", Address: "[2001:db8::20]:80", Servers: servers},
		{Name: "outside to local VIP", From: outside, Network: "tcp", Address: "203.0.113.10:80", Servers: servers[:2]},
		{Name: "outside to local VIP", From: outside, Network: "tcp", Address: "[2001:db8::10]:80", Servers: servers[2:4]},
		{Name: "outside to restricted VIP", From: outside, Network: "tcp", Address: "203.0.113.11:80", Servers: servers},
		{Name: "outside to restricted VIP", From: outside, Network: "tcp", Address: "[2001:db8::11]:80", Servers: servers},
	}
	for _, node := range k.cluster.Nodes() {
		visitor, err := node.RunPod(k.Context(), cluster.PodSpec{Name: "visitor-" + node.Name()})
		if err != nil {
			k.Fatal(err)
		}
		add := func(name string, from *cluster.Place, network, ip string, port int) {
			t := load.Target{Name: node.Name() + ", " + name, From: from, Network: network,
				Address: net.JoinHostPort(ip, strconv.Itoa(port)), Servers: servers}
			if strings.Contains(name, "affinity") {
				t.Check = sticky()
			}
			targets = append(targets, t)
		}
		add("node to its own node port", node.Place, "tcp", "127.0.0.1", 30080)
		for family, ip := range []string{node.Address(), node.Address6()} {
			for _, network := range []string{"tcp", "udp"} {
				add("pod to cluster IP", visitor.Place, network, plain.ClusterIPs[family], 80)
				add("outside to node port", outside, network, ip, 30080)
			}
			add("node to cluster IP", node.Place, "tcp", plain.ClusterIPs[family], 80)
			add("pod with affinity", visitor.Place, "tcp", affine.ClusterIPs[family], 80)
		}
	}
	return targets
}

func (k *take) service(name string, change func(*corev1.ServiceSpec), vips ...string) corev1.ServiceSpec {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{
				{Name: "tcp", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "udp", Port: 80, TargetPort: intstr.FromInt32(8080), Protocol: corev1.ProtocolUDP},
			},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
		},
	}
	if change != nil {
		change(&service.Spec)
	}
	if err := k.cluster.Client().Create(k.Context(), service); err != nil {
		k.Fatal(err)
	}
	if len(vips) > 0 {
		before := client.MergeFrom(service.DeepCopy())
		for _, ip := range vips {
			service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
		if err := k.cluster.Client().Status().Patch(k.Context(), service, before); err != nil {
			k.Fatal(err)
		}
	}
	return service.Spec
}
