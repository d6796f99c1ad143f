package scenarios

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// The numbers of the rows that are of mode IPVS alone.
const firstIPVSRow, lastIPVSRow = 104, 127

// TestIPVSRows holds the rows of mode IPVS, state and packets.
func TestIPVSRows(t *testing.T) {
	seen := map[int]bool{}
	rows := slices.Concat(nodePortServerRows(), localServerRows(), loadBalancerServerRows(), serverRows(), removalRows(), unmanagedRows())
	for _, r := range rows {
		seen[r.n] = true
		t.Run(r.title(), func(t *testing.T) {
			if len(r.when) == 0 && r.then == nil {
				t.Fatal("nothing is asserted")
			}
			w := newIPVSWorld(t, dataplane.IPv4)
			w.setAddresses(addrs("192.168.0.2", "192.168.1.2")...)
			r.runIn(w)
		})
	}
	for n := firstIPVSRow; n <= lastIPVSRow; n++ {
		if !seen[n] {
			t.Errorf("row %d is missing", n)
		}
	}
	t.Logf("%d situations", len(rows))
}

// nodePortServerRows are about node ports.
func nodePortServerRows() []row {
	two := []string{"R 10.180.0.1", "R fd00::1:1"}
	one4 := func(w *world) { w.setAddresses(addrs("192.168.0.2", "2001:db8::2")...) }
	nodePort := func(eps ...string) []Service { return []Service{{CIP: "172.30.0.41", NP: 3001, Endpoints: eps}} }
	port := func(protocol string, local bool, eps ...string) []Service {
		return []Service{{CIP: "172.30.0.41", NP: 3001, ETPLocal: local, Ports: []string{"p:80/" + protocol}, Endpoints: eps}}
	}
	sctp := []string{"192.168.0.2,sctp:3001", "192.168.1.2,sctp:3001", "192.168.99.11,sctp:3001"}
	return []row{
		{n: 104, given: "endpoints and addresses of both families", setup: one4, svcs: nodePort(two...), then: func(w *world) {
			w.servers("172.30.0.41,tcp:80", "192.168.0.2,tcp:3001")
			w.server("172.30.0.41:80", "rr 10.180.0.1:80")
			w.server("192.168.0.2:3001", "rr 10.180.0.1:80")
		}},
		{n: 105, given: "no endpoints", setup: one4, svcs: nodePort(), when: []when{{"POD NODE EXT", "172.30.0.41:80 192.168.0.2:3001", "REJECT"}},
			then: func(w *world) {
				w.server("172.30.0.41:80", "rr")
				w.server("192.168.0.2:3001", "rr")
			}},
		{n: 106, given: "UDP", svcs: port("UDP", false, "R 10.180.0.1"), when: []when{{EXT, "udp/192.168.0.2:3001 udp/192.168.1.2:3001", "10.180.0.1 +M"}, {EXT, "tcp/192.168.0.2:3001", "PASS"}},
			then: func(w *world) {
				w.entries("KUBE-NODE-PORT-UDP", "3001")
				w.entries("KUBE-NODE-PORT-TCP")
				w.chain("nat", "KUBE-NODE-PORT", "-p udp -m set --match-set KUBE-NODE-PORT-UDP dst -j KUBE-MARK-MASQ")
			}},
		{n: 107, given: "SCTP, three addresses", svcs: port("SCTP", false, "R 10.180.0.1"),
			setup: func(w *world) { w.setAddresses(addresses4...) },
			when:  []when{{EXT, "sctp/192.168.0.2:3001 sctp/192.168.1.2:3001 sctp/192.168.99.11:3001", "10.180.0.1 +M"}},
			then: func(w *world) {
				w.servers("172.30.0.41,sctp:80", "192.168.0.2,sctp:3001", "192.168.1.2,sctp:3001", "192.168.99.11,sctp:3001")
				w.entries("KUBE-NODE-PORT-SCTP-HASH", sctp...)
			}},
		{n: 108, given: "SCTP, policy Local", svcs: port("SCTP", true, "L 10.180.0.1", "R 10.180.1.1"),
			setup: func(w *world) { w.setAddresses(addresses4...) },
			when:  []when{{EXT, "sctp/192.168.0.2:3001", "10.180.0.1 -M"}, {POD, "sctp/172.30.0.41:80", "10.180.0.1 10.180.1.1 -M"}},
			then: func(w *world) {
				w.server("SCTP/172.30.0.41:80", "rr 10.180.0.1:80 10.180.1.1:80")
				w.server("SCTP/192.168.0.2:3001", "rr 10.180.0.1:80")
				w.entries("KUBE-NODE-PORT-SCTP-HASH", sctp...)
				w.entries("KUBE-NODE-PORT-LOCAL-SCTP-HASH", sctp...)
				w.chain("nat", "KUBE-NODE-PORT",
					"-p sctp -m set --match-set KUBE-NODE-PORT-LOCAL-SCTP-HASH dst,dst -j RETURN",
					"-p sctp -m set --match-set KUBE-NODE-PORT-SCTP-HASH dst,dst -j KUBE-MARK-MASQ")
			}},
		{n: 126, given: "no address for node ports; the health-check port is open all the same, unlike with kube-proxy", settings: nodePortCIDRs("10.99.0.0/16"),
			svcs: []Service{{CIP: "172.30.0.41", VIPs: []string{"1.2.3.4"}, NP: 3001, ETPLocal: true, HCNP: 30000, Endpoints: []string{"L 10.180.0.1"}}},
			when: []when{{EXT, "192.168.0.2:30000", "ACCEPT"}, {EXT, "192.168.0.2:3001", "PASS"}},
			then: func(w *world) {
				w.servers("1.2.3.4,tcp:80", "172.30.0.41,tcp:80")
				w.entries("KUBE-HEALTH-CHECK-NODE-PORT", "30000")
				w.entries("KUBE-NODE-PORT-TCP")
			}},
	}
}

