package place

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster/sctp"
)

const patience = 10 * time.Second

// TestAsk asks a server from another place, by each protocol and family.
func TestAsk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	server, client := New(t, "server"), New(t, "client")
	client.Wire(t, "eth0", server)
	server.Run(t, "ip address add 10.0.0.1/24 dev eth0", "ip address add fd00::1/64 dev eth0 nodad")
	client.Run(t, "ip address add 10.0.0.2/24 dev eth0", "ip address add 10.0.0.3/24 dev eth0", "ip address add fd00::2/64 dev eth0 nodad", "ip address add fd00::3/64 dev eth0 nodad")
	protocols := []string{"tcp", "udp"}
	if sctp.Available() {
		protocols = append(protocols, "sctp")
	}
	for to, from := range map[string]string{"10.0.0.1": "10.0.0.3", "fd00::1": "fd00::3"} {
		at := netip.AddrPortFrom(netip.MustParseAddr(to), 80)
		server.Serve(t, at)
		for _, protocol := range protocols {
			c, err := client.Dial(Target{Protocol: protocol, To: at, From: netip.MustParseAddr(from), Patience: patience})
			if err != nil {
				t.Fatalf("%s %s: %v", protocol, at, err)
			}
			for range 2 { // it stays open
				if who, seen, err := c.Ask(); who != "server" || seen != from || err != nil {
					t.Errorf("%s %s: %q sees %q, %v, want server, %s", protocol, at, who, seen, err, from)
				}
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestAskWithoutServer distinguishes a rejection from silence.
func TestAskWithoutServer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	p := New(t, "alone")
	silent := netip.MustParseAddrPort("127.0.0.1:80")
	var u *net.UDPConn
	err := p.Do(func() (err error) { u, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(silent)); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	p.Run(t, "ip route add 10.0.0.0/24 dev lo") // no answers
	for _, x := range []struct {
		protocol, to string
		want         error
	}{
		{"tcp", "127.0.0.1:81", syscall.ECONNREFUSED},
		{"udp", "127.0.0.1:81", syscall.ECONNREFUSED},
		{"udp", silent.String(), os.ErrDeadlineExceeded},
		{"tcp", "10.0.0.1:80", os.ErrDeadlineExceeded},
	} {
		to := Target{Protocol: x.protocol, To: netip.MustParseAddrPort(x.to), Patience: 100 * time.Millisecond}
		if who, _, err := p.Ask(to); !errors.Is(err, x.want) {
			t.Errorf("%s %s: %q answers, %v, want %v", x.protocol, x.to, who, err, x.want)
		}
	}
}

// TestAskRouter has a router report an unreachable host, which the client hears while its
// kernel is still at work on the first packet.
func TestAskRouter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	router, client := New(t, "router"), New(t, "client")
	client.Wire(t, "eth0", router)
	router.Run(t, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
		"ip address add 10.0.0.1/24 dev eth0", "ip address add fd00::1/64 dev eth0 nodad",
		"ip route add unreachable 10.9.0.0/24", "ip -6 route add unreachable fd09::/64")
	client.Run(t, "ip address add 10.0.0.2/24 dev eth0", "ip address add fd00::2/64 dev eth0 nodad",
		"ip route add default via 10.0.0.1", "ip -6 route add default via fd00::1")
	for _, to := range []string{"10.0.0.1:81", "[fd00::1]:81"} { // the first packets of a link may be lost
		target := Target{Protocol: "tcp", To: netip.MustParseAddrPort(to), Patience: patience}
		if _, _, err := client.Ask(target); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%s: %v", to, err)
		}
	}
	for to, want := range map[string]error{"10.9.0.1:80": syscall.EHOSTUNREACH, "[fd09::1]:80": syscall.ENETUNREACH} {
		// A second SYN would go after a second.
		target := Target{Protocol: "tcp", To: netip.MustParseAddrPort(to), Patience: 900 * time.Millisecond}
		if who, _, err := client.Ask(target); !errors.Is(err, want) {
			t.Errorf("%s: %q answers, %v, want %v", to, who, err, want)
		}
	}
}

// TestEnter puts the test itself into a place.
func TestEnter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	p, other := Enter(t, "own"), New(t, "other")
	p.Wire(t, "veth-other", other)
	if _, err := net.InterfaceByName("veth-other"); err != nil {
		t.Errorf("what the test does is not in its place: %v", err)
	}
	if err := other.Do(func() error { _, err := net.InterfaceByName("eth0"); return err }); err != nil {
		t.Error(err)
	}
}
