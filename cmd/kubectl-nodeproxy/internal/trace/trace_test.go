package trace

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

var now = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// objects are those of a cluster of two nodes, with the Services shop/web of both families,
// on ports 80 and 53, and shop/empty without endpoints.
func objects() *cluster.Objects {
	o := &cluster.Objects{Time: now, Docs: "v0.1.0"}
	for _, n := range []struct {
		name      string
		addresses []string
		pods      []string
	}{
		{"node-1", []string{"192.0.2.21", "2001:db8::21"}, []string{"10.244.1.0/24", "fd00:1::/64"}},
		{"node-2", []string{"192.0.2.22"}, []string{"10.244.2.0/24"}},
	} {
		r := v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
		r.Spec.FormatVersion = v1alpha1.FormatVersion
		r.Spec.Settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNodeCIDR}
		r.Spec.Node = v1alpha1.NodeFacts{Addresses: n.addresses, PodCIDRs: n.pods}
		r.Status = v1alpha1.NodeProxyRulesStatus{
			Mode: v1alpha1.ModeIPTables, Families: []string{"IPv4", "IPv6"},
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue}},
		}
		o.NodeRules = append(o.NodeRules, r)
	}
	ready := func(addresses ...string) []v1alpha1.EndpointGroup {
		return []v1alpha1.EndpointGroup{{State: v1alpha1.EndpointReady, Addresses: addresses}}
	}
	o.ServiceRules = []v1alpha1.ServiceProxyRules{
		{ObjectMeta: metav1.ObjectMeta{Name: "shop.empty"}, Spec: v1alpha1.ServiceProxyRulesSpec{
			FormatVersion: v1alpha1.FormatVersion, ClusterIPs: []string{"10.96.0.20"},
			Ports: []v1alpha1.ServicePort{{Protocol: v1alpha1.ProtocolTCP, Port: 80}},
		}},
		{ObjectMeta: metav1.ObjectMeta{Name: "shop.web"}, Spec: v1alpha1.ServiceProxyRulesSpec{
			FormatVersion: v1alpha1.FormatVersion, ClusterIPs: []string{"fd00:96::10", "10.96.0.10"},
			SessionAffinity: &v1alpha1.SessionAffinity{ClientIPTimeoutSeconds: 600},
			Ports: []v1alpha1.ServicePort{
				{Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80, NodePort: 30080, Endpoints: ready("10.244.1.5:8080", "[fd00:1::5]:8080")},
				{Name: "dns", Protocol: v1alpha1.ProtocolUDP, Port: 53, Endpoints: ready("10.244.1.5:53")},
			},
		}},
	}
	pod := func(name, node string, edit func(*corev1.Pod), ips ...string) {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
		p.Spec.NodeName, p.Status.Phase = node, corev1.PodRunning
		for _, ip := range ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		if edit != nil {
			edit(&p)
		}
		o.Pods = append(o.Pods, p)
	}
	pod("cart", "node-1", nil, "10.244.1.9", "fd00:1::9")
	pod("old", "node-2", nil, "10.244.2.9")
	pod("done", "node-1", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "10.244.1.8")
	pod("new", "", func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending })
	pod("agent", "node-1", func(p *corev1.Pod) { p.Spec.HostNetwork = true }, "192.0.2.21")
	o.EndpointSlices = []discoveryv1.EndpointSlice{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses: []string{"10.244.1.5"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "web-0"},
		}},
	}}
	return o
}

