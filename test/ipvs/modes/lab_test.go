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
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/place"

	clock "k8s.io/utils/clock/testing"
)

const (
	port     = 80
	nodePort = 30080
	// emptyPort is the NodePort of the Service without endpoints.
	emptyPort = 30081
)

// addressing is where things are in the lab, in one IP family. Packets to the addresses
// of Services from outside come to the node, as by a load balancer.
type addressing struct {
	family                  dataplane.Family
	single                  int            // bits of an address
	endpointA, endpointR    netip.AddrPort // of pods
	c, d                    netip.Addr     // pods
	gateway                 netip.Addr     // of pods
	nodeAddr, routerAddr    netip.Addr     // the router is the client outside
	link                    netip.Prefix   // of both
	web, sticky, empty      netip.Addr     // cluster IPs
	external, balancer      netip.Addr     // the latter for clients of link only
	pods                    string         // their range
	clusterIPs, externalIPs string         // ranges of them
	iptables                string         // the program
}

func addressingOf(family dataplane.Family) addressing {
	if family == dataplane.IPv6 {
		return addressing{
			family: family, single: 128, iptables: "ip6tables", endpointA: netip.MustParseAddrPort("[fd00:10:244::1]:8080"),
			endpointR: netip.MustParseAddrPort("[fd00:10:244:1::1]:8080"), c: addr("fd00:10:244::3"), d: addr("fd00:10:244::4"),
			gateway: addr("fd00:169:254::1"), nodeAddr: addr("fd00:192:168::2"), routerAddr: addr("fd00:192:168::1"),
			link: netip.MustParsePrefix("fd00:192:168::/64"), web: addr("fd00:10:96::1"), sticky: addr("fd00:10:96::2"), empty: addr("fd00:10:96::3"),
			external: addr("2001:db8::1"), balancer: addr("2001:db8::2"),
			pods: "fd00:10:244::/48", clusterIPs: "fd00:10:96::/48", externalIPs: "2001:db8::/64",
		}
	}
	return addressing{
		family: family, single: 32, iptables: "iptables", endpointA: netip.MustParseAddrPort("10.244.0.1:8080"),
		endpointR: netip.MustParseAddrPort("10.244.1.1:8080"), c: addr("10.244.0.3"), d: addr("10.244.0.4"),
		gateway: addr("169.254.1.1"), nodeAddr: addr("192.168.0.2"), routerAddr: addr("192.168.0.1"),
		link: netip.MustParsePrefix("192.168.0.0/24"), web: addr("10.96.0.1"), sticky: addr("10.96.0.2"), empty: addr("10.96.0.3"),
		external: addr("1.2.3.1"), balancer: addr("1.2.3.2"),
		pods: "10.244.0.0/16", clusterIPs: "10.96.0.0/16", externalIPs: "1.2.3.0/24",
	}
}

// ip is the program, for what of its output is of one family.
func (at *addressing) ip() string {
	if at.family == dataplane.IPv6 {
		return "ip -6"
	}
	return "ip -4"
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// lab is a node, which is the machine itself, with the local pods a, which is an
// endpoint, c and d, the pod r of another node and a client outside.
type lab struct {
	*testing.T
	at                        addressing
	node, a, c, d, r, outside *place.Place
	programs                  string // directory of iptables
	rules                     *dataplane.Ruleset
	kernel                    *mortal
	clock                     *clock.FakeClock
	plane                     *modes.Dataplane
	// noNFTables is why the kernel cannot run mode NFTables; nil: it can.
	noNFTables error
}

// newLab makes the lab of the machine that this is the first process of. Pods are
// detected by settings.
func newLab(t *testing.T, family dataplane.Family, detect v1alpha1.DetectLocalMode) *lab {
	at := addressingOf(family)
	l := &lab{
		T: t, at: at, node: place.Here("node"), a: place.New(t, "a"), c: place.New(t, "c"), d: place.New(t, "d"),
		r: place.New(t, "r"), outside: place.New(t, "outside"),
	}
	l.useLegacyPrograms()
	l.node.Run(t, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.icmp_ratelimit=0 net.ipv4.icmp_msgs_per_sec=1000000 net.ipv4.icmp_msgs_burst=1000000",
		"sysctl -qw net.ipv6.conf.all.forwarding=1 net.ipv6.conf.all.accept_dad=0 net.ipv6.conf.default.accept_dad=0 net.ipv6.icmp.ratelimit=0")
	l.wirePod(l.a, at.endpointA.Addr())
	l.wirePod(l.c, at.c)
	l.wirePod(l.d, at.d)
	l.wirePod(l.r, at.endpointR.Addr())
	l.node.Wire(t, "eth0", l.outside)
	l.node.Run(t, fmt.Sprintf("ip address add %s/%d dev eth0", at.nodeAddr, at.link.Bits()), fmt.Sprintf("ip route add default via %s", at.routerAddr))
	// A node of the cluster drops what claims to come from an address of its own, as
	// cluster IPs are in mode IPVS, and knows no way to them.
	l.r.Run(t, "ip route add blackhole "+at.clusterIPs, "ip route add blackhole "+at.externalIPs)
	l.outside.Run(t, fmt.Sprintf("ip address add %s/%d dev eth0", at.routerAddr, at.link.Bits()), fmt.Sprintf("ip route add default via %s", at.nodeAddr))
	l.a.Serve(t, at.endpointA)
	l.r.Serve(t, at.endpointR)
	l.rules = at.ruleset(detect)
	l.start()
	of := *l.rules
	of.Mode = v1alpha1.ModeNFTables
	l.noNFTables = l.plane.Supported(t.Context(), &of)
	return l
}

// wirePod joins the node to a pod.
func (l *lab) wirePod(pod *place.Place, address netip.Addr) {
	l.Helper()
	link := "veth-" + pod.Name
	l.node.Wire(l.T, link, pod)
	l.node.Run(l.T, fmt.Sprintf("ip address add %s/%d dev %s", l.at.gateway, l.at.single, link), fmt.Sprintf("ip route add %s dev %s", address, link))
	pod.Run(l.T, fmt.Sprintf("ip address add %s/%d dev eth0", address, l.at.single),
		fmt.Sprintf("ip route add %s dev eth0", l.at.gateway), fmt.Sprintf("ip route add default via %s", l.at.gateway))
}

// useLegacyPrograms has programs of the variant that this kernel has, and no other,
// in a directory.
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
	family := l.at.family
	if l.clock == nil {
		l.clock = clock.NewFakeClock(clockStart)
	}
	wrap := func(f dataplane.Family, kernel ipvs.Kernel) ipvs.Kernel {
		if f != family {
			return kernel
		}
		l.kernel = &mortal{Kernel: kernel}
		l.kernel.left.Store(-1)
		return l.kernel
	}
	if l.plane != nil {
		if err := l.plane.Close(); err != nil { // as the end of an agent does
			l.Fatal(err)
		}
	}
	l.plane = modes.NewNode(modes.Options{ProgramsDirectory: l.programs, Clock: l.clock, WrapIPVS: wrap}).Planes[family]
}

