package nftables

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// recorded is what kube-proxy 1.36 had programmed on a node when testdata/kube-proxy.nft was recorded.
func (r *rig) recorded() {
	r.Helper()
	r.interfaces = func() ([]netip.Addr, error) { return addrs("127.0.0.1 172.20.0.2"), nil }
	r.rules.Node.Addresses = addrs("172.20.0.2")
	r.rules.Node.Settings = v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{
		DetectLocal: &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"10.244.0.0/16"}},
	})
	const all, local = "10.244.1.2:8080 10.244.1.3:8080 10.244.2.2:8080 10.244.2.3:8080", "10.244.1.2:8080 10.244.1.3:8080"
	add := func(name, clusterIP string, edit func(s *dataplane.Service, p *dataplane.Port)) {
		s := &dataplane.Service{
			Name: dataplane.ServiceName{Namespace: "default", Name: name}, ClusterIP: netip.MustParseAddr(clusterIP),
			Ports: []dataplane.Port{{
				Name: "tcp", Protocol: v1alpha1.ProtocolTCP, Port: 80, Available: true, Cluster: eps(all), Local: eps(local), LocalEndpoints: eps(local),
			}},
		}
		edit(s, &s.Ports[0])
		r.set(s)
	}
	add("kubernetes", "10.96.0.1", func(_ *dataplane.Service, p *dataplane.Port) {
		p.Name, p.Port, p.Cluster, p.Local, p.LocalEndpoints = "https", 443, eps("172.20.0.1:6443"), nil, nil
	})
	add("cluster-ip", "10.96.168.11", func(*dataplane.Service, *dataplane.Port) {})
	add("sticky", "10.96.74.13", func(s *dataplane.Service, _ *dataplane.Port) { s.AffinitySeconds = 10800 })
	add("node-port", "10.96.106.25", func(s *dataplane.Service, p *dataplane.Port) {
		s.ExternalIPs, p.NodePort = addrs("198.51.100.20"), 30080
	})
	add("local", "10.96.104.212", func(s *dataplane.Service, p *dataplane.Port) {
		s.LoadBalancerIPs, s.ExternalLocal, p.NodePort = addrs("203.0.113.10"), true, 32256
	})
	add("restricted", "10.96.136.109", func(s *dataplane.Service, p *dataplane.Port) {
		s.LoadBalancerIPs, s.SourceRanges, p.NodePort = addrs("203.0.113.11"), []netip.Prefix{netip.MustParsePrefix("172.20.0.0/24")}, 30607
	})
}

func (r *rig) audit() dataplane.Difference {
	r.Helper()
	d, err := r.Verify(r.Context(), &r.rules, dataplane.VerifyOptions{Audit: true})
	if err != nil {
		r.Fatal(err)
	}
	if len(d.Findings) != d.Count {
		r.Errorf("%d findings, not %d", len(d.Findings), d.Count)
	}
	return d
}

// TestAuditBesideKubeProxy compares with what kube-proxy had programmed for the same Services.
func TestAuditBesideKubeProxy(t *testing.T) {
	r := newRig(t)
	r.recorded()
	r.nft(`include "./testdata/kube-proxy.nft"`)
	if d := r.audit(); d.Count > 0 {
		t.Errorf("in sync: %q", d.Examples)
	}
	before := r.rules.Node
	for name, edit := range map[string]func(s *v1alpha1.ProxySettings){
		"10.96.168.11:80/TCP": func(s *v1alpha1.ProxySettings) { s.Masquerade.All = new(v1alpha1.Enabled) },
		"not masqueraded, desired": func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{"10.245.0.0/16"}}
		},
		"172.20.0.2:30080/TCP are translated": func(s *v1alpha1.ProxySettings) {
			s.NodePorts.AddressMode, s.NodePorts.CIDRs = new(v1alpha1.NodePortsCIDRs), []string{"192.0.2.0/24"}
		},
	} {
		settings := v1alpha1.CompleteSettings(before.Settings)
		edit(settings)
		r.rules.Node.Settings = settings
		if d := r.audit(); d.Count == 0 {
			t.Errorf("%s: nothing differs", name)
		}
	}
	r.rules.Node = before
	r.rules.Node.Settings.Masquerade.Bit = new(int32(3)) // which no packet shows
	if d := r.audit(); d.Count > 0 {
		t.Errorf("another mark: %q", d.Examples)
	}
}