// ask returns what the table of a question shows, or the error.
func ask(t *testing.T, o *cluster.Objects, node, from, to string) string {
	t.Helper()
	r, err := Of(t.Context(), o, Question{Node: node, From: from, To: to, Namespace: "shop"})
	if err != nil {
		return "error: " + err.Error()
	}
	var out bytes.Buffer
	if err := r.Table(&out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// TestNames: the names that --from and --to accept.
func TestNames(t *testing.T) {
	for _, c := range []struct{ node, from, to, first, also string }{
		{"", "cart", "web:http", "cart (fd00:1::9, a pod on node-1) → [fd00:96::10]:80/tcp (cluster IP of shop/web:http), mode IPTables", "[fd00:1::5]:8080"},
		{"", "shop/old", "shop/web:80", "shop/old (10.244.2.9, a pod on node-2) → 10.96.0.10:80/tcp (cluster IP of shop/web:http)", "10.244.1.5:8080 (shop/web-0)"},
		{"node-1", "10.244.1.9", "10.96.0.10:53/udp", "10.244.1.9 (a pod on node-1) → 10.96.0.10:53/udp (cluster IP of shop/web:dns)", "100%    preserved   KUBE-SERVICES"},
		{"node-1", "10.244.1.9", "web:53", "10.244.1.9 (a pod on node-1) → 10.96.0.10:53/udp (cluster IP of shop/web:dns)", "Session affinity: a client keeps its endpoint until it has been idle for 600 s"},
		{"", "cart", "empty", "cart (10.244.1.9, a pod on node-1) → 10.96.0.20:80/tcp (cluster IP of shop/empty)", "REJECT: shop/empty has no endpoint"},
		{"", "cart", "empty/tcp", "cart (10.244.1.9, a pod on node-1) → 10.96.0.20:80/tcp (cluster IP of shop/empty)", "by: -t filter -A KUBE-SERVICES"},
		{"", "cart", "empty:81", "cart (10.244.1.9, a pod on node-1) → 10.96.0.20:81/tcp (not a Service)", "PASS: 10.96.0.20 is the cluster IP of shop/empty, which does not have port 81/TCP"},
		{"", "agent", "empty", "agent (192.0.2.21, a process on node-1)", "REJECT"},
		{"", "cart", "old:8080", "cart (10.244.1.9, a pod on node-1) → 10.244.2.9:8080/tcp (not a Service)", "PASS"},
		{"", "pod/shop/old", "pod/shop/cart:53/udp", "pod/shop/old (10.244.2.9, a pod on node-2) → 10.244.1.9:53/udp (not a Service)", "PASS"},
		{"", "node/node-1", "svc/shop/web:http", "node/node-1 (2001:db8::21, a process on node-1) → [fd00:96::10]:80/tcp (cluster IP of shop/web:http)", ""},
		{"", "node/node-1", "node/node-1:30080", "node/node-1 (192.0.2.21, a process on node-1) → 192.0.2.21:30080/tcp (node port of shop/web:http)", ""},
		{"", "node-1", "node-1:30080", "node-1 (192.0.2.21, a process on node-1) → 192.0.2.21:30080/tcp (node port of shop/web:http)", "masqueraded"},
		{"node-1", "203.0.113.9", "node-1:30080/TCP", "203.0.113.9 (outside node-1) → 192.0.2.21:30080/tcp (node port of shop/web:http)", "masqueraded"},
		{"node-1", "[2001:db8::9]", "[2001:db8::21]:30080", "[2001:db8::9] (2001:db8::9, outside node-1) → [2001:db8::21]:30080/tcp (node port of shop/web:http)", "[fd00:1::5]:8080"},
		{"", "node-2", "node-1:30080", "node-2 (192.0.2.22, a process on node-2) → 192.0.2.21:30080/tcp (not a Service)", "! 192.0.2.21 is an address of node-1: --node node-1 --from 192.0.2.22"},
		{"node-1", "old", "empty", "old (10.244.2.9, outside node-1)", "! old is on node-2, whose rules apply first"},
		{"node-1", "node-2", "empty", "node-2 (192.0.2.22, outside node-1)", "! node-2 is on node-2, whose rules apply first"},
		{"node-1", "10.96.0.20", "web:http", "10.96.0.20 (outside node-1) → 10.96.0.10:80/tcp", "! 10.96.0.20 is the cluster IP of shop/empty, and no packet has that source"},
	} {
		got := ask(t, objects(), c.node, c.from, c.to)
		if !strings.HasPrefix(got, c.first) || !strings.Contains(got, c.also) {
			t.Errorf("--node %q --from %s --to %s:\n%s\nwant %s … %s", c.node, c.from, c.to, got, c.first, c.also)
		}
	}
}

// TestLookups: in mode NFTables, what maps and sets have is printed.
func TestLookups(t *testing.T) {
	o := objects()
	o.NodeRules[0].Status.Mode = v1alpha1.ModeNFTables
	got := ask(t, o, "node-1", "203.0.113.9", "10.96.0.10:80")
	for _, want := range []string{
		"map service-ips → cluster-affine-1 → pick-affine-1 → pick-1 → map endpoints → 10.244.1.5:8080", "LOOKUPS\n",
		"map service-ips: 10.96.0.10 . tcp . 80 -> goto cluster-affine-1\n",
		"map affinity: 203.0.113.9 . 10.96.0.10 . tcp . 80 -> not found\n",
		"map endpoints: 10.96.0.10 . tcp . 80 . 0 -> 10.244.1.5 . 8080\n",
		"set affine-600: 10.96.0.10 . tcp . 80 -> found\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got\n%s\nwithout %q", got, want)
		}
	}
	if got := ask(t, o, "", "cart", "empty"); !strings.Contains(got, "by: table ip nodeproxy, chain no-endpoints: meta l4proto tcp reject with tcp reset") {
		t.Errorf("got\n%s", got)
	}
}

