package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// key returns a virtual server's name; its address ends in the number.
func (l *lab) key(n int, port uint16, protocol v1alpha1.Protocol) ipvs.Key {
	return ipvs.Key{Addr: l.addr(n), Port: port, Protocol: protocol}
}

// addr is the address with a number, which nothing else has.
func (l *lab) addr(n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(pick(l, "10.96.0.%d", "fd00:96::%x"), n))
}

// real is the real server with a number.
func (l *lab) real(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(pick(l, "10.244.0.%d", "fd00:244::%x"), n)), 8080)
}

func (l *lab) expectServers(t *testing.T, want map[ipvs.Key]ipvs.Server) {
	t.Helper()
	got, err := l.Servers()
	check(t, err)
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b ipvs.Key) bool { return a == b })); diff != "" {
		t.Errorf("virtual servers differ (-want +got):\n%s", diff)
	}
}

func (l *lab) clear(t *testing.T, want map[ipvs.Key]ipvs.Server) {
	t.Helper()
	for k := range want {
		check(t, l.DeleteServer(k), l.DeleteServer(k))
	}
	l.expectServers(t, map[ipvs.Key]ipvs.Server{})
}

func (l *lab) servers(t *testing.T) {
	want := map[ipvs.Key]ipvs.Server{
		l.key(1, 80, v1alpha1.ProtocolTCP):  {Scheduler: "rr"},
		l.key(1, 80, v1alpha1.ProtocolUDP):  {Scheduler: "rr"},
		l.key(1, 80, v1alpha1.ProtocolSCTP): {Scheduler: "rr"},
		l.key(1, 443, v1alpha1.ProtocolTCP): {Scheduler: "wrr", Flags: ipvs.FlagPersistent, Timeout: 10800},
		l.key(2, 65535, "TCP"):              {Scheduler: "mh", Flags: ipvs.FlagSourcePort},
		l.key(3, 1, "UDP"):                  {Scheduler: "mh", Flags: ipvs.FlagSourcePort | ipvs.FlagPersistent, Timeout: 86400},
	}
	for k, s := range want {
		check(t, l.AddServer(k, s))
		if err := l.AddServer(k, s); !errors.Is(err, fs.ErrExist) {
			t.Errorf("adding it twice: %v", err)
		}
	}
	// Of others: one of a firewall mark, and one of the other family.
	run(t, "ipvsadm -A -f 7 -s rr")
	run(t, "ipvsadm -A -t "+pick(l, "[fd00:1::1]:1", "10.1.0.1:1")+" -s rr")
	l.expectServers(t, want)
	if n, known := l.Count(); !known || n < len(want) || n > len(want)+1 { // that of a firewall mark may be one of them
		t.Errorf("counted %d, %v", n, known)
	}

	out := run(t, "ipvsadm -Sn")
	for _, line := range []string{
		"-A -t " + pick(l, "10.96.0.1:80", "[fd00:96::1]:80") + " -s rr\n",
		"-A -u " + pick(l, "10.96.0.1:80", "[fd00:96::1]:80") + " -s rr\n",
		"-A --sctp-service " + pick(l, "10.96.0.1:80", "[fd00:96::1]:80") + " -s rr\n",
		"-A -t " + pick(l, "10.96.0.1:443", "[fd00:96::1]:443") + " -s wrr -p 10800\n",
		"-A -t " + pick(l, "10.96.0.2:65535", "[fd00:96::2]:65535") + " -s mh -b mh-port\n",
		"-A -u " + pick(l, "10.96.0.3:1", "[fd00:96::3]:1") + " -s mh -p 86400 -b mh-port\n",
	} {
		if !strings.Contains(out, line) {
			t.Errorf("ipvsadm does not print %q:\n%s", line, out)
		}
	}
	run(t, "ipvsadm -D -f 7")
	run(t, "ipvsadm -D -t "+pick(l, "[fd00:1::1]:1", "10.1.0.1:1"))

	// Changed in place, the real servers stay.
	k := l.key(1, 443, v1alpha1.ProtocolTCP)
	check(t, l.AddReal(k, l.real(1), 1))
	for _, s := range []ipvs.Server{
		{Scheduler: "wrr"}, {Scheduler: "sh"}, {Scheduler: "sh", Flags: ipvs.FlagPersistent, Timeout: 60}, {Scheduler: "rr"},
	} {
		check(t, l.ChangeServer(k, s))
		want[k] = s
		l.expectServers(t, want)
	}
	l.expectReals(t, k, map[netip.AddrPort]ipvs.Real{l.real(1): {Weight: 1}})
	if err := l.ChangeServer(l.key(9, 9, "TCP"), ipvs.Server{Scheduler: "rr"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("changing one that is missing: %v", err)
	}
	var missing *ipvs.SchedulerError
	for _, err := range []error{l.ChangeServer(k, ipvs.Server{Scheduler: "nosuch"}), l.AddServer(l.key(9, 9, "TCP"), ipvs.Server{Scheduler: "nosuch"})} {
		if !errors.As(err, &missing) || missing.Scheduler != "nosuch" {
			t.Errorf("with a scheduler that is missing: %v", err)
		}
	}
	l.clear(t, want)
}

// schedulers tries every one that the kernel has, as a default and in a probe.
func (l *lab) schedulers(t *testing.T) {
	modules, err := filepath.Glob("/usr/lib/uml/modules/*/kernel/net/netfilter/ipvs/ip_vs_*.ko")
	check(t, err)
	tried := 0
	for _, module := range modules {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(module), "ip_vs_"), ".ko")
		if name == "ftp" || name == "pe_sip" {
			continue // no schedulers
		}
		check(t, l.Probe(name))
		k, s := l.key(1, 80, "TCP"), ipvs.Server{Scheduler: name}
		check(t, l.AddServer(k, s), l.AddReal(k, l.real(1), 1))
		l.expectServers(t, map[ipvs.Key]ipvs.Server{k: s})
		check(t, l.DeleteServer(k))
		tried++
	}
	if tried < 10 {
		t.Errorf("only %d schedulers in %v", tried, modules)
	}
}

