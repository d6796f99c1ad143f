package nftablesmodel_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nftables/nftablesmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/ipvs/modeltest"
)

// pair is a node whose kernel and model the data plane programs alike.
type pair struct {
	*modeltest.Lab
	*rand.Rand
	six           bool
	rules         dataplane.Ruleset
	kernel, model *nftables.Dataplane
	nf            *nftablesmodel.Kernel
	fates         map[kernelmodel.Fate]int
	lookups       map[string]int
	texts         map[string]struct{} // of rules that packets have met
}

func newPair(t *testing.T, six bool, random *rand.Rand) *pair {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	family := dataplane.IPv4
	if six {
		family = dataplane.IPv6
	}
	p := &pair{
		Lab: modeltest.NewLab(t, six, ""), Rand: random, six: six, nf: nftablesmodel.New(modeltest.Node(six)...),
		fates: map[kernelmodel.Fate]int{}, lookups: map[string]int{}, texts: map[string]struct{}{},
	}
	// A bridge would stop packets before the node counts them, and between two of its ports.
	for _, name := range []string{"iptables", "ip6tables"} {
		if err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-"+name, []byte("0"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	p.kernel, p.model = nftables.New(family, nftables.Options{}), nftables.New(family, nftables.Options{Model: p.nf})
	settings := v1alpha1.CompleteSettings(nil)
	settings.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{p.either("10.244.0.0/16", "fd00:244::/64")}}
	p.rules = dataplane.Ruleset{
		Full: true, Prune: true, Services: map[dataplane.ServiceName]*dataplane.Service{}, Dirty: map[dataplane.ServiceName]struct{}{},
		Node: dataplane.Node{Settings: settings, Addresses: modeltest.Node(six)[:1]},
	}
	if err := p.Load(""); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *pair) either(four, six string) string {
	if p.six {
		return six
	}
	return four
}

func (p *pair) address(four, six string, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprint(p.either(four, six), n))
}

const services = 8

var protocols = []v1alpha1.Protocol{v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP, v1alpha1.ProtocolSCTP}

// service is a random one of a number.
func (p *pair) service(n int) *dataplane.Service {
	var all []netip.AddrPort
	for i := range 3 {
		all = append(all, netip.AddrPortFrom(p.address("10.244.0.", "fd00:244::", 5+i), 8080), netip.AddrPortFrom(p.address("10.180.0.", "2001:db8:180::", 5+i), 8080))
	}
	all = append(all, netip.AddrPortFrom(modeltest.Node(p.six)[0], 9090)) // a process of the node
	local := func(e netip.AddrPort) bool {
		return e.Addr() == modeltest.Node(p.six)[0] || netip.MustParsePrefix(p.either("10.244.0.0/16", "fd00:244::/64")).Contains(e.Addr())
	}
	some := func(of []netip.AddrPort) []netip.AddrPort {
		return slices.DeleteFunc(slices.Clone(of), func(netip.AddrPort) bool { return p.IntN(2) == 0 })
	}
	s := &dataplane.Service{
		Name: dataplane.ServiceName{Namespace: "default", Name: fmt.Sprint("s", n)}, ClusterIP: p.address("10.96.0.", "fd00:96::", n),
		ExternalLocal: p.IntN(2) == 0, InternalLocal: p.IntN(3) == 0, AffinitySeconds: []int32{0, 0, 600, 10800}[p.IntN(4)],
	}
	if p.IntN(2) == 0 {
		s.ExternalIPs = []netip.Addr{p.address("198.51.100.", "2001:db8:198::", n)}
	}
	if p.IntN(3) > 0 {
		s.LoadBalancerIPs = []netip.Addr{p.address("198.51.101.", "2001:db8:199::", n)}
		for _, r := range []string{p.either("203.0.113.2/32", "2001:db8:203::2/128"), p.either("10.244.0.0/24", "fd00:244::/96"), p.either("192.168.0.0/24", "2001:db8::/64")}[:p.IntN(4)] {
			s.SourceRanges = append(s.SourceRanges, netip.MustParsePrefix(r))
		}
	}
	for i, protocol := range protocols {
		cluster := some(all)
		port := dataplane.Port{
			Name: fmt.Sprint("p", i), Protocol: protocol, Port: 80, Cluster: cluster,
			Local: slices.DeleteFunc(some(cluster), func(e netip.AddrPort) bool { return !local(e) }), LocalEndpoints: slices.DeleteFunc(slices.Clone(cluster), func(e netip.AddrPort) bool { return !local(e) }),
		}
		if p.IntN(4) == 0 {
			port.Cluster, port.Local = nil, nil
		}
		port.Available = len(port.Cluster)+len(port.Local) > 0
		if p.IntN(2) == 0 {
			port.NodePort = uint16(30000 + n) //nolint:gosec // few
		}
		s.Ports = append(s.Ports, port)
	}
	return s
}

