package modeltest

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

// Chosen is the real server that IPVS chose for the packet that was sent last, whatever
// became of it afterwards; the zero one if IPVS chose none.
func (l *Lab) Chosen(p kernelmodel.Packet) netip.AddrPort {
	l.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/ip_vs_conn")
	l.must(err)
	client := netip.AddrPortFrom(p.Source, l.port)
	for line := range strings.Lines(string(text)) {
		// Protocol, client, virtual server and real server, the last three with a port.
		words := strings.Fields(line)
		if len(words) < 7 || !strings.EqualFold(words[0], p.Protocol) || l.hexEndpoint(words[1], words[2]) != client {
			continue
		}
		return l.hexEndpoint(words[5], words[6])
	}
	return netip.AddrPort{}
}

// hexEndpoint reads an address and a port as the kernel writes them to ip_vs_conn.
func (l *Lab) hexEndpoint(address, port string) netip.AddrPort {
	l.Helper()
	var a netip.Addr
	if strings.Contains(address, ":") {
		a = netip.MustParseAddr(strings.Trim(address, "[]"))
	} else {
		bytes, err := hex.DecodeString(address)
		l.must(err)
		if len(bytes) != 4 {
			l.Fatalf("no IPv4 address: %s", address)
		}
		a = netip.AddrFrom4([4]byte(bytes))
	}
	n, err := strconv.ParseUint(port, 16, 16)
	l.must(err)
	return netip.AddrPortFrom(a, uint16(n))
}

// AwaitLocal waits until the node takes packets to an address for its own, or until it
// does not. The kernel makes the route to an IPv6 address a moment after the address.
func (l *Lab) AwaitLocal(a netip.Addr, want bool) error {
	for deadline := time.Now().Add(patience * time.Second); ; <-time.After(time.Millisecond) {
		routes, err := netlink.RouteGet(a.AsSlice())
		if err != nil {
			return fmt.Errorf("the route to %s: %w", a, err)
		}
		local := slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
		if local == want {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the kernel takes packets to %s for its own: %t", a, local)
		}
	}
}
