package scenarios

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// noEndpointRows are about a Service without endpoints.
func noEndpointRows() []row {
	const np = "192.168.0.2:3001"
	lb := func(eps ...string) Service {
		return Service{CIP: "172.30.0.41", XIPs: []string{"192.168.99.11"}, VIPs: []string{"1.2.3.4"}, NP: 3001, Endpoints: eps}
	}
	ranged := lb()
	ranged.Ranges = []string{"203.0.113.0/25"}
	return []row{
		{
			n: 17, given: "external and load-balancer IP", svcs: []Service{lb()},
			when: []when{{EXT, "192.168.99.11:80", "REJECT"}, {"POD EXT", "1.2.3.4:80", "REJECT"}},
		},
		{n: 18, given: "node port", svcs: []Service{lb()}, when: []when{{"POD NODE EXT", np, "REJECT"}}},
		{n: 19, given: "node port on another address", svcs: []Service{lb()}, when: []when{{EXT, "192.168.1.2:3001", "REJECT"}}},
		{n: 20, given: "node port on localhost", svcs: []Service{lb()}, when: []when{{LO, "127.0.0.1:3001", "REJECT"}}},
		{
			n: 21, given: "node port on an address that is left out", svcs: []Service{lb()}, settings: nodePortCIDRs("192.168.0.0/24"),
			when: []when{{EXT, "192.168.1.2:3001", "REJECT"}},
		},
		{n: 22, given: "source ranges, allowed", svcs: []Service{ranged}, when: []when{{EXT, "1.2.3.4:80", "REJECT"}}},
		{
			// A process on the node gets no answer from the node where it does not
			// hold the address: rules for such traffic stand in INPUT and FORWARD, as
			// kube-proxy's do.
			n: 23, given: "source ranges, not allowed", svcs: []Service{ranged},
			when: []when{{"BLK POD", "1.2.3.4:80", "REJECT"}, {NODE, "1.2.3.4:80", "PASS"}},
		},
		{
			n: 23, given: "source ranges, not allowed, the node has the address", svcs: []Service{ranged},
			setup: func(w *world) { w.setAddresses(append(addrs("1.2.3.4"), addresses4...)...) },
			when:  []when{{"BLK POD NODE", "1.2.3.4:80", "REJECT"}},
		},
		{
			n: 24, given: "all endpoints have ended", svcs: []Service{lb("L 10.180.0.1 X", "R 10.180.1.1 X")},
			when: []when{{POD, "172.30.0.41:80", "REJECT"}, {EXT, "1.2.3.4:80", "REJECT"}},
		},
	}
}

// externalClusterRows are about external traffic policy Cluster.
func externalClusterRows() []row {
	const external = "192.168.99.11:80 1.2.3.4:80 192.168.0.2:3001"
	lb := []Service{{
		CIP: "172.30.0.41", XIPs: []string{"192.168.99.11"}, VIPs: []string{"1.2.3.4"}, NP: 3001,
		Endpoints: []string{"R 10.180.0.1", "L 10.180.2.1"},
	}}
	all := "10.180.0.1 10.180.2.1 +M"
	return []row{
		{n: 25, given: "a pod, by cluster IP", svcs: lb, when: []when{{POD, "172.30.0.41:80", "10.180.0.1 10.180.2.1 -M"}}},
		{n: 26, given: "a pod", svcs: lb, when: []when{{POD, external, all}}},
		{n: 27, given: "from outside", svcs: lb, when: []when{{EXT, external, all}}},
		{n: 28, given: "the node", svcs: lb, when: []when{{NODE, "1.2.3.4:80 192.168.0.2:3001", all}}},
		{n: 29, given: "localhost", svcs: lb, when: []when{{LO, "127.0.0.1:3001", all}}},
	}
}

