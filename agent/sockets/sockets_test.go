package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/test/place"
)

// user is one that is not root.
const user = 1000

// enter gives the test a network namespace of its own.
func enter(t *testing.T) *place.Place {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	return place.Enter(t, "node")
}

// control is what net.ListenConfig calls.
type control func(network, address string, c syscall.RawConn) error

// option is a control that sets a socket's option.
func option(set func(fd int) error) control {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = set(int(fd)) }), err)
	}
}

// listenAs listens as a process of that user does. The calling goroutine must be
// bound to its thread.
func listenAs(uid int, network, address string, c control) (net.Listener, error) {
	if err := unix.Setfsuid(uid); err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{Control: c}).Listen(context.Background(), network, address)
	return l, errors.Join(err, unix.Setfsuid(0))
}

func mustListen(t *testing.T, uid int, network, address string, c control) net.Listener {
	t.Helper()
	l, err := listenAs(uid, network, address, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // some tests have closed it
	return l
}

// whose is who listens, for comparison.
func whose(l *Listener, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case l == nil:
		return "none"
	default:
		return fmt.Sprint(l.UID)
	}
}

// TestListening asks the real kernel.
func TestListening(t *testing.T) {
	type listener struct {
		uid              int
		network, address string
		device           string
	}
	for _, tt := range []struct {
		name      string
		listeners []listener
		v4, v6    string // who gets connections to the loopback addresses
		holder    string // who is in the way of 0.0.0.0
	}{
		{name: "none", v4: "none", v6: "none", holder: "none"},
		{name: "root, IPv4", listeners: []listener{{0, "tcp", "127.0.0.1:10249", ""}}, v4: "0", v6: "none", holder: "0"},
		{name: "root, IPv6", listeners: []listener{{0, "tcp", "[::1]:10249", ""}}, v4: "none", v6: "0", holder: "0"},
		{name: "a user, IPv6", listeners: []listener{{user, "tcp", "[::1]:10249", ""}}, v4: "none", v6: "1000", holder: "1000"},
		{name: "root, and a user at the other family", listeners: []listener{{0, "tcp", "127.0.0.1:10249", ""}, {user, "tcp", "[::1]:10249", ""}}, v4: "0", v6: "1000", holder: "0"},
		{name: "a user, all of IPv4", listeners: []listener{{user, "tcp4", "0.0.0.0:10249", ""}}, v4: "1000", v6: "none", holder: "1000"},
		{name: "a user, all of both", listeners: []listener{{user, "tcp", "[::]:10249", ""}}, v4: "1000", v6: "1000", holder: "1000"},
		{name: "root, all of both", listeners: []listener{{0, "tcp", ":10249", ""}}, v4: "0", v6: "0", holder: "0"},
		{name: "a user, all of IPv6 alone", listeners: []listener{{user, "tcp6", "[::]:10249", ""}}, v4: "none", v6: "1000", holder: "1000"},
		{name: "a user, bound to the device", listeners: []listener{{user, "tcp4", "0.0.0.0:10249", "lo"}}, v4: "1000", v6: "none", holder: "1000"},
		{name: "another address", listeners: []listener{{user, "tcp", "127.0.0.2:10249", ""}}, v4: "none", v6: "none", holder: "1000"},
		{name: "another port", listeners: []listener{{user, "tcp", "127.0.0.1:10250", ""}, {user, "tcp", "[::1]:10250", ""}}, v4: "none", v6: "none", holder: "none"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			enter(t)
			for _, l := range tt.listeners {
				var bind control
				if l.device != "" {
					bind = option(func(fd int) error { return unix.BindToDevice(fd, l.device) })
				}
				mustListen(t, l.uid, l.network, l.address, bind)
			}
			for address, want := range map[string]string{"127.0.0.1:10249": tt.v4, "[::1]:10249": tt.v6} {
				at := netip.MustParseAddrPort(address)
				if got := whose(Kernel{}.Listening(at)); got != want {
					t.Errorf("%s: %s listens, want %s", address, got, want)
				}
				if got := whose(Kernel{}.Holder(at)); got != want {
					t.Errorf("%s: %s is in the way, want %s", address, got, want)
				}
			}
			if got := whose(Kernel{}.Holder(netip.MustParseAddrPort("0.0.0.0:10249"))); got != tt.holder {
				t.Errorf("%s is in the way of all addresses, want %s", got, tt.holder)
			}
		})
	}
}

