package modes

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"

	clock "k8s.io/utils/clock/testing"
)

const (
	port     = 80
	nodePort = 30080
	// emptyPort is the NodePort of the Service without endpoints.
	emptyPort = 30081
)

// Addresses of the lab. Packets to the addresses of Services from outside come to
// the node, as by a load balancer.
var (
	nodeAddr   = addr("192.168.0.2")
	routerAddr = addr("192.168.0.1")
	web        = addr("10.96.0.1") // cluster IPs
	sticky     = addr("10.96.0.2")
	empty      = addr("10.96.0.3")
	external   = addr("1.2.3.1")
	balancer   = addr("1.2.3.2") // for some sources only
)

// lab is a node, which is the machine itself, with the local pods a, which is an
// endpoint, c and d, the pod r of another node and a client outside.
type lab struct {
	*testing.T
	node, a, c, d, r, outside *place
	programs                  string // folder of iptables
	rules                     *dataplane.Ruleset
	kernel                    *mortal
	clock                     *clock.FakeClock
	plane                     *modes.Dataplane
}

// newLab makes the lab of the machine that this is the first process of. Pods are
// detected by settings.
func newLab(t *testing.T, detect v1alpha1.DetectLocalMode) *lab {
	l := &lab{
		T: t, node: &place{name: "node", addr: nodeAddr},
		a: newPlace(t, "a", addr("10.244.0.1")), c: newPlace(t, "c", addr("10.244.0.3")), d: newPlace(t, "d", addr("10.244.0.4")),
		r: newPlace(t, "r", addr("10.244.1.1")), outside: newPlace(t, "outside", routerAddr),
	}
	l.useLegacyPrograms()
	l.node.must(t, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.icmp_ratelimit=0 net.ipv4.icmp_msgs_per_sec=1000000 net.ipv4.icmp_msgs_burst=1000000")
	for _, p := range []*place{l.a, l.c, l.d, l.r} {
		l.wire(p, "veth-"+p.name)
		l.node.must(t, "ip address add 169.254.1.1/32 dev veth-"+p.name, fmt.Sprintf("ip route add %s dev veth-%s", p.addr, p.name))
		p.must(t, fmt.Sprintf("ip address add %s/32 dev eth0", p.addr), "ip route add 169.254.1.1 dev eth0", "ip route add default via 169.254.1.1")
	}
	l.wire(l.outside, "eth0")
	l.node.must(t, fmt.Sprintf("ip address add %s/24 dev eth0", nodeAddr), fmt.Sprintf("ip route add default via %s", routerAddr))
	// A node of the cluster drops what claims to come from an address of its own, as
	// cluster IPs are in mode IPVS, and knows no way to them.
	l.r.must(t, "ip route add blackhole 10.96.0.0/16", "ip route add blackhole 1.2.3.0/24")
	l.outside.must(t, fmt.Sprintf("ip address add %s/24 dev eth0", routerAddr), fmt.Sprintf("ip route add default via %s", nodeAddr))
	for _, p := range []*place{l.a, l.r} {
		p.serve(t, 8080)
	}
	l.rules = ruleset(detect)
	l.start()
	return l
}

// wire joins the node to a place, where the link is called eth0.
func (l *lab) wire(to *place, link string) {
	l.node.must(l.T, fmt.Sprintf("ip link add %s type veth peer name eth0 netns /proc/%d/ns/net", link, to.tid), "ip link set "+link+" up")
	to.must(l.T, "ip link set eth0 up")
}

// useLegacyPrograms has programs of the variant that this kernel has, and no other,
// in a folder.
func (l *lab) useLegacyPrograms() {
	path, err := exec.LookPath("xtables-legacy-multi")
	if err != nil {
		l.Fatal("xtables-legacy-multi not found: apt-get install iptables")
	}
	l.programs = l.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, end := range []string{"", "-restore", "-save"} {
			if err := os.Symlink(path, filepath.Join(l.programs, name+end)); err != nil {
				l.Fatal(err)
			}
		}
	}
}

// start starts an agent's data plane, which knows nothing of what ran before.
func (l *lab) start() {
	const family = dataplane.IPv4
	o := iptables.Options{Programs: iptables.NewPrograms(l.programs, ""), Commits: &iptables.Commits{}}
	if l.clock == nil {
		l.clock = clock.NewFakeClock(clockStart)
	}
	l.kernel = &mortal{Kernel: ipvs.NewKernel(family, ipvs.KernelOptions{})}
	l.kernel.left.Store(-1)
	l.plane = modes.New(map[v1alpha1.ProxyMode]dataplane.Dataplane{
		v1alpha1.ModeIPTables: iptables.New(family, o),
		v1alpha1.ModeIPVS: ipvs.New(family, ipvs.Options{
			Kernel: l.kernel, Rules: iptables.NewKeeper(family, o), Clock: l.clock,
		}),
	})
	l.plane.Clock = l.clock
}

