package nftables

import (
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/sctp"
)

// row is what askers, separated by spaces, see of destinations, separated by commas.
type row struct{ what, from, to, want string }

func (n *network) rows(rows []row) {
	n.Helper()
	for _, r := range rows {
		for from := range strings.FieldsSeq(r.from) {
			for to := range strings.SplitSeq(r.to, ", ") {
				if strings.HasPrefix(to, "sctp") && !sctp.Available() {
					continue
				}
				n.sees(r.what, from, to, r.want)
			}
		}
	}
}

func podsOf(cidr netip.Prefix) *v1alpha1.DetectLocalSettings {
	return &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalClusterCIDR, ClusterCIDRs: []string{cidr.String()}}
}

// TestPackets asks Services of all kinds, from pods, the node and outside, on the real kernel.
func TestPackets(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(string(family), func(t *testing.T) {
			n := newNetwork(t, family)
			n.rules.Node.Settings.DetectLocal = podsOf(n.prefix("10.244.0.0/16"))
			n.rules.Node.Settings.NodePorts.AddressMode = new(v1alpha1.NodePortsCIDRs)
			n.rules.Node.Settings.NodePorts.CIDRs = []string{n.prefix("192.0.2.0/24").String()}
			n.service(1, "pod1 far", "", nil)
			n.service(2, "pod1 far", "pod1", func(s *dataplane.Service) { s.ExternalLocal = true })
			n.service(3, "far", "", func(s *dataplane.Service) { s.ExternalLocal = true })
			n.service(4, "far", "", func(s *dataplane.Service) { s.InternalLocal = true })
			n.service(5, "", "", nil)
			n.service(6, "pod1", "pod1", func(s *dataplane.Service) {
				s.SourceRanges = []netip.Prefix{n.prefix("198.51.100.0/24")}
			})
			n.service(7, "pod1", "pod1", func(s *dataplane.Service) {
				s.SourceRanges = []netip.Prefix{n.prefix("192.0.2.0/24")}
			})
			n.service(8, "pod1", "pod1", func(s *dataplane.Service) { s.InternalLocal = true })
			n.service(9, "host", "host", nil)
			n.service(10, "", "", func(s *dataplane.Service) {
				s.SourceRanges = []netip.Prefix{n.prefix("198.51.100.0/24")}
			})
			n.service(11, "pod1", "pod1", func(s *dataplane.Service) { // where nothing listens
				for i := range s.Ports {
					p := &s.Ports[i]
					p.Cluster = []netip.AddrPort{netip.AddrPortFrom(p.Cluster[0].Addr(), 9)}
				}
			})
			n.service(12, "pod1 far", "pod1", func(s *dataplane.Service) {
				s.ExternalLocal, s.SourceRanges = true, []netip.Prefix{n.prefix("198.51.100.0/24"), n.prefix("10.244.0.0/16")}
			})
			n.apply()
			n.rows([]row{
				{"cluster IP", "pod2", "172.30.0.1:80, udp 172.30.0.1:53, sctp 172.30.0.1:54", "pod1<pod2 far<pod2"},
				{"cluster IP", "node client", "172.30.0.1:80, udp 172.30.0.1:53, sctp 172.30.0.1:54", "pod1<node far<node"},
				{"external addresses", "pod2 node client", "203.0.113.1:80, 203.0.114.1:80, 192.0.2.1:30001, 192.0.2.2:30001, udp 203.0.114.1:53", "pod1<node far<node"},
				{"a node port at an address that has none", "pod1", "10.244.1.254:30001", "ECONNREFUSED"},
				{"a node port at localhost", "node", "127.0.0.1:30001", "ECONNREFUSED"},
				{"external policy Local", "pod2", "203.0.113.2:80, 203.0.114.2:80, 192.0.2.1:30002", "pod1<pod2 far<pod2"},
				{"external policy Local", "node", "203.0.113.2:80, 203.0.114.2:80, 192.0.2.1:30002", "pod1<node far<node"},
				{"external policy Local", "client", "203.0.113.2:80, 203.0.114.2:80, 192.0.2.1:30002, udp 203.0.114.2:53", "pod1<client"},
				{"external policy Local", "pod2", "172.30.0.2:80", "pod1<pod2 far<pod2"},
				{"external policy Local, a pod that is its own client", "pod1", "203.0.114.2:80", "pod1<node far<pod1"},
				{"no local endpoint", "pod2", "203.0.114.3:80, 192.0.2.1:30003", "far<pod2"},
				{"no local endpoint", "node", "203.0.114.3:80, 192.0.2.1:30003", "far<node"},
				{"no local endpoint", "client", "203.0.113.3:80, 203.0.114.3:80, 192.0.2.1:30003", "dropped"},
				{"internal policy Local without a local endpoint", "pod2 node client", "172.30.0.4:80", "dropped"},
				{"internal policy Local without a local endpoint", "client", "203.0.114.4:80, 192.0.2.1:30004", "far<node"},
				{"internal policy Local", "pod2", "172.30.0.8:80", "pod1<pod2"},
				{"internal policy Local", "node client", "172.30.0.8:80", "pod1<node"},
				{"no endpoints", "pod2 node client", "172.30.0.5:80, 203.0.113.5:80, 203.0.114.5:80, 192.0.2.1:30005, sctp 172.30.0.5:54", "ECONNREFUSED"},
				{"no endpoints", "pod2 client", "udp 172.30.0.5:53, udp 203.0.114.5:53", "ECONNREFUSED"},
				{"no endpoints", "node", "udp 172.30.0.5:53", "denied"}, // the node's own sockets get EPERM
				{"an unused port", "pod2 node client", "172.30.0.1:81", "ECONNREFUSED"},
				{"an unused port", "pod2 client", "udp 172.30.0.1:80", "ECONNREFUSED"},
				{"an unused port", "node", "udp 172.30.0.1:80", "denied"},
				{"an unused port of a cluster IP without endpoints", "pod2 node client", "172.30.0.5:81", "ECONNREFUSED"},
				{"an allowed source", "other", "203.0.114.6:80", "pod1<node"},
				{"a source that is not allowed", "pod2 node client", "203.0.114.6:80", "dropped"},
				{"a source that is not allowed, by other destinations", "client", "172.30.0.6:80, 203.0.113.6:80, 192.0.2.1:30006", "pod1<node"},
				{"ranges with the node", "node client", "203.0.114.7:80", "pod1<node"},
				{"ranges with the node", "pod2 other", "203.0.114.7:80", "dropped"},
				{"ranges without endpoints, allowed", "other", "203.0.114.10:80", "ECONNREFUSED"},
				{"ranges without endpoints, not allowed", "client", "203.0.114.10:80", "dropped"},
				{"ranges and policy Local", "other", "203.0.114.12:80", "pod1<other"},
				{"ranges and policy Local", "pod2", "203.0.114.12:80", "pod1<pod2 far<pod2"},
				{"ranges and policy Local", "client node", "203.0.114.12:80", "dropped"},
				{"an endpoint that is its own client", "pod1", "172.30.0.8:80, udp 172.30.0.8:53", "pod1<node"},
				{"an endpoint of the host's network", "pod2", "172.30.0.9:80, udp 172.30.0.9:53", "node<pod2"},
				{"an endpoint of the host's network", "client", "172.30.0.9:80", "node<client"},
				{"an endpoint of the host's network", "node", "172.30.0.9:80, 203.0.114.9:80", "node<node"},
				{"errors of endpoints", "pod2 node client", "172.30.0.11:80, udp 172.30.0.11:53", "ECONNREFUSED"},
			})
		})
	}
}