func (l *lab) expectReals(t *testing.T, k ipvs.Key, want map[netip.AddrPort]ipvs.Real) {
	t.Helper()
	got, err := l.Reals(k)
	check(t, err)
	if !maps.Equal(want, got) {
		t.Errorf("real servers of %s: %v, want %v", k, got, want)
	}
}

func (l *lab) reals(t *testing.T) {
	k := l.key(1, 80, v1alpha1.ProtocolTCP)
	l.expectReals(t, k, map[netip.AddrPort]ipvs.Real{}) // no virtual server
	for _, err := range []error{l.AddReal(k, l.real(1), 1), l.ChangeReal(k, l.real(1), 1)} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without a virtual server: %v", err)
		}
	}
	check(t, l.DeleteReal(k, l.real(1)), l.AddServer(k, ipvs.Server{Scheduler: "rr"}), l.DeleteReal(k, l.real(1)))
	if err := l.ChangeReal(k, l.real(1), 1); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("changing one that is missing: %v", err)
	}
	other := netip.AddrPortFrom(l.real(1).Addr(), 9090)
	check(t, l.AddReal(k, l.real(1), 1), l.AddReal(k, l.real(2), 0), l.AddReal(k, other, 65535))
	if err := l.AddReal(k, l.real(1), 1); !errors.Is(err, fs.ErrExist) {
		t.Errorf("adding it twice: %v", err)
	}
	l.expectReals(t, k, map[netip.AddrPort]ipvs.Real{l.real(1): {Weight: 1}, l.real(2): {}, other: {Weight: 65535}})
	// Of another program, by another method.
	run(t, "ipvsadm -a -t "+netip.AddrPortFrom(k.Addr, 80).String()+" -r "+pick(l, "10.244.0.3:80", "[fd00:244::3]:80")+" -g")
	unmanaged := netip.AddrPortFrom(l.real(3).Addr(), 80)
	got, err := l.Reals(k)
	check(t, err)
	if got[unmanaged].Forwarding != 3 {
		t.Errorf("real servers: %v", got)
	}
	check(t, l.ChangeReal(k, l.real(1), 0), l.ChangeReal(k, l.real(2), 1), l.ChangeReal(k, unmanaged, 2), l.DeleteReal(k, other), l.DeleteReal(k, other))
	l.expectReals(t, k, map[netip.AddrPort]ipvs.Real{l.real(1): {}, l.real(2): {Weight: 1}, unmanaged: {Weight: 2}})
	more := pick(l, 10_000, 1_000) // than fit into one message
	for i := range more {
		check(t, l.AddReal(k, netip.AddrPortFrom(l.real(4).Addr(), uint16(i+1)), 1))
	}
	if got, err = l.Reals(k); err != nil || len(got) != 3+more {
		t.Errorf("%d real servers, %v", len(got), err)
	}
	check(t, l.DeleteServer(k))
	l.expectReals(t, k, map[netip.AddrPort]ipvs.Real{})
}

