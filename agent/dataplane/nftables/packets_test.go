package nftables

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nft"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/place"
)

// network is a node with two pods, an endpoint on another node, and a client, each in a network
// namespace of its own. Its addresses are written as those of IPv4.
type network struct {
	*rig
	family dataplane.Family
	places map[string]*place.Place
	names  map[netip.Addr]string
}

// newNetwork has the test in the node.
func newNetwork(t *testing.T, family dataplane.Family) *network {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	node := place.Enter(t, "node")
	conn, err := nft.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	n := &network{rigWith(t, conn, family), family, map[string]*place.Place{"node": node}, map[netip.Addr]string{}}
	n.interfaces = dataplane.InterfaceAddresses
	n.rules.Node.Addresses = []netip.Addr{n.addr("192.0.2.1")}
	ip := "ip"
	forwarding, bits := "/proc/sys/net/ipv4/ip_forward", 24
	if family == dataplane.IPv6 {
		ip, forwarding, bits = "ip -6", "/proc/sys/net/ipv6/conf/all/forwarding", 120
	}
	if err := os.WriteFile(forwarding, []byte("1"), 0o644); err != nil { //nolint:gosec // it exists
		t.Fatal(err)
	}
	for _, p := range []struct{ name, at, router string }{
		{"pod1", "10.244.1.1", "10.244.1.254"}, {"pod2", "10.244.2.1", "10.244.2.254"},
		{"far", "10.245.9.1", "10.245.9.254"}, {"client", "192.0.2.100", "192.0.2.1"},
	} {
		to := place.New(t, p.name)
		n.places[p.name], n.names[n.addr(p.at)], n.names[n.addr(p.router)] = to, p.name, "node"
		node.Wire(t, p.name, to)
		node.Run(t, fmt.Sprintf("%s addr add %s/%d dev %s", ip, n.addr(p.router), bits, p.name))
		to.Run(t, fmt.Sprintf("%s addr add %s/%d dev eth0", ip, n.addr(p.at), bits), fmt.Sprintf("%s route add default via %s", ip, n.addr(p.router)))
		to.Serve(t, netip.AddrPortFrom(n.addr(p.at), 8080))
	}
	node.Run(t, fmt.Sprintf("%s addr add %s/%d dev client", ip, n.addr("192.0.2.2"), bits))
	n.names[n.addr("192.0.2.2")] = "node"
	n.names[n.addr("198.51.100.7")] = "other" // another client there
	n.places["client"].Run(t, fmt.Sprintf("%s addr add %s dev lo", ip, n.addr("198.51.100.7")))
	node.Run(t, fmt.Sprintf("%s route add %s via %s", ip, n.addr("198.51.100.7"), n.addr("192.0.2.100")),
		fmt.Sprintf("%s route add default via %s", ip, n.addr("192.0.2.100"))) // so that the node may ask Services
	node.Serve(t, netip.AddrPortFrom(n.addr("192.0.2.1"), 9090))
	return n
}

// addr is an address of the family.
func (n *network) addr(text string) netip.Addr {
	a := netip.MustParseAddr(text)
	if n.family == dataplane.IPv6 && a.IsLoopback() {
		return netip.IPv6Loopback()
	}
	if n.family == dataplane.IPv6 {
		b := [16]byte{0x20, 0x01, 0x0d, 0xb8}
		four := a.As4()
		copy(b[12:], four[:])
		return netip.AddrFrom16(b)
	}
	return a
}

func (n *network) prefix(text string) netip.Prefix {
	p := netip.MustParsePrefix(text)
	a := n.addr(p.Addr().String())
	return netip.PrefixFrom(a, p.Bits()+a.BitLen()-32)
}

func (n *network) addrPort(text string) netip.AddrPort {
	a := netip.MustParseAddrPort(text)
	return netip.AddrPortFrom(n.addr(a.Addr().String()), a.Port())
}

