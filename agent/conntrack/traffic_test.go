package conntrack

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// TestRealTraffic keeps sockets open while the rule that translates them
// changes. That they stay as they were until a pass has been made shows that
// the pass is needed.
func TestRealTraffic(t *testing.T) {
	onRealKernel(t)
	// Datagrams that nothing translates leave by a link without an answer.
	run(t, "ip", "link", "add", "away", "type", "veth", "peer", "name", "unanswered")
	run(t, "ip", "link", "set", "away", "up")
	run(t, "ip", "link", "set", "unanswered", "up")
	for _, tt := range []struct {
		family                  dataplane.Family
		iptables                string
		flags                   string // of addresses
		service, one, two, node string
	}{
		{dataplane.IPv4, "iptables", "", "10.96.0.10", "10.244.0.3", "10.244.0.4", "192.0.2.21"},
		{dataplane.IPv6, "ip6tables", "nodad", "fd00::10", "fd01::3", "fd01::4", "2001:db8::21"},
	} {
		for _, a := range []string{tt.one, tt.two, tt.node} {
			run(t, "sh", "-c", "ip address add "+a+" dev lo "+tt.flags)
		}
		run(t, "ip", "route", "add", tt.service, "dev", "away", "src", tt.node)
		run(t, "ip", "neighbor", "add", tt.service, "lladdr", "02:00:00:00:00:99", "dev", "away")
		one, two := net.JoinHostPort(tt.one, "5353"), net.JoinHostPort(tt.two, "5353")
		answer(t, one, "one")
		answer(t, two, "two")
		rule := func(operation, endpoint string) {
			for _, to := range []string{tt.service + " --dport 53", tt.node + " --dport 30053"} {
				run(t, "sh", "-c", tt.iptables+" -t nat "+operation+" OUTPUT -p udp -d "+to+" -j DNAT --to-destination "+endpoint)
			}
		}
		pass := func(services ...*dataplane.Service) {
			c := New(Options{Family: tt.family, Protocol: v1alpha1.ProtocolUDP, Table: NewKernel(), Clock: clock.RealClock{}, Log: logr.Discard(), May: func() bool { return true }})
			c.Committed(ruleset(true, services), dataplane.Result{})
			if p := c.pass(t.Context()); p.Err != nil {
				t.Fatal(p.Err)
			}
		}
		serving := func(endpoint string) *dataplane.Service {
			return service("dns", "ip "+tt.service+" port 53 np 30053 ep "+endpoint)
		}
		early := connect(t, net.JoinHostPort(tt.service, "53"))
		expect := func(when string, want string, conns ...net.Conn) {
			t.Helper()
			for _, conn := range conns {
				got := ask(t, conn)
				// An answer may be late on a busy machine, and be read as the next.
				for end := time.Now().Add(30 * time.Second); got != want && want != "" && time.Now().Before(end); {
					got = ask(t, conn)
				}
				if got != want {
					t.Errorf("%s, from %s to %s: answered by %q, want %q", when, conn.LocalAddr(), conn.RemoteAddr(), got, want)
				}
			}
		}
		run(t, tt.iptables, "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-j", "DNAT", "--to-destination", one) // tracking begins with a first translation
		expect("no rule", "", early)
		rule("-A", one)
		expect("the first endpoint, no pass", "", early)
		pass(serving(one))
		flows := []net.Conn{early, connect(t, net.JoinHostPort(tt.service, "53")), connect(t, net.JoinHostPort(tt.node, "30053"))}
		expect("the first endpoint", "one", flows...)
		rule("-D", one)
		rule("-A", two)
		expect("another endpoint, no pass", "one", flows...)
		pass(serving(two))
		expect("another endpoint", "two", flows...)
	}
}

// answer serves datagrams at an address with a name.
func answer(t *testing.T, address, name string) {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		var buffer [16]byte
		for {
			_, from, err := conn.ReadFromUDPAddrPort(buffer[:])
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort([]byte(name), from) // who does not hear it asks again
		}
	}()
}

func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ask sends datagrams until it gets an answer; empty: there is none.
func ask(t *testing.T, conn net.Conn) string {
	t.Helper()
	var buffer [16]byte
	for range 3 {
		if _, err := conn.Write([]byte("?")); err != nil {
			continue // an earlier datagram was rejected
		}
		if err := conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buffer[:])
		if err == nil {
			return string(buffer[:n])
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Logf("%s: %v", conn.RemoteAddr(), err)
		}
	}
	return ""
}

// TestEarlyConnections: a client that connects before its address is translated gets no answer, even
// once there is a rule, and neither does the next connection from its port, until a pass.
func TestEarlyConnections(t *testing.T) {
	onRealKernel(t)
	const service4, one, gone = "10.96.0.10", "10.244.0.3", "10.244.0.9"
	run(t, "ip", "link", "add", "away", "type", "veth", "peer", "name", "unanswered")
	run(t, "ip", "link", "set", "away", "up")
	run(t, "ip", "link", "set", "unanswered", "up")
	run(t, "ip", "address", "add", one, "dev", "lo")
	for _, away := range []string{service4, gone} {
		run(t, "ip", "route", "add", away, "dev", "away", "src", one)
		run(t, "ip", "neighbor", "add", away, "lladdr", "02:00:00:00:00:99", "dev", "away")
	}
	listener, err := net.Listen("tcp", one+":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	rule := func(operation, endpoint string) {
		run(t, "iptables", "-t", "nat", operation, "OUTPUT", "-p", "tcp", "-d", service4, "--dport", "80", "-j", "DNAT", "--to-destination", endpoint+":8080")
	}
	dial := func(port int, limit time.Duration) error {
		dialer := net.Dialer{Timeout: limit, LocalAddr: &net.TCPAddr{IP: net.ParseIP(one), Port: port}}
		conn, err := dialer.Dial("tcp", service4+":80")
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	fail := func(port int, when string) {
		t.Helper()
		err := dial(port, 100*time.Millisecond)
		if failure, ok := errors.AsType[net.Error](err); !ok || !failure.Timeout() {
			t.Fatalf("%s: %v, want no answer", when, err)
		}
	}
	const early, late = 40000, 40001
	run(t, "iptables", "-t", "nat", "-A", "OUTPUT", "-p", "udp", "-j", "DNAT", "--to-destination", one) // connections are tracked while something is translated
	rule("-A", gone)
	fail(late, "an endpoint that is gone")
	rule("-D", gone)
	fail(early, "no rule")
	rule("-A", one)
	fail(early, "a rule, but no pass")
	fail(late, "another endpoint, but no pass")
	c := New(Options{Family: dataplane.IPv4, Protocol: v1alpha1.ProtocolTCP, Table: NewKernel(), Clock: clock.RealClock{}, Log: logr.Discard(), May: func() bool { return true }})
	c.Committed(ruleset(true, list{service("web", "ip "+service4+" port 80 tcp ep "+one+":8080")}), dataplane.Result{})
	for i, want := range []map[Reason]int{{NotTranslated: 1}, {EndpointGone: 1}} {
		if p := c.pass(t.Context()); p.Err != nil || !maps.Equal(p.Removed, want) {
			t.Errorf("pass %d: %+v, want %v removed", i+1, p, want)
		}
	}
	for _, port := range []int{early, late} {
		if err := dial(port, 20*time.Second); err != nil {
			t.Errorf("from port %d, after two passes: %v", port, err)
		}
	}
}