// TestByAgent: a note states that the agent chooses the endpoint, wherever it does.
func TestByAgent(t *testing.T) {
	wholeNode := func(o *cluster.Objects) { o.NodeRules[0].Spec.Settings.Mode = new(v1alpha1.ModeUserspace) }
	for name, c := range map[string]struct {
		edit func(*cluster.Objects)
		to   string
		want bool
	}{
		"served by the kernel":      {func(*cluster.Objects) {}, "10.96.0.10:80", false},
		"a Service by itself":       {func(o *cluster.Objects) { o.ServiceRules[1].Spec.Serving = v1alpha1.ServingUserspace }, "10.96.0.10:80", true},
		"UDP":                       {wholeNode, "10.96.0.10:53/udp", true},
		"a whole node":              {wholeNode, "10.96.0.10:80", true},
		"SCTP":                      {wholeNode, "10.96.0.10:90/sctp", false},
		"a Service of no endpoints": {wholeNode, "10.96.0.20:80", false},
		"no Service":                {wholeNode, "192.0.2.99:80", false},
	} {
		o := objects()
		web := &o.ServiceRules[1].Spec
		web.Ports = append(web.Ports, v1alpha1.ServicePort{Name: "sctp", Protocol: v1alpha1.ProtocolSCTP, Port: 90, Endpoints: web.Ports[0].Endpoints})
		c.edit(o)
		const note = "! the kernel redirects the connection to the agent, which chooses among these endpoints"
		if got := ask(t, o, "node-1", "10.244.1.9", c.to); strings.Contains(got, note) != c.want || strings.HasPrefix(got, "error") {
			t.Errorf("%s: want the note: %t\n%s", name, c.want, got)
		}
	}
}