// localServerRows are about policy Local.
func localServerRows() []row {
	both := []string{"L 10.180.0.2", "R 10.180.1.2"}
	return []row{
		{n: 109, given: "external IP, policy Local", svcs: []Service{{CIP: "172.30.0.42", XIPs: []string{"192.168.99.22"}, ETPLocal: true, Endpoints: both}},
			when: []when{{"EXT POD", "192.168.99.22:80", "10.180.0.2 -M"}},
			then: func(w *world) {
				w.server("192.168.99.22:80", "rr 10.180.0.2:80")
				w.entries("KUBE-EXTERNAL-IP-LOCAL", "192.168.99.22,tcp:80")
				w.entries("KUBE-EXTERNAL-IP")
			}},
		{n: 110, given: "load-balancer IP, policy Local", svcs: []Service{{CIP: "172.30.0.42", VIPs: []string{"5.6.7.8"}, ETPLocal: true, Endpoints: both}},
			when: []when{{"EXT POD NODE", "5.6.7.8:80", "10.180.0.2 -M"}},
			then: func(w *world) {
				w.server("5.6.7.8:80", "rr 10.180.0.2:80")
				w.entries("KUBE-LOAD-BALANCER", "5.6.7.8,tcp:80")
				w.entries("KUBE-LOAD-BALANCER-LOCAL", "5.6.7.8,tcp:80")
			}},
		{n: 111, given: "both policies Local, a remote endpoint only; from outside dropped, where kube-proxy forwards",
			svcs: []Service{{CIP: "172.30.0.42", VIPs: []string{"5.6.7.8"}, NP: 3002, ETPLocal: true, ITPLocal: true, Endpoints: both[1:]}},
			when: []when{
				{"POD EXT", "172.30.0.42:80", "DROP"},
				{NODE, "172.30.0.42:80", "REJECT"},
				{EXT, "5.6.7.8:80 192.168.0.2:3002 192.168.1.2:3002", "DROP"},
				{POD, "5.6.7.8:80 192.168.0.2:3002 192.168.1.2:3002", "10.180.1.2 -M"},
				{NODE, "5.6.7.8:80 192.168.0.2:3002 192.168.1.2:3002", "10.180.1.2 +M"},
			},
			then: func(w *world) {
				external := []string{"192.168.0.2,tcp:3002", "192.168.1.2,tcp:3002", "5.6.7.8,tcp:80"}
				w.servers(append([]string{"172.30.0.42,tcp:80"}, external...)...)
				w.server("172.30.0.42:80", "rr")
				for _, key := range []string{"5.6.7.8:80", "192.168.0.2:3002", "192.168.1.2:3002"} {
					w.server(key, "rr 10.180.1.2:80")
				}
				w.entries("NODEPROXY-NO-LOCAL", external...)
				w.entries("NODEPROXY-NO-LOCAL-ALL", "172.30.0.42,tcp:80")
				w.removeSlices() // no endpoint anywhere: rejected, not dropped
				w.entries("NODEPROXY-NO-LOCAL")
				w.entries("NODEPROXY-NO-LOCAL-ALL")
				for _, from := range []string{EXT, POD, NODE} {
					w.sees(from, "5.6.7.8:80", "REJECT")
				}
			}},
		{n: 112, given: "internal policy Local, a remote endpoint only", svcs: []Service{{CIP: "172.30.0.43", ITPLocal: true, Endpoints: both[1:]}},
			when: []when{{POD, "172.30.0.43:80", "DROP"}},
			then: func(w *world) {
				w.server("172.30.0.43:80", "rr")
				w.entries("NODEPROXY-NO-LOCAL")
				w.entries("NODEPROXY-NO-LOCAL-ALL", "172.30.0.43,tcp:80")
			}},
		{n: 120, given: "terminating endpoints, policy Local",
			svcs: []Service{{CIP: "172.30.0.42", XIPs: []string{"192.168.99.22"}, ETPLocal: true,
				Endpoints: []string{"L 10.0.1.1 T", "L 10.0.1.2 T", "L 10.0.1.3 X", "R 10.0.1.4 T", "R 10.0.1.5"}}},
			then: func(w *world) {
				w.server("172.30.0.42:80", "rr 10.0.1.5:80")
				w.server("192.168.99.22:80", "rr 10.0.1.1:80 10.0.1.2:80")
			}},
	}
}