// externalLocalRows are about external traffic policy Local.
func externalLocalRows() []row {
	const (
		cip, vip, np, xip = "172.30.0.42:80", "5.6.7.8:80", "192.168.0.2:3002", "192.168.99.22:80"
		local             = "10.180.0.2"
		remote            = "10.180.1.2"
		external          = vip + " " + np + " " + xip
	)
	lb := func(eps ...string) []Service {
		return []Service{{
			CIP: "172.30.0.42", VIPs: []string{"5.6.7.8"}, XIPs: []string{"192.168.99.22"}, NP: 3002, ETPLocal: true, Endpoints: eps,
		}}
	}
	l, r := "L "+local, "R "+remote
	all := local + " " + remote
	return []row{
		{n: 30, given: "both, a pod by cluster IP", svcs: lb(l, r), when: []when{{POD, cip, all + " -M"}}},
		{n: 31, given: "both, others by cluster IP", svcs: lb(l, r), when: []when{{"NODE EXT", cip, all + " +M"}}},
		{n: 32, given: "both, a pod", svcs: lb(l, r), when: []when{{POD, external, all + " -M"}}},
		{n: 33, given: "both, from outside", svcs: lb(l, r), when: []when{{EXT, external, local + " -M"}}},
		{n: 34, given: "both, the node", svcs: lb(l, r), when: []when{{NODE, vip + " " + np, all + " +M"}}},
		{n: 35, given: "both, localhost", svcs: lb(l, r), when: []when{{LO, "127.0.0.1:3002", all + " +M"}}},
		{n: 36, given: "both, no way to recognize pods", svcs: lb(l, r), settings: noDetector, when: []when{{POD, vip + " " + np, local + " -M"}}},
		{
			n: 37, given: "both, masquerade all", svcs: lb(l, r), settings: masqueradeAll,
			when: []when{{POD, vip, all + " -M"}, {EXT, vip, local + " -M"}},
		},
		{n: 38, given: "both, an endpoint reaches itself", svcs: lb(l, r), when: []when{{local, vip, local + "+M " + remote + " -M"}}},
		{n: 39, given: "a remote one, a pod", svcs: lb(r), when: []when{{POD, vip + " " + np, remote + " -M"}}},
		{n: 40, given: "a remote one, the node", svcs: lb(r), when: []when{{NODE, vip + " " + np, remote + " +M"}}},
		{n: 41, given: "a remote one, from outside", svcs: lb(r), when: []when{{EXT, external, "DROP"}}},
		{n: 42, given: "a remote one, no way to recognize pods", svcs: lb(r), settings: noDetector, when: []when{{POD, vip + " " + np, "DROP"}}},
		{n: 43, given: "a remote one, no way to recognize pods, the node", svcs: lb(r), settings: noDetector, when: []when{{NODE, vip, remote + " +M"}}},
		{
			n: 44, given: "type ClusterIP with external IP, a remote one",
			svcs: []Service{{CIP: "172.30.0.42", XIPs: []string{"192.168.99.22"}, ETPLocal: true, Endpoints: []string{r}}},
			when: []when{{EXT, xip, "DROP"}, {POD, xip, remote + " -M"}},
		},
		{
			n: 45, given: "type ClusterIP without external IP is taken as policy Cluster",
			svcs: []Service{{
				CIP: "172.30.0.42", VIPs: []string{"5.6.7.8"}, NP: 3002, ETPLocal: true, Endpoints: []string{r},
				Edit: func(o *corev1.Service) { o.Spec.Type = corev1.ServiceTypeClusterIP },
			}},
			when: []when{{EXT, vip + " " + np, remote + " +M"}},
		},
	}
}