// TestBadInput: each error is one line with a remedy.
func TestBadInput(t *testing.T) {
	for _, c := range []struct{ node, from, to, want string }{
		{"", "10.244.1.9", "web:80", "--node is missing: specify the node at which the packet from 10.244.1.9 arrives"},
		{"node-3", "10.244.1.9", "web:80", `there is no node "node-3" with NodeProxyRules: did you mean node-1 or node-2? (kubectl get nodeproxyrules lists the nodes)`},
		{"", "crt", "web:80", "--from: there is neither a node crt nor a pod shop/crt: did you mean shop/cart"},
		{"", "away/cart", "web:80", "--from: there is no pod away/cart"},
		{"", "a/b/c", "web:80", `--from "a/b/c": use an address, a node, or a pod as NAMESPACE/POD`},
		{"", "done", "web:80", "the pod shop/done has finished (Succeeded): it sends no packets"},
		{"", "new", "web:80", "the pod shop/new is not scheduled to a node yet (it is Pending): kubectl describe pod -n shop new"},
		{"node-1", "0.0.0.0", "web:80", `--from "0.0.0.0" is the unspecified address, which cannot send packets: use the address of the sender`},
		{"node-1", "[::]", "web:80", `--from "[::]" is the unspecified address`},
		{"node-1", "224.0.0.1", "web:80", `--from "224.0.0.1" is a multicast address`},
		{"node-1", "ff02::1", "web:80", `--from "ff02::1" is a multicast address`},
		{"node-1", "255.255.255.255", "web:80", `--from "255.255.255.255" is the broadcast address`},
		{"node-1", "::ffff:255.255.255.255", "web:80", `--from "::ffff:255.255.255.255" is the broadcast address`},
		{"", "cart", "wab", "--to: no Service shop/wab is proxied, and there is neither a node wab nor such a pod: did you mean shop/web"},
		{"", "cart", "web", `--to "web" does not specify one of the ports of the Service: 80/tcp (http), 53/udp (dns)`},
		{"", "cart", "web:https", `--to "web:https" does not specify one of the ports of the Service: 80/tcp (http), 53/udp (dns)`},
		{"", "cart", "10.96.0.10", `--to "10.96.0.10" has no port`},
		{"", "cart", "fd00:96::10", `--to "fd00:96::10" has no port (put an IPv6 address in brackets before it)`},
		{"", "cart", "10.96.0.10:0", `--to "10.96.0.10:0": 0 is not a port`},
		{"", "cart", "10.96.0.10:70000", `--to "10.96.0.10:70000": 70000 is not a port, which is a number from 1 to 65535: `},
		{"", "cart", "[fd00:96::10]:70000", `--to "[fd00:96::10]:70000": 70000 is not a port`},
		{"", "cart", "pod/done:80", "the pod shop/done has finished (Succeeded): it accepts no connections"},
		{"", "cart", "pod/cart:http", `--to "pod/cart:http": "http" is not a port of a pod`},
		{"", "cart", "pod/away/cart:80", "--to: there is no pod away/cart"},
		{"", "cart", "node/shop/web:80", `--to: there is no node "shop/web" with NodeProxyRules`},
		{"", "cart", "svc/cart:80", "--to: no Service shop/cart is proxied"},
		{"", "svc/web", "web:80", `--from "svc/web": a Service sends no packets`},
		{"", "node/cart", "web:80", `--from: there is no node "cart" with NodeProxyRules`},
		{"", "pod/node-1", "web:80", "--from: there is neither a node node-1 nor a pod shop/node-1"},
		{"", "cart", "10.96.0.10:80/icmp", `--to "10.96.0.10:80/icmp": the protocol "icmp" is not tcp, udp or sctp`},
		{"", "cart", "node-1", `--to "node-1" has no port: use IP:PORT, NODE:NODEPORT`},
		{"", "cart", "node/node-1:", `--to "node/node-1:" has no port: use `},
		{"", "cart", "pod/cart", `--to "pod/cart" has no port: use `},
		{"", "cart", "shop/old/udp", `--to "shop/old/udp" has no port: use `},
		{"", "cart", "node-1:70000", `--to "node-1:70000": "70000" is not a node port of node node-1`},
		{"", "cart", "/:80", `--to "/:80": use IP:PORT, NODE:NODEPORT, NAMESPACE/SERVICE:PORT or NAMESPACE/POD:PORT`},
		{"", "old", "[fd00:96::10]:80", "old and [fd00:96::10]:80 are of different IP families: 10.244.2.9, and fd00:96::10"},
		{"", "node-2", "[fd00:96::10]:80", "node-2 and [fd00:96::10]:80 are of different IP families: 192.0.2.22, and fd00:96::10"},
	} {
		got := ask(t, objects(), c.node, c.from, c.to)
		if !strings.HasPrefix(got, "error: "+c.want) || strings.Contains(got, "\n") {
			t.Errorf("--node %q --from %s --to %s:\n%s\nwant %s", c.node, c.from, c.to, got, c.want)
		}
	}
}

// TestNoNodes: without rules of nodes, the error is the same for all names.
func TestNoNodes(t *testing.T) {
	o := objects()
	o.NodeRules = nil
	const why = "no node has NodeProxyRules yet: check NodeProxy and the controller with kubectl nodeproxy status"
	for _, c := range []struct{ node, from, to, want string }{
		{"node-1", "203.0.113.9", "node-1:30080", `error: there is no node "node-1": ` + why},
		{"", "cart", "web:http", "error: " + why},
	} {
		if got := ask(t, o, c.node, c.from, c.to); got != c.want {
			t.Errorf("--node %q --from %s --to %s:\n%s\nwant %s", c.node, c.from, c.to, got, c.want)
		}
	}
}