// loadBalancerServerRows are about load-balancer IPs.
func loadBalancerServerRows() []row {
	lb := func(vip string, ranges ...string) []Service {
		return []Service{{CIP: "172.30.0.41", VIPs: []string{vip}, Ranges: ranges, Endpoints: []string{"L 10.180.0.1"}}}
	}
	proxied := lb("1.2.3.4")
	proxied[0].Edit = func(o *corev1.Service) {
		mode := corev1.LoadBalancerIPModeProxy
		o.Status.LoadBalancer.Ingress[0].IPMode = &mode
	}
	return []row{
		{n: 113, given: "source ranges without the node", svcs: lb("1.2.3.4", "203.0.113.0/25"),
			when: []when{{EXT, "1.2.3.4:80", "10.180.0.1 +M"}, {"BLK POD NODE", "1.2.3.4:80", "DROP"}},
			then: func(w *world) {
				w.entries("KUBE-LOAD-BALANCER-FW", "1.2.3.4,tcp:80")
				w.entries("KUBE-LOAD-BALANCER-SOURCE-CIDR", "1.2.3.4,tcp:80,203.0.113.0/25")
				w.entries("KUBE-LOAD-BALANCER-SOURCE-IP")
				w.chain("filter", "KUBE-IPVS-OUT-FILTER", "-s 1.2.3.4 -m ipvs --vaddr 1.2.3.4 --vproto tcp --vport 80 -j DROP")
			}},
		{n: 114, given: "source ranges with the node", svcs: lb("1.2.3.4", "203.0.113.0/25", "192.168.0.0/24"),
			when: []when{{"EXT NODE", "1.2.3.4:80", "10.180.0.1 +M"}, {"BLK POD", "1.2.3.4:80", "DROP"}},
			then: func(w *world) {
				w.entries("KUBE-LOAD-BALANCER-SOURCE-IP", "1.2.3.4,tcp:80,1.2.3.4")
				w.chain("filter", "KUBE-IPVS-OUT-FILTER")
			}},
		{n: 115, given: "an address of the node", svcs: lb("192.168.1.2"),
			when: []when{{EXT, "192.168.1.2:80", "10.180.0.1 +M"}, {EXT, "192.168.1.2:22", "PASS"}},
			then: func(w *world) {
				w.server("192.168.1.2:80", "rr 10.180.0.1:80")
				w.isBound("172.30.0.41")
			}},
		{n: 127, given: "mode Proxy of the ingress", svcs: proxied, when: []when{{"POD EXT", "1.2.3.4:80", "PASS"}},
			then: func(w *world) { w.servers("172.30.0.41,tcp:80") }},
	}
}

