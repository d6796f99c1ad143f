package e2e

import (
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/load"
)

// Addresses that are routed to a node, as a load balancer would do it.
const (
	balancedIP, balancedIP6 = "203.0.113.10", "2001:db8::10" // to node-1
	localIP                 = "203.0.113.11"                 // to node-2
	externalIP, externalIP6 = "198.51.100.20", "2001:db8::20"
)

// installWorkloads creates the pods and Services of workloads.yaml, writes what a
// cloud would write into the status of load balancers, and waits until all pods
// are ready.
func (r *run) installWorkloads() {
	r.Helper()
	r.kubectl("apply", "-f", filepath.Join(r.root, "test", "e2e", "workloads.yaml"))
	for name, ips := range map[string][]string{"load-balancer": {balancedIP, balancedIP6}, "local": {localIP}} {
		service := r.service(name)
		before := client.MergeFrom(service.DeepCopy())
		service.Status.LoadBalancer.Ingress = nil
		for _, ip := range ips {
			service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
		r.must(r.cluster.Client().Status().Patch(r.ctx, service, before))
	}
	for ip, node := range map[string]int{balancedIP: 0, balancedIP6: 0, localIP: 1, externalIP: 1, externalIP6: 1} {
		r.must(r.cluster.RouteFromOutside(ip, r.cluster.Node(node)))
	}
	r.until(2*time.Minute, "the workloads' pods are ready", func() error { return r.cluster.PodsReady(r.ctx) })
	r.webIsServed()
}

func (r *run) service(name string) *corev1.Service {
	r.Helper()
	service := &corev1.Service{}
	r.must(r.cluster.Client().Get(r.ctx, client.ObjectKey{Namespace: shop, Name: name}, service))
	return service
}

// podsOf are the pods of an app, by node.
func (r *run) podsOf(app string) map[string]corev1.Pod {
	r.Helper()
	pods, err := r.pods(shop, "app="+app)
	r.must(err)
	return pods
}

// clients are the pods from which connections are made, as places, by node.
func (r *run) clients() map[string]*cluster.Place {
	r.Helper()
	places := map[string]*cluster.Place{}
	for node, pod := range r.podsOf("client") {
		place, err := r.cluster.Pod(r.ctx, shop, pod.Name)
		r.must(err)
		r.Cleanup(place.Release)
		places[node] = place
	}
	return places
}

// web are the names of the pods that answer, in the order of the nodes.
func (r *run) web() []string {
	r.Helper()
	pods := r.podsOf("web")
	var names []string
	for _, node := range r.cluster.Nodes() {
		names = append(names, pods[node.Name()].Name)
	}
	return names
}

// steady are connections to Services whose pods nothing happens to, of several
// types, from pods and nodes and from outside, by the rules of each node.
func steady(r *run) []load.Target {
	web, clients, outside := r.web(), r.clients(), r.cluster.Outside()
	plain, sticky := r.service("cluster-ip"), r.service("sticky")
	var targets []load.Target
	add := func(name string, from *cluster.Place, via, network, ip string, port int, servers ...string) {
		targets = append(targets, load.Target{Name: name, From: from, Via: via, Network: network,
			Address: net.JoinHostPort(ip, strconv.Itoa(port)), Servers: servers})
	}
	for _, node := range r.cluster.Nodes() {
		for family, own := range []netip.Addr{node.Address(), node.Address6()} {
			for _, network := range []string{"tcp", "udp"} {
				add("cluster IP", clients[node.Name()], node.Name(), network, plain.Spec.ClusterIPs[family], 80, web...)
				add("node port", outside, node.Name(), network, own.String(), 30080, web...)
			}
			add("cluster IP", node.Place, node.Name(), "tcp", plain.Spec.ClusterIPs[family], 80, web...)
		}
		add("session affinity", clients[node.Name()], node.Name(), "tcp", sticky.Spec.ClusterIP, 80, web...)
	}
	add("load balancer", outside, "node-1", "tcp", balancedIP, 80, web...)
	add("load balancer", outside, "node-1", "tcp", balancedIP6, 80, web...)
	add("local load balancer", outside, "node-2", "tcp", localIP, 80, web[1])
	add("external IP", outside, "node-2", "tcp", externalIP, 80, web...)
	return targets
}

// rolling are connections to a Service whose pods come and go, beside the steady
// ones.
func rolling(r *run) []load.Target {
	targets := steady(r)
	for node, place := range r.clients() {
		for _, network := range []string{"tcp", "udp"} {
			targets = append(targets, load.Target{Name: "pods come and go", From: place, Via: node, Network: network,
				Address: net.JoinHostPort(r.service("rolling").Spec.ClusterIP, "80"), NotHeld: true})
		}
	}
	return targets
}

// withoutNode2 are connections that need nothing of node-2.
func withoutNode2(r *run) []load.Target {
	node, ip := r.cluster.Node(0), r.service("anchored").Spec.ClusterIP
	var targets []load.Target
	for _, network := range []string{"tcp", "udp"} {
		targets = append(targets,
			load.Target{Name: "cluster IP", From: r.clients()[node.Name()], Via: node.Name(), Network: network, Address: ip + ":80", Servers: []string{"anchored"}},
			load.Target{Name: "cluster IP", From: node.Place, Via: node.Name(), Network: network, Address: ip + ":80", Servers: []string{"anchored"}},
			load.Target{Name: "node port", From: r.cluster.Outside(), Via: node.Name(), Network: network, Address: node.Address().String() + ":30082", Servers: []string{"anchored"}})
	}
	return targets
}