// TestPacketsBesideBoundAddresses: while another mode has bound a cluster IP to the node, which then
// uses it as the source of its own connections, NodePorts do not answer there.
func TestPacketsBesideBoundAddresses(t *testing.T) {
	n := newNetwork(t, dataplane.IPv4)
	const link = "kube-ipvs0"
	n.places["node"].Run(t, "ip link add "+link+" type veth peer name other", "ip addr add 172.30.0.1/32 dev "+link)
	n.interfaces = func() ([]netip.Addr, error) {
		return dataplane.NodeAddresses([]dataplane.Declaration{{BindsAddresses: true, Owns: dataplane.Owned{Links: []string{link, "missing"}}}})
	}
	n.service(1, "far", "", nil)
	n.apply()
	n.rows([]row{
		{"cluster IP", "node", "172.30.0.1:80", "far<node"},
		{"cluster IP", "pod1", "172.30.0.1:80", "far<pod1"},
		{"node port", "node client", "192.0.2.1:30001", "far<node"},
		{"node port at a cluster IP", "node pod1", "172.30.0.1:30001", "ECONNREFUSED"},
	})
}

// TestPacketsBySettings: what is masqueraded depends on how pods are recognized, and on the settings.
func TestPacketsBySettings(t *testing.T) {
	n := newNetwork(t, dataplane.IPv4)
	n.service(1, "far", "", nil)
	n.service(2, "far", "", func(s *dataplane.Service) { s.ExternalLocal = true })
	for name, c := range map[string]struct {
		change func(*v1alpha1.ProxySettings)
		rows   []row
	}{
		"pods are not known": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNone}
		}, []row{
			{"", "pod1", "172.30.0.1:80", "far<pod1"},
			{"", "client", "172.30.0.1:80", "far<client"},
			{"", "node", "172.30.0.1:80", "far<node"},
			{"", "pod1 client", "203.0.114.1:80", "far<node"},
			{"", "pod1 client", "203.0.114.2:80", "dropped"},
			{"", "node", "203.0.114.2:80", "far<node"},
		}},
		"all is masqueraded": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal, s.Masquerade.All = podsOf(n.prefix("10.244.0.0/16")), new(v1alpha1.Enabled)
		}, []row{
			{"", "pod1 client node", "172.30.0.1:80, 203.0.114.1:80", "far<node"},
			{"", "pod1", "203.0.114.2:80", "far<pod1"},
		}},
		"another bit": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal, s.Masquerade.Bit = podsOf(n.prefix("10.244.0.0/16")), new(int32(31))
		}, []row{
			{"", "client node", "172.30.0.1:80", "far<node"},
			{"", "pod1", "172.30.0.1:80", "far<pod1"},
		}},
		"a bridge": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalBridgeInterface, Interface: new("pod1")}
		}, []row{
			{"", "pod1", "172.30.0.1:80, 203.0.114.2:80", "far<pod1"},
			{"", "pod2 client node", "172.30.0.1:80", "far<node"},
			{"", "pod2", "203.0.114.2:80", "dropped"},
		}},
		"a prefix of interfaces": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalInterfaceNamePrefix, InterfaceNamePrefix: new("pod")}
		}, []row{
			{"", "pod1", "172.30.0.1:80, 203.0.114.2:80", "far<pod1"},
			{"", "pod2", "172.30.0.1:80, 203.0.114.2:80", "far<pod2"},
			{"", "client node", "172.30.0.1:80", "far<node"},
		}},
		"the node's range": {func(s *v1alpha1.ProxySettings) {
			s.DetectLocal = &v1alpha1.DetectLocalSettings{Mode: v1alpha1.DetectLocalNodeCIDR}
		}, []row{
			{"", "pod1", "172.30.0.1:80", "far<pod1"},
			{"", "pod2", "172.30.0.1:80", "far<node"},
		}},
	} {
		settings := &v1alpha1.ProxySettings{Masquerade: &v1alpha1.MasqueradeSettings{}}
		c.change(settings)
		n.rules.Node.Settings = v1alpha1.CompleteSettings(settings)
		n.rules.Node.PodCIDRs = []netip.Prefix{n.prefix("10.244.1.0/24")}
		n.rules.Full = true
		n.apply()
		for i := range c.rows {
			c.rows[i].what = name
		}
		n.rows(c.rows)
	}
}

