package nftables

import (
	"errors"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// connectCost is how much longer a connection may take than without rules: the goal.
const connectCost = 10 * time.Microsecond

// prefixCost is what a lookup of a prefix length may take.
const prefixCost = 80 * time.Nanosecond

// TestConnect: what the rules cost a connection by a Service, and one that has nothing to do with
// Services, by the number of Services.
func TestConnect(t *testing.T) {
	for _, services := range []int{100, 5000, 44000} {
		r, _, _ := filled(t, services, 1)
		loopBack(t)
		run(t, "ip route add local 10.128.0.0/14 dev lo") // the endpoints
		listen(t, unix.AF_INET, 8000)
		byService := func(n int) netip.AddrPort { return netip.AddrPortFrom(numbered(n, 0).ClusterIP, 80) }
		direct := func(n int) netip.AddrPort { return numbered(n, 1).Ports[0].Cluster[0] }
		through, past := connectTimes(t, services, byService), connectTimes(t, services, direct)
		if err := r.Dataplane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
			t.Fatal(err)
		}
		bare := connectTimes(t, services, direct)
		t.Logf("%d Services: %s by a Service, %s to an endpoint, %s without rules", services, through, past, bare)
		for _, took := range []time.Duration{through, past} {
			if took-bare > patience*connectCost {
				t.Errorf("%d Services: the rules cost a connection %s, want %s at most", services, took-bare, patience*connectCost)
			}
		}
	}
}

// TestConnectRestricted: what a connection to a restricted address costs if Services of the node have source ranges
// of all prefix lengths, and its own is looked up last.
func TestConnectRestricted(t *testing.T) {
	for _, family := range []dataplane.Family{dataplane.IPv4, dataplane.IPv6} {
		r := rigWith(t, ownNamespace(t), family)
		loopBack(t)
		run(t, "ip -6 addr add 2001:db8::1/64 dev lo nodad")
		run(t, "ip -6 route add default dev lo")
		restricted, others, bits := numbered(1, 1), numbered(2, 1), 32
		number := unix.AF_INET
		client, address, another := "192.0.2.1", "203.0.113.1", "203.0.113.2"
		if family == dataplane.IPv6 {
			client, address, another, bits, number = "2001:db8::1", "2001:db8:1::1", "2001:db8:1::2", 128, unix.AF_INET6
		}
		for s, a := range map[*dataplane.Service]string{restricted: address, others: another} {
			s.ClusterIP, s.LoadBalancerIPs = netip.Addr{}, []netip.Addr{netip.MustParseAddr(a)}
			s.Ports[0].Cluster = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(client), 8000)}
		}
		restricted.SourceRanges = []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(client), 1).Masked()}
		listen(t, number, 8000)
		to := func(int) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(address), 80) }
		r.set(restricted)
		r.apply()
		alone := connectTimes(t, 1, to)
		for n := 2; n <= bits; n++ {
			network := make([]byte, bits/8) // none inside another
			network[(n-1)/8] = 1 << (7 - (n-1)%8)
			a, _ := netip.AddrFromSlice(network)
			others.SourceRanges = append(others.SourceRanges, netip.PrefixFrom(a, n))
		}
		r.set(others)
		r.apply()
		all := connectTimes(t, 1, to)
		t.Logf("%s: %s with one prefix length, %s with %d: %s for each", family, alone, all, bits, (all-alone)/time.Duration(bits-1))
		if most := patience * time.Duration(bits) * prefixCost; all-alone > most {
			t.Errorf("%s: %d prefix lengths cost a connection %s, want %s at most", family, bits, all-alone, most)
		}
	}
}

// loopBack gives the network namespace an address, and a route by which all it sends comes back.
func loopBack(t *testing.T) {
	t.Helper()
	for _, command := range []string{"ip link set lo up", "ip addr add 192.0.2.1/24 dev lo", "ip route add default dev lo"} {
		run(t, command)
	}
}

func run(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil { //nolint:gosec // a test's own words
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// listen accepts connections on a port of any address, in the kernel alone.
func listen(t *testing.T, family, port int) {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	of := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		of = netip.IPv6Unspecified()
	}
	if err := unix.Bind(fd, socketAddress(netip.AddrPortFrom(of, uint16(port)))); err != nil { //nolint:gosec // a port
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 4096); err != nil {
		t.Fatal(err)
	}
}

func socketAddress(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// connectTimes is the median of connecting to Services of so many, all over the table.
func connectTimes(t *testing.T, services int, to func(n int) netip.AddrPort) time.Duration {
	t.Helper()
	const connections = 1000
	took := make([]time.Duration, connections)
	for i := range took {
		at := to(i * 7919 % services)
		family := unix.AF_INET
		if at.Addr().Is6() {
			family = unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		// It is reset when it is closed: nothing stays behind.
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		begin := time.Now()
		if err == nil {
			err = unix.Connect(fd, socketAddress(at))
		}
		took[i] = time.Since(begin)
		_ = unix.Close(fd)
		if err != nil {
			t.Fatalf("connection to %s: %v", at, err)
		}
	}
	slices.Sort(took)
	return took[connections/2]
}

// TestEarlierConnection: what a client that connected before the Service came sends again is not
// rejected, which would leave the connection's untranslated state to the next one from its port.
func TestEarlierConnection(t *testing.T) {
	r := newRig(t)
	r.set(numbered(1, 1))
	r.apply() // from now on the kernel tracks connections
	loopBack(t)
	early := numbered(2, 1)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: early.ClusterIP.As4(), Port: 80}); !errors.Is(err, unix.EINPROGRESS) {
		t.Fatal(err)
	}
	r.set(early)
	r.apply()
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 100); err != nil && !errors.Is(err, unix.EINTR) { //nolint:gosec // small
			t.Fatal(err)
		}
		if failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || failed != 0 {
			t.Fatalf("%v, %v", unix.Errno(failed), err) //nolint:gosec // small
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			t.Fatal(err)
		}
		if info.Total_retrans >= 2 { // after three seconds: the first was not rejected
			return
		}
	}
}