// TestOddObjects: incomplete, unknown and unreadable objects are reported.
func TestOddObjects(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*cluster.Objects)
		want string
	}{
		"rules of an unknown format": {
			func(o *cluster.Objects) { o.NodeRules[0].Spec.FormatVersion = 99 },
			"error: NodeProxyRules node-1: format 99 needs a newer release than this plugin, v0.1.0, which supports formats up to 2",
		},
		"incomplete rules": {
			func(o *cluster.Objects) { o.NodeRules[0].Spec = v1alpha1.NodeProxyRulesSpec{} },
			"error: the desired rules of the node cannot be computed: NodeProxyRules node-1: spec.formatVersion 0 is no format: the first is 1",
		},
		"an agent that is too old": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Agent = &v1alpha1.AgentReport{Version: "v0.0.1", FormatVersions: []int32{0}}
			},
			"error: the agent v0.0.1 of node node-1 is too old for its NodeProxyRules",
		},
		"a Service without cluster IP": {
			func(o *cluster.Objects) { o.ServiceRules[1].Spec.ClusterIPs = []string{"nonsense"} },
			"error: the ServiceProxyRules shop.web have no usable cluster IP",
		},
		"a Service of an unknown format": {
			func(o *cluster.Objects) { o.ServiceRules[1].Spec.FormatVersion = 99 },
			"error: --to web:http cannot be traced: ServiceProxyRules shop.web: format 99 needs a newer release than this plugin, v0.1.0, which supports formats up to 2: install the plugin of the controller's release",
		},
		"a Service with an invalid cluster IP": {
			func(o *cluster.Objects) { o.ServiceRules[1].Spec.ClusterIPs = []string{"224.0.0.1"} },
			"error: --to web:http cannot be traced: ServiceProxyRules shop.web have no effect: it has no usable IPv4 cluster IP: spec.clusterIPs[0]: \"224.0.0.1\" is not",
		},
		"no agent": {
			func(o *cluster.Objects) { o.NodeRules[0].Status = v1alpha1.NodeProxyRulesStatus{} },
			"! no agent has reported on this node yet",
		},
		"a node that is not programmed": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions[0] = metav1.Condition{
					Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionFalse, Reason: "Failed", Message: "no room", LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
				}
			},
			"! the node may have other rules: Programmed is False for 60m, Failed: no room",
		},
		"an agent that lags": {
			func(o *cluster.Objects) { o.NodeRules[0].Generation = 7 },
			"! the node's rules changed more than a minute ago (generation 7), but its agent still reports older ones (generation 0)",
		},
		"a Node that no longer exists": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Annotations = map[string]string{v1alpha1.AnnotationNodeAbsentSince: "yesterday"}
			},
			"! Node node-1 does not exist since yesterday",
		},
		"Audit": {
			func(o *cluster.Objects) {
				audit := v1alpha1.Audit
				o.NodeRules[0].Spec.Settings.Enforcement = &audit
			},
			"! enforcement is Audit",
		},
		"another proxy": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Conditions = append(o.NodeRules[0].Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionTrue})
			},
			"! another proxy is active on the node",
		},
		"a mode that the node falls back from": {
			func(o *cluster.Objects) {
				mode := v1alpha1.ModeIPVS
				o.NodeRules[0].Spec.Settings.Mode = &mode
			},
			"mode IPTables\n! the node runs mode IPTables, but its settings specify IPVS",
		},
		"a family that the node lacks": {
			func(o *cluster.Objects) { o.NodeRules[0].Status.Families = []string{"IPv4"} },
			"! IPv6 is not programmed on this node",
		},
		"a Service that the kernel rejects": {
			func(o *cluster.Objects) {
				o.NodeRules[0].Status.Rejected = &v1alpha1.RejectedServices{Count: 1, Examples: []string{"shop/web: too much"}}
			},
			"! the kernel of the node rejects the Service shop/web: too much",
		},
		"Services that are retained": {
			func(o *cluster.Objects) { o.NodeRules[0].Status.Retained = 2 },
			"! the node retains the rules of 2 Services",
		},
		"unreadable EndpointSlices": {
			func(o *cluster.Objects) {
				o.Unread = []cluster.Unread{{Kind: cluster.EndpointSlices, Why: "you may not"}}
			},
			"! the pods of endpoints are unknown: you may not",
		},
		"unreadable pods": {
			func(o *cluster.Objects) { o.Unread = []cluster.Unread{{Kind: cluster.Pods, Why: "you may not"}} },
			"error: the pod shop/cart cannot be read (use its address instead): you may not",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := objects()
			c.edit(o)
			if got := ask(t, o, "", "cart", "web:http"); !strings.Contains(got, c.want) {
				t.Errorf("got\n%s\nwant %s", got, c.want)
			}
		})
	}
}

