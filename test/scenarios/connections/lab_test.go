package connections

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/place"
	"github.com/nodeproxy-io/nodeproxy/test/scenarios"
)

// lab is a node, which is the test's own network namespace, with two local pods
// a and b, a remote pod r and clients outside of the cluster.
type lab struct {
	*testing.T
	*plan
	node, a, b, r, outside *place.Place
	world                  *scenarios.World
	// tries are connections that reach all endpoints.
	tries int
	// compared counts the attempts that trace has predicted.
	compared int
	// instead are outcomes that differ in the lab's mode, by what is tried.
	instead map[string]string
}

// plan are the addresses of one IP family.
type plan struct {
	family      dataplane.Family
	bits        int
	a, b, r     netip.Addr
	node, node2 netip.Addr
	gateway     netip.Addr // of the pods: the node
	router      netip.Addr // of the node: outside
	ext, blk    netip.Addr
	localhost   netip.Addr
	cip, vip    string // formats for the number of a Service
	ranges      []string
}

var plans = []*plan{
	{
		family: dataplane.IPv4, bits: 32,
		a: addr("10.180.0.1"), b: addr("10.180.0.2"), r: addr("10.180.1.1"),
		node: addr("192.168.0.2"), node2: addr("192.168.1.2"), gateway: addr("192.168.7.254"), router: addr("192.168.0.1"),
		ext: addr("203.0.113.2"), blk: addr("203.0.113.130"), localhost: addr("127.0.0.1"),
		cip: "172.30.0.%d", vip: "1.2.3.%d", ranges: []string{"203.0.113.0/25", "192.168.0.0/24"},
	},
	{
		family: dataplane.IPv6, bits: 128,
		a: addr("fd00::1:1"), b: addr("fd00::1:2"), r: addr("fd00::2:1"),
		node: addr("2001:db8::2"), node2: addr("2001:db8:1::2"), gateway: addr("fd07::254"), router: addr("2001:db8::1"),
		ext: addr("2001:db8:99::2"), blk: addr("2001:db8:98::2"), localhost: addr("::1"),
		cip: "fd00:30::%d", vip: "2001:db8:7::%d", ranges: []string{"2001:db8:99::/64", "2001:db8::/64"},
	},
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

// variants are the two programs behind the name iptables.
var variants = map[string]string{"nf_tables": "xtables-nft-multi", "legacy": "xtables-legacy-multi"}

// inLabs runs a test in a lab for each IP family and variant of iptables.
func inLabs(t *testing.T, test func(*lab)) {
	for variant, program := range variants {
		for _, p := range plans {
			t.Run(variant+" "+string(p.family), func(t *testing.T) {
				if os.Geteuid() != 0 {
					t.Skip("needs root: run sudo make test")
				}
				t.Parallel() // they mostly wait
				l := newLab(t, p)
				l.world = scenarios.New(t, p.family, func() dataplane.Dataplane {
					return iptables.New(p.family, iptables.Options{Programs: iptables.NewPrograms(directoryWith(t, program), "")})
				})
				test(l)
			})
		}
	}
}

// directoryWith is a directory with the programs of one variant.
func directoryWith(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("%s not found: apt-get install iptables", program)
	}
	directory := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			if err := os.Symlink(path, filepath.Join(directory, name+suffix)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return directory
}

// newLab makes a lab without a world.
func newLab(t *testing.T, p *plan) *lab {
	l := &lab{
		T: t, plan: p, tries: byChance, node: place.Enter(t, "node"),
		a: place.New(t, "a"), b: place.New(t, "b"), r: place.New(t, "r"), outside: place.New(t, "outside"),
	}
	for _, forwards := range []*place.Place{l.node, l.outside} {
		forwards.Run(t, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	}
	l.wirePod(l.a, p.a)
	l.wirePod(l.b, p.b)
	l.wirePod(l.r, p.r)
	l.wireOutside()
	return l
}

// ip is a command of the program ip, or ip -6 with IPv6 addresses.
func ip(format string, args ...any) string {
	command := fmt.Sprintf(format, args...)
	if strings.Contains(command, "::") {
		return "ip -6 " + command
	}
	return "ip " + command
}

// nodad spares IPv6 addresses the second in which they cannot be used.
func (p *plan) nodad() string {
	if p.family == dataplane.IPv6 {
		return "nodad"
	}
	return ""
}

func (l *lab) wirePod(to *place.Place, address netip.Addr) {
	link := "veth-" + to.Name
	l.node.Wire(l.T, link, to)
	l.node.Run(l.T,
		ip("address add %s/%d dev %s %s", l.gateway, l.bits, link, l.nodad()),
		ip("route add %s dev %s", address, link))
	to.Run(l.T,
		ip("address add %s/%d dev eth0 %s", address, l.bits, l.nodad()),
		ip("route add %s dev eth0", l.gateway),
		ip("route add default via %s", l.gateway.String()))
	to.Serve(l.T, netip.AddrPortFrom(address, port))
}

func (l *lab) wireOutside() {
	subnet := l.bits / 4 * 3 // 24 or 96: enough for the node and its router
	l.node.Wire(l.T, "eth0", l.outside)
	l.node.Run(l.T,
		ip("address add %s/%d dev eth0 %s", l.node0(), subnet, l.nodad()),
		ip("address add %s/%d dev eth0 %s", l.plan.node2, subnet, l.nodad()),
		ip("route add default via %s", l.router))
	l.outside.Run(l.T,
		ip("address add %s/%d dev eth0 %s", l.router, subnet, l.nodad()),
		ip("address add %s/%d dev lo %s", l.ext, l.bits, l.nodad()),
		ip("address add %s/%d dev lo %s", l.blk, l.bits, l.nodad()),
		ip("route add default via %s", l.node0()),
		// What the node passes on is answered, so that it differs from what it drops.
		ip("%s rule add iif eth0 prohibit", map[dataplane.Family]string{dataplane.IPv4: "-4", dataplane.IPv6: "-6"}[l.family]))
}

func (l *lab) node0() netip.Addr { return l.plan.node }

// who are the clients, by name.
func (l *lab) who(name string) (*place.Place, netip.Addr) {
	switch name {
	case "a":
		return l.a, l.plan.a
	case "b":
		return l.b, l.plan.b
	case "node":
		return l.node, l.node0()
	case "self": // the kernel chooses
		return l.node, netip.Addr{}
	case "localhost":
		return l.node, l.localhost
	case "ext":
		return l.outside, l.ext
	case "blk":
		return l.outside, l.blk
	}
	l.Fatalf("who is %s?", name)
	return nil, netip.Addr{}
}

const (
	// port is that of Services and their endpoints.
	port     = 80
	patience = 10 * time.Second
	// silence is how long no answer is taken for none: there is none to the second
	// SYN either, which goes after a second.
	silence = 1500 * time.Millisecond
	// byChance are as many tries as miss one of two endpoints once in 8 million runs.
	byChance = 24
)

// expect connects as often as shows which endpoints answer. want is REJECT, DROP
// or names of endpoints, and +M or -M: they see an address of the node or that of
// the client.
func (l *lab) expect(from, protocol string, to netip.AddrPort, want string) {
	l.Helper()
	client, source := l.who(from[strings.LastIndex(from, " ")+1:])
	target := place.Target{Protocol: protocol, To: to, From: source, Patience: patience}
	words := strings.Fields(want)
	if want == "REJECT" || want == "DROP" {
		expected := error(syscall.ECONNREFUSED)
		if want == "DROP" {
			target.Patience, expected = silence, os.ErrDeadlineExceeded
		}
		name, _, err := client.Ask(target)
		if !errors.Is(err, expected) {
			l.Errorf("%s → %s: answer of %q, error %v, want %s", from, to, name, err, want)
			return
		}
		l.agrees(from, protocol, source, to, met{rejection: want})
		return
	}
	names, masqueraded := words[:len(words)-1], words[len(words)-1] == "+M"
	n := l.tries
	if len(names) == 1 {
		n = min(6, n)
	}
	var seen []string
	for range n {
		name, seenAs, err := client.Ask(target)
		if err = cmp.Or(err, load.Planted()); err != nil {
			load.Lost(l, "%s → %s %s: %v, want %s", from, protocol, to, err, want)
			return
		}
		if !slices.Contains(seen, name) {
			seen = append(seen, name)
		}
		if got := seenAs != source.String(); got != masqueraded {
			l.Errorf("%s → %s: %s sees the client as %s, want %s", from, to, name, seenAs, want)
			return
		}
	}
	slices.Sort(seen)
	if !slices.Equal(seen, names) {
		l.Errorf("%s → %s: answers of %v, want %v", from, to, seen, names)
		return
	}
	l.agrees(from, protocol, source, to, met{endpoints: seen, masqueraded: masqueraded})
}

// Addresses of a Service by its number.
func (p *plan) clusterIP(n int) string { return fmt.Sprintf(p.cip, n) }
func (p *plan) balancer(n int) string  { return fmt.Sprintf(p.vip, n) }

func (p *plan) local(n string) string {
	return "L " + map[string]netip.Addr{"a": p.a, "b": p.b}[n].String()
}
func (p *plan) remote() string { return "R " + p.r.String() }