// sourceRangeRows are about source ranges of load balancers.
func sourceRangeRows() []row {
	const vips = "1.2.3.4:80 5.6.7.8:80"
	one := []string{"L 10.180.0.1"}
	lb := func(local bool, eps []string, ranges ...string) []Service {
		return []Service{{
			CIP: "172.30.0.41", VIPs: []string{"1.2.3.4", "5.6.7.8"}, NP: 3001, ETPLocal: local, Endpoints: eps, Ranges: ranges,
		}}
	}
	usual := lb(false, one, "192.168.0.0/24", " 203.0.113.0/25")
	l, r := "L 10.180.0.1", "R 10.180.1.1"
	const open = "10.180.0.1 +M"
	ingress := func(mode corev1.LoadBalancerIPMode) []Service {
		return []Service{{
			CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, NP: 3001, Endpoints: one,
			Edit: func(o *corev1.Service) { o.Status.LoadBalancer.Ingress[0].IPMode = &mode },
		}}
	}
	return []row{
		{n: 69, given: "cluster IP", svcs: usual, when: []when{{POD, "172.30.0.41:80", "10.180.0.1 -M"}}},
		{n: 70, given: "node port, allowed source", svcs: usual, when: []when{{EXT, "192.168.0.2:3001", open}}},
		{n: 71, given: "node port, another source", svcs: usual, when: []when{{BLK, "192.168.0.2:3001", open}}},
		{n: 72, given: "allowed", svcs: usual, when: []when{{"EXT NODE", vips, open}}},
		{n: 73, given: "not allowed", svcs: usual, when: []when{{"BLK POD", vips, "DROP"}}},
		{
			n: 74, given: "the node has the address and chooses it as source", svcs: usual,
			setup: func(w *world) { w.setAddresses(append(addresses4, addrs("1.2.3.4", "5.6.7.8")...)...) },
			when:  []when{{"1.2.3.4", "1.2.3.4:80", open}, {"5.6.7.8", "5.6.7.8:80", open}},
		},
		{
			n: 75, given: "the node is outside of the ranges", svcs: lb(false, one, "203.0.113.0/25"),
			setup: func(w *world) { w.setAddresses(append(addresses4, addrs("1.2.3.4")...)...) },
			when:  []when{{NODE, vips, "DROP"}, {"1.2.3.4", "1.2.3.4:80", "DROP"}},
		},
		{
			n: 76, given: "policy Local, pods allowed", svcs: lb(true, []string{l, r}, "203.0.113.0/25", "10.0.0.0/8"),
			when: []when{{POD, vips, "10.180.0.1 10.180.1.1 -M"}, {EXT, vips, "10.180.0.1 -M"}, {NODE, vips, "DROP"}},
		},
		{
			n: 77, given: "policy Local, the node allowed, a remote endpoint", svcs: lb(true, []string{r}, "192.168.0.0/24", "203.0.113.0/25"),
			when: []when{{NODE, vips, "10.180.1.1 +M"}, {"EXT POD", vips, "DROP"}},
		},
		{n: 78, given: "ranges of the other family", only4: true, svcs: lb(false, one, "2001:db8::/32"), when: []when{{BLK, vips, open}}},
		{n: 78, given: "ranges that cannot be read", svcs: lb(false, one, "everybody", "300.0.0.0/8"), when: []when{{BLK, vips, open}}},
		{n: 78, given: "one of the ranges is everything", svcs: lb(false, one, "10.1.0.0/16", "0.0.0.0/0"), when: []when{{BLK, vips, open}}},
		{
			n: 79, given: "mode Proxy of the ingress", svcs: ingress(corev1.LoadBalancerIPModeProxy),
			when: []when{{"POD EXT", "1.2.3.4:80", "PASS"}},
			then: func(w *world) { w.holds("1.2.3.4", false) },
		},
		{
			n: 79, given: "mode VIP of the ingress", svcs: ingress(corev1.LoadBalancerIPModeVIP),
			when: []when{{"POD EXT", "1.2.3.4:80", open}},
			then: func(w *world) { w.holds("-d 1.2.3.4 ", true) },
		},
	}
}