// TestAuditFindsWhatDiffers: in kube-proxy's table.
func TestAuditFindsWhatDiffers(t *testing.T) {
	const service = "service-JRNFAMPO-default/cluster-ip/tcp/tcp"
	for want, command := range map[string]string{
		"default/cluster-ip: packets from a pod to 10.96.168.11:80/TCP are not handled, desired: translated": "delete element ip kube-proxy service-ips { 10.96.168.11 . tcp . 80 }; delete element ip kube-proxy cluster-ips { 10.96.168.11 }; flush chain ip kube-proxy cluster-ips-check",
		"default/cluster-ip: packets from a pod to 10.96.168.11:80/TCP are rejected":                         "delete element ip kube-proxy service-ips { 10.96.168.11 . tcp . 80 }",
		"default/cluster-ip: packets from a pod to 10.96.168.11:80/TCP are translated to 10.244.1.2:8080 (75%), 10.244.9.9:8080 (25%)": "flush chain ip kube-proxy " + service +
			"; add rule ip kube-proxy " + service + " meta l4proto tcp dnat ip to numgen random mod 4 map { 0 : 10.244.1.2 . 8080, 1 : 10.244.1.2 . 8080, 2 : 10.244.1.2 . 8080, 3 : 10.244.9.9 . 8080 }",
		"packets from outside to 10.96.168.11:80/TCP are dropped":                       "insert rule ip kube-proxy " + service + " ip saddr != 10.244.0.0/16 ip saddr != 172.20.0.2 drop",
		"default/node-port: packets from a pod to 172.20.0.2:30080/TCP are not handled": "delete element ip kube-proxy service-nodeports { tcp . 30080 }",
		"default/old: packets from a pod to 10.96.9.9:80/TCP are translated to 10.244.1.2:8080": "add chain ip kube-proxy service-X-default/old/tcp/tcp; add rule ip kube-proxy service-X-default/old/tcp/tcp meta l4proto tcp dnat to 10.244.1.2:8080; " +
			"add element ip kube-proxy service-ips { 10.96.9.9 . tcp . 80 : goto service-X-default/old/tcp/tcp }",
		"with session affinity for 60 s":                                                                                               "flush chain ip kube-proxy " + service + "; add set ip kube-proxy mine { type ipv4_addr; flags dynamic,timeout; timeout 60s; }; add rule ip kube-proxy " + service + " update @mine { ip saddr }; add rule ip kube-proxy " + service + " meta l4proto tcp dnat to 10.244.1.2:8080",
		"packets of endpoint 10.244.1.3:8080/TCP to itself are not masqueraded":                                                        "delete element ip kube-proxy hairpin-connections { 10.244.1.3 . 10.244.1.3 . tcp . 8080 }",
		"default/restricted: packets from 203.0.113.11 to 203.0.113.11:80/TCP are allowed":                                             "flush chain ip kube-proxy firewall-TH2DJ75I-default/restricted/tcp/tcp; add rule ip kube-proxy firewall-TH2DJ75I-default/restricted/tcp/tcp ip saddr != 172.20.0.0/24 drop",
		"packets from 9.9.0.0 to 203.0.113.11:80/TCP are allowed: true":                                                                "flush chain ip kube-proxy firewall-TH2DJ75I-default/restricted/tcp/tcp; add rule ip kube-proxy firewall-TH2DJ75I-default/restricted/tcp/tcp ip saddr != { 172.20.0.0/24, 203.0.113.11, 9.9.0.0/16 } drop",
		"are allowed: true, desired: false":                                                                                            "delete element ip kube-proxy firewall-ips { 203.0.113.11 . tcp . 80 }",
		"from the node to 203.0.113.10:80/TCP are translated to 10.244.1.2:8080, 10.244.1.3:8080, 10.244.2.2:8080 and 1 more, desired": "flush chain ip kube-proxy external-HT2V6A33-default/local/tcp/tcp; add rule ip kube-proxy external-HT2V6A33-default/local/tcp/tcp goto service-HT2V6A33-default/local/tcp/tcp",
	} {
		t.Run(want, func(t *testing.T) {
			r := newRig(t)
			r.recorded()
			r.nft(`include "./testdata/kube-proxy.nft"`)
			r.nft(command)
			d := r.audit()
			if text := strings.Join(d.Examples, "\n"); !strings.Contains(text, want) {
				t.Errorf("%d differences:\n%s", d.Count, text)
			}
			if again := r.audit(); len(again.Findings) != len(d.Findings) {
				t.Errorf("another comparison finds %d differences, not %d", again.Count, d.Count)
			}
		})
	}
}

// TestAuditWithOurTable: packets meet it first, so kube-proxy's does not count.
func TestAuditWithOurTable(t *testing.T) {
	r := newRig(t)
	r.recorded()
	r.apply()
	r.nft(`include "./testdata/kube-proxy.nft"`)
	r.nft("flush map ip kube-proxy service-ips")
	if d := r.audit(); d.Count > 0 {
		t.Errorf("%q", d.Examples)
	}
	r.nft("delete table ip " + TableName)
	if d := r.audit(); d.Count == 0 {
		t.Error("nothing differs")
	}
}

// TestAuditOfLargeService ends there, with what it has found before.
func TestAuditOfLargeService(t *testing.T) {
	r := newRig(t)
	r.recorded()
	r.nft(`include "./testdata/kube-proxy.nft"`)
	r.nft("delete element ip kube-proxy service-ips { 10.96.168.11 . tcp . 80 }") // of default/cluster-ip
	file := filepath.Join(t.TempDir(), "rules.nft")
	rules := strings.Repeat("insert rule ip kube-proxy service-A7CCMHPJ-default/sticky/tcp/tcp meta l4proto udp\n", 10_001)
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	r.nft("include \"" + file + "\"")
	d := r.audit()
	if d.Count != 2 || !strings.Contains(d.Findings[0].Text, "10.96.168.11:80/TCP") || !strings.Contains(d.Findings[1].Text, "10.96.74.13:80/TCP") ||
		!strings.Contains(d.Findings[1].Text, "too large to be compared") || !strings.HasSuffix(d.Findings[1].Text, "the rest is not compared") {
		t.Errorf("%d differences: %q", d.Count, d.Examples)
	}
}

// TestAuditOfUnknownRules is an error, not a difference.
func TestAuditOfUnknownRules(t *testing.T) {
	r := newRig(t)
	r.recorded()
	r.nft(`include "./testdata/kube-proxy.nft"`)
	r.nft("insert rule ip kube-proxy services meta skuid 0 drop")
	_, err := r.Verify(t.Context(), &r.rules, dataplane.VerifyOptions{Audit: true})
	if err == nil || !strings.Contains(err.Error(), "chain services: meta 10 is unknown") {
		t.Errorf("got %v", err)
	}
}