// apply applies the rules in a mode and returns what is left of the other one,
// for people.
func (l *lab) apply(mode v1alpha1.ProxyMode) string {
	l.Helper()
	l.rules.Mode = mode
	result, err := l.plane.Apply(l.Context(), l.rules)
	if err != nil || len(result.Refused)+len(result.Warnings) > 0 {
		l.Fatalf("mode %s: %+v, %v", mode, result, err)
	}
	return result.Retiring
}

// applyKilled does the same, but the agent is killed after so many writes of what is
// of mode IPVS, and started again.
func (l *lab) applyKilled(mode v1alpha1.ProxyMode, writes int64) {
	l.Helper()
	l.rules.Mode = mode
	ctx, cancel := context.WithCancel(l.Context())
	defer cancel()
	l.kernel.kill = cancel
	l.kernel.left.Store(writes)
	_, err := l.plane.Apply(ctx, l.rules)
	if ctx.Err() == nil {
		l.Errorf("not killed within %d writes: %v", writes, err)
	}
	l.start()
}

func ruleset(detect v1alpha1.DetectLocalMode) *dataplane.Ruleset {
	d := &v1alpha1.DetectLocalSettings{Mode: detect}
	switch detect {
	case v1alpha1.DetectLocalClusterCIDR:
		d.ClusterCIDRs = []string{"10.244.0.0/16"}
	case v1alpha1.DetectLocalInterfaceNamePrefix:
		prefix := "veth-"
		d.InterfaceNamePrefix = &prefix
	}
	r := &dataplane.Ruleset{
		Node: dataplane.Node{
			Settings: v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{DetectLocal: d}), Addresses: []netip.Addr{nodeAddr},
		},
		Services: map[dataplane.ServiceName]*dataplane.Service{}, Full: true, Prune: true,
	}
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:8080"), netip.MustParseAddrPort("10.244.1.1:8080")}
	both := func(nodePort uint16, endpoints []netip.AddrPort) []dataplane.Port {
		var out []dataplane.Port
		for _, p := range []v1alpha1.Protocol{v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP} {
			one := dataplane.Port{
				Name: strings.ToLower(string(p)), Protocol: p, Port: port, NodePort: nodePort,
				Cluster: slices.Clone(endpoints), Available: len(endpoints) > 0,
			}
			if one.Available {
				one.Members = endpoints[:1]
			}
			if p == v1alpha1.ProtocolUDP {
				one.Serving = one.Cluster
			}
			out = append(out, one)
		}
		return out
	}
	for _, s := range []*dataplane.Service{
		{
			Name: serviceName("web"), ClusterIP: web, ExternalIPs: []netip.Addr{external}, LoadBalancerIPs: []netip.Addr{balancer},
			SourceRanges: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}, Ports: both(nodePort, endpoints),
		},
		{Name: serviceName("sticky"), ClusterIP: sticky, AffinitySeconds: 600, Ports: both(0, endpoints)},
		{Name: serviceName("empty"), ClusterIP: empty, Ports: both(emptyPort, nil)},
	} {
		r.Services[s.Name] = s
	}
	return r
}

func serviceName(name string) dataplane.ServiceName {
	return dataplane.ServiceName{Namespace: "shop", Name: name}
}

// holds is what the node holds of any mode, in a form that can be compared.
func (l *lab) holds() string {
	var out strings.Builder
	for _, c := range []string{filepath.Join(l.programs, "iptables-save"), "ipset save -sorted", "ipvsadm -Sn", "ip -o address show", "ip route show table local"} {
		var lines []string // in which order does not matter, or Verify tells
		for line := range strings.Lines(l.node.must(l.T, c)) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			if before, _, counts := strings.Cut(line, " ["); counts && line[0] == ':' {
				line = before + "\n"
			}
			// Numbers of interfaces and lifetimes are not compared.
			if _, rest, found := strings.Cut(line, ": "); found && strings.HasPrefix(c, "ip -o") {
				line = rest
			}
			line, _, _ = strings.Cut(line, " initval ") // random
			lines = append(lines, strings.TrimSpace(line)+"\n")
		}
		slices.Sort(lines)
		fmt.Fprintf(&out, "== %s\n%s", c, strings.Join(lines, ""))
	}
	return out.String()
}
