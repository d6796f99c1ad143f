package kernel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// patience is how long something may take.
const patience = 10 * time.Second

// serve answers each connection on an address with the address, until the test
// ends. The connections stay open until the client closes them.
func serve(t *testing.T, on netip.AddrPort) {
	t.Helper()
	listener, err := net.Listen("tcp", on.String())
	check(t, err)
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			running.Go(func() {
				defer func() { _ = conn.Close() }()
				_, _ = fmt.Fprintln(conn, on)
				_, _ = io.Copy(io.Discard, conn)
			})
		}
	})
}

// connect returns a connection, and who has answered.
func connect(t *testing.T, to ipvs.Key) (net.Conn, netip.AddrPort) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to.Addr, to.Port).String(), patience)
	// The kernel makes the route to a new IPv6 address a moment later.
	for end := time.Now().Add(patience); errors.Is(err, unix.ENETUNREACH) && time.Now().Before(end); {
		<-time.After(10 * time.Millisecond)
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(to.Addr, to.Port).String(), patience)
	}
	check(t, err)
	check(t, conn.SetDeadline(time.Now().Add(patience)))
	var answer string
	_, err = fmt.Fscanln(conn, &answer)
	check(t, err)
	from, err := netip.ParseAddrPort(answer)
	check(t, err)
	return conn, from
}

// await looks at real servers until they are as they should.
func (l *lab) await(t *testing.T, k ipvs.Key, what string, f func(map[netip.AddrPort]ipvs.Real) bool) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		reals, err := l.Reals(k)
		check(t, err)
		switch {
		case f(reals):
			return
		case time.Now().After(end):
			t.Fatalf("%s: %+v", what, reals)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// connections sends real ones through virtual servers, and counts them.
func (l *lab) connections(t *testing.T) {
	lo, err := netlink.LinkByName("lo")
	check(t, err)
	for i := range 2 {
		a, err := netlink.ParseAddr(netip.PrefixFrom(l.real(i+1).Addr(), l.real(1).Addr().BitLen()).String())
		check(t, err)
		a.Flags = unix.IFA_F_NODAD // or it cannot be used at once
		check(t, netlink.AddrAdd(lo, a))
		t.Cleanup(func() { check(t, netlink.AddrDel(lo, a)) })
		serve(t, l.real(i+1))
	}
	k := l.key(1, 80, v1alpha1.ProtocolTCP)
	t.Cleanup(func() { check(t, l.DeleteServer(k), l.DeleteDevice()) })
	check(t, l.CreateDevice(), l.Bind(k.Addr), l.AddServer(k, ipvs.Server{Scheduler: "rr"}),
		l.AddReal(k, l.real(1), 1), l.AddReal(k, l.real(2), 1), l.SetSysctl("net/ipv4/vs/conntrack", "1"))

	answered := map[netip.AddrPort]int{}
	var held []net.Conn
	for range 6 {
		conn, from := connect(t, k)
		held = append(held, conn)
		answered[from]++
	}
	if answered[l.real(1)] != 3 || answered[l.real(2)] != 3 {
		t.Errorf("answered by %v", answered)
	}
	l.await(t, k, "six connections are not counted", func(r map[netip.AddrPort]ipvs.Real) bool {
		return r[l.real(1)].Active == 3 && r[l.real(2)].Active == 3 && r[l.real(1)].Inactive == 0
	})
	// Without weight it gets no new ones, and those that are open go on.
	check(t, l.ChangeReal(k, l.real(1), 0))
	for range 2 {
		conn, from := connect(t, k)
		held = append(held, conn)
		if from != l.real(2) {
			t.Errorf("answered by %s, which has weight 0", from)
		}
	}
	for _, conn := range held {
		check(t, conn.Close())
	}
	l.await(t, k, "connections that have ended are active", func(r map[netip.AddrPort]ipvs.Real) bool {
		return r[l.real(1)].Active == 0 && r[l.real(2)].Active == 0 && r[l.real(2)].Inactive > 0
	})

	// A client stays where it is while it is remembered.
	check(t, l.ChangeReal(k, l.real(1), 1), l.ChangeServer(k, ipvs.Server{Scheduler: "rr", Flags: ipvs.FlagPersistent, Timeout: 100}))
	var first netip.AddrPort
	for i := range 4 {
		conn, from := connect(t, k)
		check(t, conn.Close())
		if i == 0 {
			first = from
		}
		if from != first {
			t.Errorf("answered by %s after %s", from, first)
		}
	}
}