// change replaces or removes some Services.
func (p *pair) change(t *testing.T) {
	t.Helper()
	for n := range services {
		if p.rules.Full || p.IntN(3) == 0 {
			s := p.service(n + 1)
			p.rules.Services[s.Name], p.rules.Dirty[s.Name] = s, struct{}{}
			if p.IntN(6) == 0 {
				delete(p.rules.Services, s.Name)
			}
		}
	}
	for _, plane := range []*nftables.Dataplane{p.kernel, p.model} {
		result, err := plane.Apply(t.Context(), &p.rules)
		if err != nil || len(result.Rejected) > 0 {
			t.Fatalf("%v, rejected: %v", err, result.Rejected)
		}
	}
	p.rules.Full, p.rules.Dirty = false, map[dataplane.ServiceName]struct{}{}
}

// packet is a random one, most probably to a Service.
func (p *pair) packet() kernelmodel.Packet {
	n := 1 + p.IntN(services)
	to := []netip.Addr{
		p.address("10.96.0.", "fd00:96::", n), p.address("10.96.0.", "fd00:96::", n), p.address("198.51.100.", "2001:db8:198::", n),
		p.address("198.51.101.", "2001:db8:199::", n), modeltest.Node(p.six)[0],
	}[p.IntN(5)]
	port := uint16(80)
	if to == modeltest.Node(p.six)[0] {
		port = uint16(30000 + n) //nolint:gosec // few
	}
	if p.IntN(12) == 0 {
		port++
	}
	out := kernelmodel.Packet{Protocol: strings.ToLower(string(protocols[p.IntN(3)])), Destination: netip.AddrPortFrom(to, port)}
	if out.Protocol == "sctp" && !p.SCTP() {
		out.Protocol = "udp"
	}
	switch p.IntN(3) {
	case 0:
		out.In, out.Source = "eth0", p.address("203.0.113.", "2001:db8:203::", 2+p.IntN(3))
	case 1:
		out.In, out.Source = "cni0", modeltest.Pod(p.six)
	case 2:
		out.Source = modeltest.Node(p.six)[0]
	}
	if out.Protocol == "tcp" && out.In != "" && p.IntN(15) == 0 {
		out.State = "INVALID"
	}
	return out
}

// compare sends a packet in the kernel and traces it in the model.
func (p *pair) compare(packet kernelmodel.Packet) {
	p.Helper()
	outcomes, err := p.nf.Trace(packet)
	if err != nil {
		p.Fatalf("%+v: %v", packet, err)
	}
	if modeltest.Unpredictable(packet, outcomes, modeltest.Node(p.six)...) {
		return
	}
	total := 0.0
	for _, o := range outcomes {
		total += o.Share
	}
	if math.Abs(total-1) > 1e-9 {
		p.Fatalf("%+v: shares of %f: %+v", packet, total, outcomes)
	}
	resets := p.Resets()
	seen := p.SendUncounted(packet)
	if packet.Protocol == "tcp" && packet.State == "" && !seen.Tracked { // or a process has answered
		seen.Unreachable = seen.Unreachable || p.Resets() > resets
	}
	var all []string
	for i := range outcomes {
		o := &outcomes[i]
		differences := modeltest.Differences(packet, o, &seen, false)
		if len(differences) == 0 {
			p.fates[o.Fate]++
			for _, s := range o.Path {
				switch {
				case s.Kind == kernelmodel.NFTablesRule:
					p.texts[s.Rule] = struct{}{}
				case s.Target != "":
					p.lookups[s.Chain]++
				}
			}
			p.nf.Remember(*o)
			return
		}
		all = append(all, fmt.Sprintf("%s %s: %s\n%v", o.Fate, o.Endpoint, strings.Join(differences, "\n"), o.Path))
	}
	p.Fatalf("%+v\n%s\n%+v", packet, strings.Join(all, "\n"), seen)
}