// nodePortRows are about the addresses that node ports answer on.
func nodePortRows() []row {
	const firewall = "block incoming localnet connections"
	nodePort := []Service{{CIP: "172.30.0.41", NP: 3001, Endpoints: []string{"R 10.180.0.1", "L 10.180.2.1"}}}
	nodePort6 := []Service{{CIP: "fd00:30::41", NP: 3001, Endpoints: []string{"R fd00::1:1", "L fd00::1:2"}}}
	all, all6 := "10.180.0.1 10.180.2.1 +M", "fd00::1:1 fd00::1:2 +M"
	onNode := "192.168.0.2:3001 192.168.1.2:3001"
	v6 := []when{{EXT, "[2001:db8::2]:3001 [2001:db8:1::2]:3001", all6}, {LO, "[::1]:3001", "PASS"}}
	health := func(w *world) {
		clear(w.services)
		w.Sync()
		w.sees("1.2.3.4", "192.168.0.2:30000", "PASS")
	}
	return []row{
		{
			n: 80, given: "all addresses", only4: true, svcs: nodePort, when: []when{{EXT, onNode, all}, {LO, "127.0.0.1:3001", all}},
			then: func(w *world) {
				w.holds(firewall, true)
				if w.ipvs == nil && w.nft == nil { // elsewhere nothing lets such packets in
					w.sees(EXT, "127.0.0.1:22", "DROP")
				}
			},
		},
		{
			n: 81, given: "all addresses but localhost", svcs: nodePort, settings: noLocalhost,
			when: []when{{EXT, onNode, all}, {LO, "127.0.0.1:3001", "PASS"}},
			then: func(w *world) { w.holds(firewall, false) },
		},
		{
			n: 82, given: "one range and localhost, which is off", svcs: nodePort,
			settings: both(nodePortCIDRs("192.168.0.0/24", "127.0.0.1/32"), noLocalhost),
			when:     []when{{EXT, "192.168.0.2:3001", all}, {EXT, "192.168.1.2:3001", "PASS"}, {LO, "127.0.0.1:3001", "PASS"}},
		},
		{
			n: 83, given: "two ranges", svcs: nodePort,
			settings: both(nodePortCIDRs("192.168.0.0/24", "192.168.1.0/24", "2001:db8::/64"), noLocalhost),
			when:     []when{{EXT, onNode, all}},
		},
		{n: 84, given: "IPv6, localhost on", ipv6: true, svcs: nodePort6, when: v6},
		{n: 84, given: "IPv6, localhost off", ipv6: true, svcs: nodePort6, settings: noLocalhost, when: v6},
		{
			n: 85, given: "IPv6, one range", ipv6: true, svcs: nodePort6, settings: nodePortCIDRs("192.168.0.0/24", "2001:db8::/64"),
			when: []when{{EXT, "[2001:db8::2]:3001", all6}, {EXT, "[2001:db8:1::2]:3001", "PASS"}},
		},
		// The next three are of nftables, whose default is the primary address. Given
		// to mode IPTables, the same settings do the same, but for localhost.
		{
			n: 86, given: "primary address, as is the default of nftables", svcs: nodePort, settings: primary,
			when: []when{{EXT, "192.168.0.2:3001", all}, {EXT, "192.168.1.2:3001", "PASS"}, {LO, "127.0.0.1:3001", "PASS"}},
		},
		{
			n: 87, given: "two ranges, localhost on", svcs: nodePort, settings: nodePortCIDRs("192.168.0.0/24", "192.168.1.0/24"),
			when: []when{{EXT, onNode, all}, {LO, "127.0.0.1:3001", "PASS"}},
		},
		{
			n: 88, given: "all addresses, where nftables leaves out localhost", svcs: nodePort,
			settings: func(s *v1alpha1.ProxySettings) { *s.NodePorts.AddressMode = v1alpha1.NodePortsAll },
			when:     []when{{EXT, "192.168.1.2:3001 192.168.99.11:3001", all}, {LO, "127.0.0.1:3001", all}},
		},
		{
			n: 89, given: "health-check port, then the Service is deleted", settings: nodePortCIDRs("127.0.0.0/8"),
			svcs: []Service{{CIP: "172.30.0.41", NP: 3001, ETPLocal: true, HCNP: 30000}},
			when: []when{{"1.2.3.4", "192.168.0.2:30000", "ACCEPT"}},
			then: health,
		},
	}
}