// apply applies the rules in a mode and returns the remains of the other one as
// human-readable text.
func (l *lab) apply(mode v1alpha1.ProxyMode) string {
	l.Helper()
	l.rules.Mode = mode
	result, err := l.plane.Apply(l.Context(), l.rules)
	if err != nil || len(result.Rejected)+len(result.Warnings) > 0 {
		l.Fatalf("mode %s: %+v, %v", mode, result, err)
	}
	return result.CleanupPending
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

func (at *addressing) ruleset(detect v1alpha1.DetectLocalMode) *dataplane.Ruleset {
	d := &v1alpha1.DetectLocalSettings{Mode: detect}
	switch detect {
	case v1alpha1.DetectLocalClusterCIDR:
		d.ClusterCIDRs = []string{at.pods}
	case v1alpha1.DetectLocalInterfaceNamePrefix:
		prefix := "veth-"
		d.InterfaceNamePrefix = &prefix
	}
	r := &dataplane.Ruleset{
		Node: dataplane.Node{
			Settings: v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{DetectLocal: d}), Addresses: []netip.Addr{at.nodeAddr},
		},
		Services: map[dataplane.ServiceName]*dataplane.Service{}, Full: true, Prune: true,
	}
	endpoints := []netip.AddrPort{at.endpointA, at.endpointR}
	both := func(nodePort uint16, endpoints []netip.AddrPort) []dataplane.Port {
		var out []dataplane.Port
		for _, p := range []v1alpha1.Protocol{v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP} {
			one := dataplane.Port{
				Name: strings.ToLower(string(p)), Protocol: p, Port: port, NodePort: nodePort,
				Cluster: slices.Clone(endpoints), Available: len(endpoints) > 0,
			}
			if one.Available {
				one.LocalEndpoints = endpoints[:1]
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
			Name: serviceName("web"), ClusterIP: at.web, ExternalIPs: []netip.Addr{at.external}, LoadBalancerIPs: []netip.Addr{at.balancer},
			SourceRanges: []netip.Prefix{at.link}, Ports: both(nodePort, endpoints),
		},
		{Name: serviceName("sticky"), ClusterIP: at.sticky, AffinitySeconds: 600, Ports: both(0, endpoints)},
		{Name: serviceName("empty"), ClusterIP: at.empty, Ports: both(emptyPort, nil)},
	} {
		r.Services[s.Name] = s
	}
	return r
}

func serviceName(name string) dataplane.ServiceName {
	return dataplane.ServiceName{Namespace: "shop", Name: name}
}

// holds is what the node has of any mode, in a form that can be compared.
func (l *lab) holds() string {
	var out strings.Builder
	commands := []string{filepath.Join(l.programs, l.at.iptables+"-save"), "ipset save -sorted", "ipvsadm -Sn", "ip -o address show", l.at.ip() + " route show table local"}
	if l.noNFTables == nil {
		commands = append(commands, "nft -s list ruleset")
	}
	for _, c := range commands {
		var lines []string // their order does not matter, or Verify checks it
		for line := range strings.Lines(l.node.Run(l.T, c)) {
			if strings.HasPrefix(line, "#") || strings.Contains(line, " timeout 10m : ") { // of clients with affinity
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