// compareTexts looks the rules that packets have met up in what the program nft lists.
func (p *pair) compareTexts() {
	p.Helper()
	out, err := exec.Command("nft", "list", "table", p.either("ip", "ip6"), "nodeproxy").CombinedOutput()
	if err != nil {
		p.Fatalf("nft: %v: %s", err, out)
	}
	for rule := range p.texts {
		if rest, named := strings.CutPrefix(rule, "meta l4proto "); named { // nft omits what the rest implies
			protocol, rest, _ := strings.Cut(rest, " ")
			rule = strings.ReplaceAll(rest, "th dport", protocol+" dport")
		}
		if !strings.Contains(string(out), "\t\t"+rule+"\n") {
			p.Fatalf("nft does not list %q:\n%s", rule, out)
		}
	}
	clear(p.texts)
}

// TestPacketsOnRealKernel has the data plane program random Services, and sends random packets.
// NODEPROXY_SEED repeats a run.
func TestPacketsOnRealKernel(t *testing.T) {
	from := dataplanetest.Seed(t)
	for i, six := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6 %t", six), func(t *testing.T) {
			p := newPair(t, six, rand.New(rand.NewPCG(from, uint64(i)))) //nolint:gosec // to be repeated
			for range 12 {
				p.change(t)
				for range 40 {
					p.compare(p.packet())
				}
				p.compareTexts()
			}
			t.Logf("packets by fate: %v, found in: %v", p.fates, p.lookups)
			for _, f := range []kernelmodel.Fate{kernelmodel.Delivered, kernelmodel.Rejected, kernelmodel.Dropped, kernelmodel.Passed} {
				if p.fates[f] == 0 {
					t.Errorf("no packet had the fate %s", f)
				}
			}
			for set, n := range p.lookups {
				if strings.HasPrefix(set, "source-ranges-") {
					p.lookups["source-ranges"] += n
				}
			}
			for _, set := range []string{"service-ips", "endpoints", "local-endpoints", "short-circuit", "source-ranges", "affinity", "affine-600", "cluster-ips", "hairpin"} {
				if p.lookups[set] == 0 {
					t.Errorf("no packet was found in %s", set)
				}
			}
		})
	}
}

// TestChanceOnRealKernel compares how often each endpoint is chosen: by more than five standard
// deviations it differs once in a million runs.
func TestChanceOnRealKernel(t *testing.T) {
	const packets = 1000
	p := newPair(t, false, nil)
	s := &dataplane.Service{
		Name: dataplane.ServiceName{Namespace: "default", Name: "web"}, ClusterIP: netip.MustParseAddr("10.96.0.1"),
		Ports: []dataplane.Port{{Protocol: v1alpha1.ProtocolUDP, Port: 80, Available: true}},
	}
	for i := range 5 {
		s.Ports[0].Cluster = append(s.Ports[0].Cluster, netip.AddrPortFrom(netip.MustParseAddr("10.180.0.7"), uint16(1+i))) //nolint:gosec // few
	}
	p.rules.Services[s.Name] = s
	for _, plane := range []*nftables.Dataplane{p.kernel, p.model} {
		if _, err := plane.Apply(t.Context(), &p.rules); err != nil {
			t.Fatal(err)
		}
	}
	packet := kernelmodel.Packet{Protocol: "udp", In: "cni0", Source: modeltest.Pod(false), Destination: netip.MustParseAddrPort("10.96.0.1:80")}
	outcomes, err := p.nf.Trace(packet)
	if err != nil || len(outcomes) != 5 {
		t.Fatalf("%v, %v", outcomes, err)
	}
	p.CheckShares(packet, outcomes, packets)
}