// serverRows are about what virtual servers are, and their endpoints' states.
func serverRows() []row {
	full := Service{CIP: "172.30.0.41", XIPs: []string{"192.168.99.22"}, VIPs: []string{"1.2.3.4"}, NP: 3001, Endpoints: []string{"L 10.180.0.1"}}
	sticky := full
	sticky.Affinity = 10800 * time.Second
	sticky.Endpoints = []string{"L 10.180.0.1", "R 10.180.1.1", "R 10.180.2.1"}
	everywhere := func(want string) func(*world) {
		return func(w *world) {
			for _, key := range []string{"172.30.0.41:80", "192.168.99.22:80", "1.2.3.4:80", "192.168.0.2:3001", "192.168.1.2:3001"} {
				w.server(key, want)
			}
		}
	}
	return []row{
		{n: 116, given: "affinity", svcs: []Service{sticky}, then: func(w *world) {
			everywhere("rr 0x1 10800 10.180.0.1:80 10.180.1.1:80 10.180.2.1:80")(w)
			w.sees(POD, "172.30.0.41:80", "10.180.0.1 10.180.1.1 10.180.2.1 -M")
			w.opens(POD, "172.30.0.41:80", "10.180.0.1:80")
			w.opens("10.0.0.3", "172.30.0.41:80", "10.180.1.1:80") // the next in turn
			w.sees(POD, "172.30.0.41:80", "10.180.0.1 -M")
			w.ipvs.Pass(3 * time.Hour)
			w.sees(POD, "172.30.0.41:80", "10.180.0.1 10.180.1.1 10.180.2.1 -M")
		}},
		{n: 117, given: "scheduler mh", svcs: []Service{full}, then: everywhere("mh 0x10 10.180.0.1:80"),
			settings: func(s *v1alpha1.ProxySettings) { *s.IPVS.Scheduler = "mh" }},
		{n: 117, given: "scheduler lc and affinity", svcs: []Service{sticky}, then: everywhere("lc 0x1 10800 10.180.0.1:80 10.180.1.1:80 10.180.2.1:80"),
			settings: func(s *v1alpha1.ProxySettings) { *s.IPVS.Scheduler = "lc" }},
		{n: 118, given: "all states, policy Cluster",
			svcs: []Service{{CIP: "172.30.0.41", XIPs: []string{"192.168.99.22"},
				Endpoints: []string{"L 10.0.1.1", "L 10.0.1.2", "L 10.0.1.3 T", "L 10.0.1.4 X", "R 10.0.1.5"}}},
			when: []when{{"10.0.1.2", "172.30.0.41:80", "10.0.1.1 10.0.1.2+M 10.0.1.5 -M"}},
			then: func(w *world) {
				w.server("172.30.0.41:80", "rr 10.0.1.1:80 10.0.1.2:80 10.0.1.5:80")
				w.server("192.168.99.22:80", "rr 10.0.1.1:80 10.0.1.2:80 10.0.1.5:80")
				var want []string
				for n := 1; n <= 4; n++ {
					want = append(want, fmt.Sprintf("10.0.1.%d,tcp:80,10.0.1.%d", n, n))
				}
				w.entries("KUBE-LOOP-BACK", want...)
			}},
		{n: 119, given: "none ready, policy Cluster",
			svcs: []Service{{CIP: "172.30.0.41", XIPs: []string{"192.168.99.22"},
				Endpoints: []string{"L 10.0.1.1 T", "L 10.0.1.2 T", "L 10.0.1.3 X", "R 10.0.1.4 T", "R 10.0.1.5 N"}}},
			then: func(w *world) {
				w.server("172.30.0.41:80", "rr 10.0.1.1:80 10.0.1.2:80 10.0.1.4:80")
				w.server("192.168.99.22:80", "rr 10.0.1.1:80 10.0.1.2:80 10.0.1.4:80")
			}},
		{n: 124, given: "one of two ports goes, then the Service",
			svcs: []Service{{CIP: "172.30.0.41", Ports: []string{"a:80", "b:81"}, Endpoints: []string{"R 10.0.1.1"}}},
			then: func(w *world) {
				w.isBound("172.30.0.41")
				w.Add(Service{CIP: "172.30.0.41", Ports: []string{"a:80"}, Endpoints: []string{"R 10.0.1.1"}})
				w.Sync()
				w.servers("172.30.0.41,tcp:80")
				w.isBound("172.30.0.41")
				w.remove("svc1")
				w.Sync()
				w.servers()
				w.isBound()
			}},
	}
}