// TestLeftOut: a note mentions objects without effect that a packet may be for.
func TestLeftOut(t *testing.T) {
	odd := map[string]func(*v1alpha1.ServiceProxyRules){
		"unknown format":        func(r *v1alpha1.ServiceProxyRules) { r.Spec.FormatVersion = 99 },
		"misnamed":              func(r *v1alpha1.ServiceProxyRules) { r.Name = "web" },
		"released":              func(r *v1alpha1.ServiceProxyRules) { r.Spec.Released = true },
		"unreadable cluster IP": func(r *v1alpha1.ServiceProxyRules) { r.Spec.ClusterIPs = []string{"nonsense"} },
	}
	for name, edit := range odd {
		for to, also := range map[string]bool{
			"10.96.0.10:80": true, "198.51.100.1:80": true, "203.0.113.1:80": true, "192.0.2.21:30080": true,
			"10.96.0.10:81": name != "unreadable cluster IP", "192.0.2.21:30080/udp": false, "192.0.2.22:30080": false,
		} {
			o := objects()
			web := &o.ServiceRules[1]
			web.Spec.ExternalIPs, web.Spec.LoadBalancerIPs = []string{"198.51.100.1"}, []string{"203.0.113.1"}
			edit(web)
			got := ask(t, o, "node-1", "203.0.113.9", to)
			if noted := strings.Contains(got, "which have no effect: ") || strings.Contains(got, "may be its cluster IP: "); noted != also || strings.HasPrefix(got, "error") {
				t.Errorf("%s, to %s: note is %v\n%s", name, to, noted, got)
			}
			if noted := strings.Contains(got, "! ServiceProxyRules shop.web: format 99 needs a newer release than this plugin, v0.1.0"); noted != (also && name == "unknown format") {
				t.Errorf("%s, to %s: remedy is %v\n%s", name, to, noted, got)
			}
		}
	}
	o := objects()
	o.NodeRules[0].Status.Retained = 2
	for to, want := range map[string]bool{"10.96.0.99:80": true, "10.96.0.10:80": false} {
		got := ask(t, o, "node-1", "10.244.1.9", to)
		if noted := strings.Contains(got, "may be an address of the 2 Services that the node retains without an object"); noted != want {
			t.Errorf("to %s: note is %v\n%s", to, noted, got)
		}
	}
}

// TestBehind: notes for a node that is behind, or retains vanished Services.
func TestBehind(t *testing.T) {
	o := objects()
	o.ServiceRules[0].ResourceVersion = "7"
	o.ServiceRules[0].Annotations = map[string]string{v1alpha1.AnnotationWritten: now.Add(-time.Hour).Format(time.RFC3339)}
	o.NodeProxy = &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Inventory: &v1alpha1.Inventory{Services: 9}}}
	got := ask(t, o, "node-1", "10.244.1.9", "10.96.0.10:80")
	for _, want := range []string{
		"! a change that was rendered more than ten minutes ago is not applied on the node",
		"! the 2 existing ServiceProxyRules are not the 9 of NodeProxy's inventory: nodes retain the missing ones",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in\n%s", want, got)
		}
	}
}