// TestSessionAffinity: a client keeps its endpoint at a destination, until the endpoint goes.
func TestSessionAffinity(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		t.Run(string(family), func(t *testing.T) {
			n := newNetwork(t, family)
			n.rules.Node.Settings.DetectLocal = podsOf(n.prefix("10.244.0.0/16"))
			add := func(endpoints string) {
				n.service(1, endpoints, "", func(s *dataplane.Service) { s.AffinitySeconds = 10800 })
				n.service(2, "host", "host", func(s *dataplane.Service) { s.AffinitySeconds = 10800 })
				n.apply()
			}
			add("pod1 pod2 far")
			first := map[string]string{}
			for range 10 {
				for _, from := range []string{"other", "client", "node"} {
					for _, to := range []string{"172.30.0.1:80", "203.0.114.1:80", "udp 172.30.0.1:53", "172.30.0.2:80"} {
						answer := n.ask(from, to)
						if before, found := first[from+to]; found && before != answer || !strings.Contains(answer, "<") {
							t.Fatalf("%s asks %s: %s, before %s", from, to, answer, before)
						}
						first[from+to] = answer
					}
				}
			}
			gone, _, _ := strings.Cut(first["client172.30.0.1:80"], "<")
			left := slices.DeleteFunc([]string{"pod1", "pod2", "far"}, func(e string) bool { return e == gone })
			add(strings.Join(left, " "))
			server, _, _ := strings.Cut(n.ask("client", "172.30.0.1:80"), "<")
			if !slices.Contains(left, server) {
				t.Errorf("the endpoint %s is gone, and %q answers", gone, server)
			}
			for range 10 {
				if again, _, _ := strings.Cut(n.ask("client", "172.30.0.1:80"), "<"); again != server {
					t.Fatalf("%s answers, before %s", again, server)
				}
			}
		})
	}
}