// opens opens a connection, which gets the endpoint whose turn it is.
func (w *world) opens(from, to, endpoint string) {
	w.Helper()
	o, err := w.ipvs.Connect(w.packet(from, to))
	if err != nil || o.Endpoint.String() != endpoint {
		w.Errorf("%s → %s: %s, want %s, %v", from, to, o.Endpoint, endpoint, err)
	}
}

// removalRows are about endpoints that go while there are connections.
func removalRows() []row {
	one, two := []string{"R 10.0.1.1"}, []string{"R 10.0.1.1", "R 10.0.1.2"}
	svc := func(protocol string, eps []string) []Service {
		return []Service{{CIP: "172.30.0.41", Ports: []string{"p:80/" + protocol}, Endpoints: eps}}
	}
	// without lets the second endpoint go while it has connections.
	without := func(protocol string, active, inactive int, want string) func(*world) {
		return func(w *world) {
			w.connections(protocol+"/172.30.0.41:80", "10.0.1.2:80", active, inactive)
			w.Add(svc(protocol, one)...)
			w.Sync()
			w.server(protocol+"/172.30.0.41:80", want)
		}
	}
	return []row{
		{n: 121, given: "TCP, active connections", svcs: svc("TCP", two), then: without("TCP", 10, 0, "rr 10.0.1.1:80 10.0.1.2:80=0")},
		{n: 121, given: "TCP, inactive connections", svcs: svc("TCP", two), then: without("TCP", 0, 10, "rr 10.0.1.1:80 10.0.1.2:80=0")},
		{n: 121, given: "TCP, active connections, and it comes back", svcs: svc("TCP", two), then: func(w *world) {
			without("TCP", 10, 0, "rr 10.0.1.1:80 10.0.1.2:80=0")(w)
			w.Add(svc("TCP", two)...)
			w.ipvs.Reset()
			w.Sync()
			w.server("172.30.0.41:80", "rr 10.0.1.1:80 10.0.1.2:80")
			if got := w.ipvs.Writes(); !slices.Equal(got, []string{"ChangeReal 172.30.0.41,tcp:80 10.0.1.2:80 1"}) {
				w.Errorf("written: %q", got)
			}
		}},
		{n: 122, given: "TCP, no connections", svcs: svc("TCP", two), then: without("TCP", 0, 0, "rr 10.0.1.1:80")},
		{n: 122, given: "UDP", svcs: svc("UDP", two), then: without("UDP", 10, 10, "rr 10.0.1.1:80")},
		{n: 122, given: "SCTP", svcs: svc("SCTP", two), then: without("SCTP", 10, 10, "rr 10.0.1.1:80")},
		{n: 123, given: "a restart finds a desired one with weight 0", svcs: svc("TCP", two), then: func(w *world) {
			if err := w.ipvs.ChangeReal(w.key("172.30.0.41:80"), netip.MustParseAddrPort("10.0.1.2:80"), 0); err != nil {
				w.Fatal(err)
			}
			w.restart()
			w.server("172.30.0.41:80", "rr 10.0.1.1:80 10.0.1.2:80")
		}},
		{n: 123, given: "a restart finds one that is not desired, with connections", svcs: svc("TCP", one), then: func(w *world) {
			if err := w.ipvs.AddReal(w.key("172.30.0.41:80"), netip.MustParseAddrPort("10.0.1.2:80"), 0); err != nil {
				w.Fatal(err)
			}
			w.connections("TCP/172.30.0.41:80", "10.0.1.2:80", 1, 0)
			w.restart()
			w.server("172.30.0.41:80", "rr 10.0.1.1:80 10.0.1.2:80=0")
		}},
	}
}