func (l *lab) probe(t *testing.T) {
	address := netip.MustParseAddr(pick(l, "198.51.100.0", "2001:db8::1"))
	at := func(port uint16) ipvs.Key {
		return ipvs.Key{Addr: address, Port: port, Protocol: v1alpha1.ProtocolTCP}
	}
	left := ipvs.Server{Scheduler: "wlc", Flags: ipvs.FlagPersistent, Timeout: 7391753} // by one that was killed
	check(t, l.AddServer(at(20000), left), l.AddServer(at(20002), left), ipvs.NewKernel(l.family, "").Open())
	l.expectServers(t, map[ipvs.Key]ipvs.Server{})
	check(t, l.AddServer(at(20001), left), l.Probe("rr"))
	l.expectServers(t, map[ipvs.Key]ipvs.Server{})

	unmanaged := map[ipvs.Key]ipvs.Server{}
	for port := uint16(20000); port < 20003; port++ {
		unmanaged[at(port)] = ipvs.Server{Scheduler: "rr"}
		check(t, l.AddServer(at(port), ipvs.Server{Scheduler: "rr"}), l.Probe("rr"))
	}
	unmanaged[at(20003)] = ipvs.Server{Scheduler: "rr"}
	check(t, l.AddServer(at(20003), ipvs.Server{Scheduler: "rr"}))
	if err := l.Probe("rr"); err == nil || !strings.Contains(err.Error(), "ipvsadm -D") {
		t.Errorf("with no room for a probe: %v", err)
	}
	l.expectServers(t, unmanaged)
	l.clear(t, unmanaged)
}

func (l *lab) timeouts(t *testing.T) {
	before, err := l.Timeouts()
	check(t, err)
	if before.TCP == 0 || before.TCPFin == 0 || before.UDP == 0 {
		t.Errorf("timeouts %+v", before)
	}
	check(t, l.SetTimeouts(ipvs.Timeouts{TCP: 100, UDP: 300}))
	if now, err := l.Timeouts(); err != nil || now != (ipvs.Timeouts{TCP: 100, TCPFin: before.TCPFin, UDP: 300}) {
		t.Errorf("timeouts %+v, %v", now, err)
	}
	if out := run(t, "ipvsadm -Ln --timeout"); !strings.Contains(out, fmt.Sprintf("100 %d 300", before.TCPFin)) {
		t.Errorf("ipvsadm prints %s", out)
	}
	check(t, l.SetTimeouts(before))
}

func (l *lab) sysctls(t *testing.T) {
	const name = "net/ipv4/vs/conntrack"
	check(t, l.SetSysctl(name, "0"))
	if value, err := l.Sysctl(name); err != nil || value != "0" {
		t.Errorf("%s is %q, %v", name, value, err)
	}
	check(t, l.SetSysctl(name, "1"), l.SetSysctl(name, "1"))
	if text, err := os.ReadFile("/proc/sys/" + name); err != nil || string(text) != "1\n" {
		t.Errorf("%s is %q, %v", name, text, err)
	}
	if _, err := l.Sysctl("net/ipv4/vs/nosuch"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "net.ipv4.vs.nosuch") {
		t.Errorf("reading one that is missing: %v", err)
	}
	if err := l.SetSysctl("net/ipv4/vs/nosuch", "1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("writing one that is missing: %v", err)
	}
	if err := l.SetSysctl(name, "on"); err == nil || !strings.Contains(err.Error(), "net.ipv4.vs.conntrack is 1, not on") {
		t.Errorf("a value that the kernel rejects: %v", err)
	}
}