// ask asks a destination, as in "udp 172.30.0.1:53", once, and returns who has answered to whom, or
// why there is no answer.
func (n *network) ask(from, to string) string {
	n.Helper()
	target := place.Target{Protocol: "tcp", Patience: 10 * time.Second}
	protocol, address, found := strings.Cut(to, " ")
	if !found {
		protocol, address = "tcp", to
	}
	target.Protocol, target.To = protocol, n.addrPort(address)
	at := n.places[from]
	if from == "other" {
		at, target.From = n.places["client"], n.addr("198.51.100.7")
	}
	server, client, err := at.Ask(target)
	if err == nil {
		return server + "<" + n.names[netip.MustParseAddr(client)]
	}
	for text, one := range map[string]error{"ECONNREFUSED": unix.ECONNREFUSED, "denied": unix.EPERM, "unreachable": unix.EHOSTUNREACH, "dropped": os.ErrDeadlineExceeded} {
		if errors.Is(err, one) {
			return text
		}
	}
	return err.Error()
}

// dropped asks where no answer may come.
func (n *network) dropped(from, to string) string {
	target := place.Target{Protocol: "tcp", To: n.addrPort(to), Patience: 200 * time.Millisecond}
	at := n.places[from]
	if from == "other" {
		at, target.From = n.places["client"], n.addr("198.51.100.7")
	}
	if server, _, err := at.Ask(target); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Sprintf("%s %v", server, err)
	}
	return "dropped"
}

// sees asks until all desired answers have come, and no other.
func (n *network) sees(what, from, to, want string) {
	n.Helper()
	if want == "dropped" {
		if got := n.dropped(from, to); got != want {
			n.Errorf("%s: %s asks %s: %s, want %s", what, from, to, got, want)
		}
		return
	}
	all, got := strings.Fields(want), map[string]struct{}{}
	for try := 0; try < 200 && (len(got) < len(all) || try < len(all)+2); try++ {
		answer := n.ask(from, to)
		got[answer] = struct{}{}
		if !slices.Contains(all, answer) {
			n.Errorf("%s: %s asks %s: %s, want %s", what, from, to, answer, want)
			return
		}
	}
	if len(got) < len(all) {
		n.Errorf("%s: %s asks %s: only %v, want %s", what, from, to, slices.Sorted(maps.Keys(got)), want)
	}
}

// service is a Service of a number: its addresses are 172.30.0.N, 203.0.113.N (external),
// 203.0.114.N (load balancer), its node port 30000+N.
func (n *network) service(number int, cluster, local string, change func(*dataplane.Service)) {
	list := func(text string) []netip.AddrPort {
		var out []netip.AddrPort
		for e := range strings.FieldsSeq(text) {
			for a, name := range n.names {
				if name == e {
					out = append(out, netip.AddrPortFrom(a, 8080))
				}
			}
			if e == "host" {
				out = append(out, n.addrPort("192.0.2.1:9090"))
			}
		}
		return out
	}
	at := func(prefix string) netip.Addr { return n.addr(prefix + fmt.Sprint(number)) }
	s := &dataplane.Service{
		Name: dataplane.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", number)}, ClusterIP: at("172.30.0."),
		ExternalIPs: []netip.Addr{at("203.0.113.")}, LoadBalancerIPs: []netip.Addr{at("203.0.114.")},
		Ports: []dataplane.Port{{
			Name: "http", Protocol: v1alpha1.ProtocolTCP, Port: 80, NodePort: uint16(30000 + number), //nolint:gosec // few
			Cluster: list(cluster), Local: list(local), LocalEndpoints: list(local), Available: cluster+local != "",
		}},
	}
	for i, protocol := range []v1alpha1.Protocol{v1alpha1.ProtocolUDP, v1alpha1.ProtocolSCTP} {
		p := s.Ports[0]
		p.Name, p.Protocol, p.Port, p.NodePort = string(protocol), protocol, uint16(53+i), 0 //nolint:gosec // few
		s.Ports = append(s.Ports, p)
	}
	if change != nil {
		change(s)
	}
	n.set(s)
}