// connections gives a real server connections.
func (w *world) connections(key, real string, active, inactive int) {
	w.Helper()
	w.drains = true
	if err := w.ipvs.SetConnections(w.key(key), netip.MustParseAddrPort(real), active, inactive); err != nil {
		w.Fatal(err)
	}
}

// restart starts the agent anew.
func (w *world) restart() {
	w.plane, w.Full = w.newPlane(), true
	w.Sync()
}

// unmanagedRows are about virtual servers that are not ours.
func unmanagedRows() []row {
	unmanaged := []string{"3.3.3.3:80", "4.4.4.4:80", "5.5.5.5:80"}
	add := func(w *world, keys ...string) {
		for _, key := range keys {
			if err := w.ipvs.AddServer(w.key(key), ipvs.Server{Scheduler: "wlc"}); err != nil {
				w.Fatal(err)
			}
		}
	}
	return []row{
		{n: 125, given: "one is ours and stale, others are unmanaged; all of them stay, where kube-proxy keeps excluded ones",
			svcs:     []Service{{CIP: "172.30.0.41", Endpoints: []string{"R 10.0.1.1"}}},
			settings: func(s *v1alpha1.ProxySettings) { s.IPVS.ExcludeCIDRs = []string{"3.3.3.0/24", "4.4.4.0/24"} },
			setup: func(w *world) {
				add(w, append(unmanaged, "6.6.6.6:80")...)
				for _, step := range []error{w.ipvs.CreateDevice(), w.ipvs.Bind(addrs("6.6.6.6")[0]), w.ipvs.Bind(addrs("3.3.3.3")[0])} {
					if step != nil {
						w.Fatal(step)
					}
				}
			},
			then: func(w *world) {
				for _, key := range unmanaged {
					w.server(key, "wlc")
				}
				w.server("6.6.6.6:80", "")
				w.sees(EXT, "6.6.6.6:80", "PASS")
			}},
		{n: 125, given: "an unmanaged one is where one of ours is needed",
			svcs: []Service{
				{Name: "hindered", CIP: "172.30.0.41", VIPs: []string{"5.5.5.5"}, Endpoints: []string{"R 10.0.1.1"}},
				{Name: "other", CIP: "172.30.0.42", Endpoints: []string{"R 10.0.1.2"}},
			},
			setup: func(w *world) {
				add(w, "5.5.5.5:80")
				w.mayReject = true
			},
			when: []when{{POD, "172.30.0.42:80", "10.0.1.2 -M"}},
			then: func(w *world) {
				w.server("5.5.5.5:80", "wlc")
				why := w.rejected[dataplane.ServiceName{Namespace: "ns1", Name: "hindered"}]
				if !strings.Contains(why, "5.5.5.5") || len(w.rejected) != 1 {
					w.Errorf("rejected: %q", w.rejected)
				}
			}},
	}
}