// TestInvalid: packets that belong to no connection are dropped, unless the kernel is configured to be
// liberal about them.
func TestInvalid(t *testing.T) {
	n := newNetwork(t, dataplane.IPv4)
	n.apply()
	const reset, syn = 0x04, 0x02
	from, to := n.raw("client"), n.raw("pod1")
	arrives := func() bool {
		t.Helper()
		for _, flags := range []byte{reset, syn} {
			if err := unix.Sendto(from, segment("192.0.2.100", "10.244.1.1", flags), 0, &unix.SockaddrInet4{Addr: [4]byte{10, 244, 1, 1}}); err != nil {
				t.Fatal(err)
			}
		}
		buffer, reached := make([]byte, 1500), false
		for {
			got, _, err := unix.Recvfrom(to, buffer, 0)
			if err != nil || got < 40 {
				t.Fatalf("%d bytes, %v", got, err)
			}
			switch buffer[20+13] {
			case reset:
				reached = true
			case syn:
				return reached
			}
		}
	}
	if arrives() {
		t.Error("a reset of no connection arrives")
	}
	if err := os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", []byte("1"), 0o644); err != nil { //nolint:gosec // it exists
		t.Fatal(err)
	}
	n.rules.Recheck = true
	n.apply()
	if !arrives() {
		t.Error("a reset does not arrive, although the kernel is liberal")
	}
}

// segment is a TCP header without data.
func segment(from, to string, flags byte) []byte {
	b := []byte{0x30, 0x39, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0}
	pseudo := slices.Concat(netip.MustParseAddr(from).AsSlice(), netip.MustParseAddr(to).AsSlice(), []byte{0, unix.IPPROTO_TCP, 0, byte(len(b))}, b)
	sum := uint32(0)
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint32(pseudo[i])<<8 | uint32(pseudo[i+1])
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[16:], ^uint16(sum)) //nolint:gosec // folded
	return b
}

// raw opens a socket of a place that sends and receives TCP segments.
func (n *network) raw(in string) int {
	n.Helper()
	fd := -1
	err := n.places[in].Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	}
	if err != nil {
		n.Fatal(err)
	}
	n.TB.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