// TestAPortIsSharedByOneUser: so one listener speaks for all of them.
func TestAPortIsSharedByOneUser(t *testing.T) {
	enter(t)
	const address = "127.0.0.1:10249"
	share := option(func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	mustListen(t, 0, "tcp", address, share)
	mustListen(t, 0, "tcp", address, share)
	for _, other := range []string{address, "0.0.0.0:10249"} {
		if l, err := listenAs(user, "tcp4", other, share); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("another user listens at %s beside root: %v, %v", other, l, err)
		}
	}
	if got := whose(Kernel{}.Listening(netip.MustParseAddrPort(address))); got != "0" {
		t.Errorf("%s listens", got)
	}
}

// TestCookies distinguish one listener from the next.
func TestCookies(t *testing.T) {
	enter(t)
	at := netip.MustParseAddrPort("[::1]:10249")
	look := func() Listener {
		t.Helper()
		found, err := Kernel{}.Listening(at)
		if err != nil || found == nil {
			t.Fatalf("got %v, %v", found, err)
		}
		return *found
	}
	l := mustListen(t, 0, "tcp", at.String(), nil)
	first := look()
	if again := look(); again != first {
		t.Errorf("%+v is not %+v", again, first)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	mustListen(t, 0, "tcp", at.String(), nil)
	if second := look(); second == first {
		t.Errorf("another one is %+v, too", second)
	}
}

// connect returns a connection, and its own end.
func connect(t *testing.T, to string) (net.Conn, netip.AddrPort) {
	t.Helper()
	c, err := net.DialTimeout("tcp", to, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // nothing was written
	return c, netip.MustParseAddrPort(c.LocalAddr().String())
}

func TestHere(t *testing.T) {
	enter(t)
	for _, address := range []string{"127.0.0.1:10249", "[::1]:10249"} {
		at := netip.MustParseAddrPort(address)
		expect := func(when string, client netip.AddrPort, want bool) {
			t.Helper()
			if here, err := (Kernel{}).Here(at, client); err != nil || here != want {
				t.Errorf("%s, %s: %v, %v", address, when, here, err)
			}
		}
		l := mustListen(t, 0, "tcp", address, nil)
		c, client := connect(t, address)
		expect("not accepted yet", client, true)
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		expect("accepted", client, true)
		if _, err := server.Write([]byte("answer")); err != nil {
			t.Fatal(err)
		}
		if err := server.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
		expect("answered and closed", client, true)
		expect("no connection", netip.AddrPortFrom(client.Addr(), client.Port()^1), false)
	}
}

// TestLedElsewhere: a rule leads connections to a pod, as for its hostPort, whether
// the node listens there itself or not.
func TestLedElsewhere(t *testing.T) {
	node := enter(t)
	pod := place.New(t, "pod")
	node.Wire(t, "pod0", pod)
	node.Run(t, "ip address add 192.0.2.1/24 dev pod0")
	pod.Run(t, "ip address add 192.0.2.2/24 dev eth0")
	pod.Serve(t, netip.MustParseAddrPort("192.0.2.2:80"))
	if err := os.WriteFile("/proc/sys/net/ipv4/conf/all/route_localnet", []byte("1"), 0o644); err != nil { //nolint:gosec // it exists
		t.Fatal(err)
	}
	node.Run(t,
		"nft add table ip test",
		"nft add chain ip test output { type nat hook output priority -100; }",
		"nft add rule ip test output ip daddr 127.0.0.1 tcp dport 10249 dnat to 192.0.2.2:80",
		"nft add chain ip test postrouting { type nat hook postrouting priority 100; }",
		"nft add rule ip test postrouting oifname pod0 masquerade")
	at := netip.MustParseAddrPort("127.0.0.1:10249")
	for _, listens := range []string{"none", "0"} {
		if listens == "0" {
			mustListen(t, 0, "tcp", at.String(), nil)
		}
		_, client := connect(t, at.String())
		here, err := Kernel{}.Here(at, client)
		if here || err != nil {
			t.Errorf("%s listens: here %v, %v", listens, here, err)
		}
		if got := whose(Kernel{}.Listening(at)); got != listens {
			t.Errorf("%s listens, want %s", got, listens)
		}
	}
}

func BenchmarkListening(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }() // nothing was written
	at := netip.MustParseAddrPort(l.Addr().String())
	for b.Loop() {
		if found, err := (Kernel{}).Listening(at); err != nil || found == nil {
			b.Fatal(found, err)
		}
	}
}
