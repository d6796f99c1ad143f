package modeltest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
)

const (
	established = "ESTABLISHED"
	invalid     = "INVALID"

	fenceType = 0x88b5 // for experiments, according to IEEE 802
	patience  = 20     // seconds
	firstPort = 20000
)

// Lab is a node in a network namespace of its own, with the interfaces eth0, by which
// everything is routed, and cni0, a bridge with the pod network. A second namespace has
// the other ends and never answers. Its methods are called by the goroutine that made it.
type Lab struct {
	testing.TB
	programs string // the directory of iptables-restore and iptables-save
	six      bool
	ends     map[string]end // by interface of the node
	raw      int            // sends the node's own packets
	fences   int            // receives fences

	counters map[string]int // of rules, by comment
	port     uint16         // of the last packet
	open     map[kernelmodel.Packet]uint16
}

// end is the other end of an interface.
type end struct {
	socket   int
	from, to net.HardwareAddr
}

// NewLab makes a node. The namespaces are gone when the test has ended; its goroutine
// stays on a thread of its own, in the node's namespace. Programs is a directory with
// iptables' programs; empty: those of PATH.
func NewLab(t testing.TB, six bool, programs string) *Lab {
	t.Helper()
	l := &Lab{TB: t, programs: programs, six: six, port: firstPort, open: map[kernelmodel.Packet]uint16{}, ends: map[string]end{}}
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	// Packets then stay in order: the kernel has a queue for each processor.
	var allowed, one unix.CPUSet
	l.must(unix.SchedGetaffinity(0, &allowed))
	for i := 0; one.Count() == 0; i++ {
		if allowed.IsSet(i) {
			one.Set(i)
		}
	}
	l.must(unix.SchedSetaffinity(0, &one))
	outside, err := netns.New()
	l.must(err)
	defer func() { _ = outside.Close() }()
	node, err := netns.New()
	l.must(err)
	defer func() { _ = node.Close() }()
	l.setUp(outside)

	l.must(netns.Set(outside))
	for _, name := range []string{"eth0", "cni0"} {
		l.ends[name] = l.otherEnd(name)
	}
	l.must(netns.Set(node))
	for name, e := range l.ends {
		link, err := netlink.LinkByName(name)
		l.must(err)
		e.to = link.Attrs().HardwareAddr
		l.ends[name] = e
	}
	for _, name := range []string{"eth0", "pod0", "cni0"} {
		l.waitUntilUp(name)
	}
	for _, a := range Node(six) {
		l.waitUntilLocal(a)
	}
	l.run("ip neigh add " + l.pick("192.168.0.1", "2001:db8::1") + " lladdr " + l.ends["eth0"].from.String() + " dev eth0")
	l.run("ip neigh add " + Pod(six).String() + " lladdr " + l.ends["cni0"].from.String() + " dev cni0")

	domain := unix.AF_INET
	if six {
		domain = unix.AF_INET6
	}
	l.raw, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	l.must(err)
	t.Cleanup(func() { _ = unix.Close(l.raw) })
	l.fences = l.packetSocket("eth0", fenceType)
	return l
}

// Node are the addresses of the node's interfaces, that of eth0 first.
func Node(six bool) []netip.Addr {
	if six {
		return []netip.Addr{netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("fd00:244::1")}
	}
	return []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("10.244.0.1")}
}

// Pod is the address of a pod on the node.
func Pod(six bool) netip.Addr {
	if six {
		return netip.MustParseAddr("fd00:244::5")
	}
	return netip.MustParseAddr("10.244.0.5")
}

// setUp makes the interfaces of the node, which is the thread's namespace.
func (l *Lab) setUp(outside netns.NsHandle) {
	l.Helper()
	for name, value := range map[string]string{
		"net/ipv4/conf/all/rp_filter": "0", "net/ipv4/conf/default/rp_filter": "0",
		"net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/default/send_redirects": "0",
		"net/ipv4/conf/all/route_localnet": "1", "net/ipv4/conf/default/route_localnet": "1",
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv4/icmp_ratemask": "0",
		"net/ipv6/icmp/ratelimit": "0", "net/ipv6/conf/default/accept_dad": "0",
	} {
		l.must(os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0))
	}
	l.run("ip link set lo up")
	l.run("ip link add cni0 type bridge")
	for name, peer := range map[string]string{"eth0": "eth0", "pod0": "cni0"} {
		attributes := netlink.NewLinkAttrs()
		attributes.Name = name
		l.must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: peer, PeerNamespace: netlink.NsFd(outside)}))
	}
	l.run("ip link set pod0 master cni0")
	for _, name := range []string{"eth0", "pod0", "cni0"} {
		l.run("ip link set " + name + " up")
	}
	addresses := Node(l.six)
	for i, name := range []string{"eth0", "cni0"} {
		// Not to look for an absent neighbor in vain: seconds later, the answer to that packet
		// would be counted as the answer to another.
		l.must(os.WriteFile(filepath.Join("/proc/sys/net", l.pick("ipv4", "ipv6"), "neigh", name, "mcast_solicit"), []byte("1000000"), 0))
		line := fmt.Sprintf("ip addr add %s/%s dev %s", addresses[i], l.pick("24", "64"), name)
		if l.six {
			line += " nodad"
		}
		l.run(line)
	}
	l.run("ip route add default via " + l.pick("192.168.0.1", "2001:db8::1") + " dev eth0")
}

// otherEnd opens the end of an interface that is in the thread's namespace.
func (l *Lab) otherEnd(name string) end {
	l.Helper()
	l.must(os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0))
	l.run("ip link set " + name + " up")
	link, err := netlink.LinkByName(name)
	l.must(err)
	return end{socket: l.packetSocket(name, 0), from: link.Attrs().HardwareAddr}
}

// waitUntilUp waits for an interface of the thread's namespace. The kernel notices a
// moment later that the other end is up; until then a bridge drops what arrives.
func (l *Lab) waitUntilUp(name string) {
	l.Helper()
	for deadline := time.Now().Add(patience * time.Second); ; <-time.After(10 * time.Millisecond) {
		link, err := netlink.LinkByName(name)
		l.must(err)
		if link.Attrs().OperState == netlink.OperUp {
			return
		}
		if time.Now().After(deadline) {
			l.Fatalf("%s does not come up: %s", name, link.Attrs().OperState)
		}
	}
}

// waitUntilLocal waits until the kernel takes packets to an address of the node. Even without
// duplicate address detection it adds the route a moment after the address.
func (l *Lab) waitUntilLocal(a netip.Addr) {
	l.Helper()
	to := &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
	for deadline := time.Now().Add(patience * time.Second); ; <-time.After(time.Millisecond) {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Dst: to},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_TYPE|netlink.RT_FILTER_DST)
		l.must(err)
		if len(routes) > 0 {
			return
		}
		if time.Now().After(deadline) {
			l.Fatalf("%s does not become an address of the node", a)
		}
	}
}

// packetSocket opens a socket for frames, which receives those of one type; 0: none.
func (l *Lab) packetSocket(name string, kind uint16) int {
	l.Helper()
	link, err := netlink.LinkByName(name)
	l.must(err)
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	l.must(err)
	l.Cleanup(func() { _ = unix.Close(socket) })
	l.must(unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: bigEndian(kind), Ifindex: link.Attrs().Index}))
	l.must(unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}))
	return socket
}

// SCTP reports whether the kernel tracks connections of SCTP.
func (l *Lab) SCTP() bool {
	_, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established")
	return err == nil
}

func (l *Lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *Lab) pick(four, six string) string {
	if l.six {
		return six
	}
	return four
}

func (l *Lab) run(line string) {
	l.Helper()
	words := strings.Fields(line)
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil { //nolint:gosec // a test's own words
		l.Fatalf("%s: %v: %s", line, err, out)
	}
}

// program is the path of one of iptables' programs for the family.
func (l *Lab) program(suffix string) string {
	return filepath.Join(l.programs, l.pick("iptables", "ip6tables")+suffix)
}

// Tag gives each rule of an input of iptables-restore a comment that no other rule
// has, so that Load and Send can distinguish them.
func Tag(input string) string {
	lines := strings.Split(input, "\n")
	for i, line := range lines {
		if rest, ok := strings.CutPrefix(line, "-A "); ok {
			chain, spec, _ := strings.Cut(rest, " ")
			lines[i] = fmt.Sprintf("-A %s -m comment --comment r%d %s", chain, i, spec)
		}
	}
	return strings.Join(lines, "\n")
}

// Load replaces all rules. Rules that only the kernel gets keep what the packets of Send
// cause, and what the kernel sends by itself, away from them.
func (l *Lab) Load(input string) error {
	var guards strings.Builder
	// An answer with RST would end the connection before Send looks at it.
	guards.WriteString("*raw\n-A OUTPUT -p tcp --tcp-flags RST RST -j DROP\nCOMMIT\n*nat\n")
	signals := strings.Fields(l.pick("icmp igmp", "ipv6-icmp"))
	for _, chain := range []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"} {
		for _, protocol := range signals {
			fmt.Fprintf(&guards, "-A %s -p %s -j ACCEPT\n", chain, protocol)
		}
	}
	guards.WriteString("COMMIT\n*filter\n")
	for _, chain := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		for _, protocol := range signals {
			fmt.Fprintf(&guards, "-A %s -p %s -j ACCEPT\n", chain, protocol)
		}
		fmt.Fprintf(&guards, "-A %s -m conntrack --ctdir REPLY -j ACCEPT\n", chain)
	}
	guards.WriteString("COMMIT\n")
	for _, step := range []struct {
		input string
		args  []string
	}{{guards.String(), nil}, {input, []string{"--noflush"}}} {
		restore := exec.Command(l.program("-restore"), step.args...) //nolint:gosec // a test's own words
		restore.Stdin = strings.NewReader(step.input)
		if out, err := restore.CombinedOutput(); err != nil {
			return fmt.Errorf("loading the rules: %w: %s", err, out)
		}
	}
	l.counters = map[string]int{}
	return nil
}

// Seen is what the kernel did with a packet.
type Seen struct {
	// Met counts how often each rule matched, by comment.
	Met map[string]int
	// Unreachable: the node answered that the port is unreachable.
	Unreachable bool
	// Tracked: it became a connection, so it was neither dropped nor rejected. To and
	// From are then its destination and its source after translation.
	Tracked  bool
	To, From netip.AddrPort
}

// Establish makes the connections of packets with the state ESTABLISHED, which are UDP
// and lead out of eth0. There must be no rules.
func (l *Lab) Establish(packets ...kernelmodel.Packet) {
	l.Helper()
	l.must(l.Load(""))
	for _, p := range packets {
		if _, ok := l.open[p]; ok {
			continue
		}
		l.port++
		l.open[p] = l.port
		l.transmit(p, l.port)
		l.transmit(kernelmodel.Packet{
			Protocol: p.Protocol, In: "eth0", Source: p.Destination.Addr(), Destination: netip.AddrPortFrom(p.Source, l.port),
		}, p.Destination.Port())
	}
}

// Send sends a packet and waits until the node has done with it.
func (l *Lab) Send(p kernelmodel.Packet) Seen {
	l.Helper()
	seen := l.SendUncounted(p)
	seen.Met = l.Met()
	return seen
}

// SendUncounted is Send without Seen.Met, which is most of what that costs: Met reports
// several packets at once.
func (l *Lab) SendUncounted(p kernelmodel.Packet) Seen {
	l.Helper()
	port, ok := l.open[p]
	if p.State == established && !ok {
		l.Fatalf("not established: %+v", p)
	}
	if p.State != established {
		l.port++
		port = l.port
	}
	before := l.unreachable()
	l.transmit(p, port)
	seen := Seen{Unreachable: l.unreachable() > before}
	seen.From, seen.To, seen.Tracked = l.connection(p, port)
	return seen
}

var replyPattern = regexp.MustCompile(`(?m) src=\S+ dst=\S+ sport=\S+ dport=\S+ .*src=(\S+) dst=(\S+) sport=(\d+) dport=(\d+) `)

// connection reads the translated source and destination of a packet that the kernel
// tracks.
func (l *Lab) connection(p kernelmodel.Packet, port uint16) (from, to netip.AddrPort, tracked bool) {
	l.Helper()
	// The list can lack a connection while others expire: what is there is found at the
	// second look.
	for range 2 {
		list, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
		if err != nil {
			return l.connectionByProgram(p, port)
		}
		if from, to, tracked = l.connectionIn(list, p, port); tracked {
			break
		}
	}
	return from, to, tracked
}

// connectionByProgram is connection where the kernel has no list. Package netlink
// misreads SCTP.
func (l *Lab) connectionByProgram(p kernelmodel.Packet, port uint16) (from, to netip.AddrPort, tracked bool) {
	l.Helper()
	out, err := exec.Command("conntrack", "-L", "-f", l.pick("ipv4", "ipv6"), "-p", p.Protocol, //nolint:gosec // a test's own words
		"--orig-port-src", strconv.Itoa(int(port)), "--orig-src", p.Source.String()).Output()
	l.must(err)
	m := replyPattern.FindSubmatch(out)
	if m == nil {
		return from, to, false
	}
	from, to = l.translated(m)
	return from, to, true
}

// connectionIn is connection by the kernel's list.
func (l *Lab) connectionIn(list []byte, p kernelmodel.Packet, port uint16) (from, to netip.AddrPort, tracked bool) {
	l.Helper()
	for line := range bytes.Lines(list) {
		m := originPattern.FindSubmatch(line)
		if len(m) == 0 || string(m[1]) != p.Protocol || string(m[3]) != strconv.Itoa(int(port)) || netip.MustParseAddr(string(m[2])) != p.Source {
			continue
		}
		if m = replyPattern.FindSubmatch(line); m == nil {
			l.Fatalf("cannot read: %s", line)
		}
		from, to = l.translated(m)
		return from, to, true
	}
	return from, to, false
}

var originPattern = regexp.MustCompile(`^\S+ +\d+ (\S+) .*? src=(\S+) dst=\S+ sport=(\d+) `)

// translated are the source and the destination in a match of replyPattern.
func (l *Lab) translated(m [][]byte) (from, to netip.AddrPort) {
	l.Helper()
	endpoint := func(address, number []byte) netip.AddrPort {
		a, err := netip.ParseAddr(string(address))
		l.must(err)
		n, err := strconv.ParseUint(string(number), 10, 16)
		l.must(err)
		return netip.AddrPortFrom(a, uint16(n))
	}
	return endpoint(m[2], m[4]), endpoint(m[1], m[3])
}

// Count sends a packet as the first one of many connections and counts where the kernel
// sent them, by port; 0: where they were sent to.
func (l *Lab) Count(p kernelmodel.Packet, packets int) map[uint16]int {
	l.Helper()
	first := l.port + 1
	for range packets {
		l.port++
		l.transmit(p, l.port)
	}
	out, err := exec.Command("conntrack", "-L", "-f", l.pick("ipv4", "ipv6"), "-p", p.Protocol).Output() //nolint:gosec // a test's own words
	l.must(err)
	counts := map[uint16]int{}
	for _, m := range replyPattern.FindAllSubmatch(out, -1) {
		from, to := l.translated(m)
		if from.Port() < first {
			continue
		}
		if to == p.Destination {
			to = netip.AddrPort{}
		}
		counts[to.Port()]++
	}
	return counts
}

// tries is how often a packet is sent that does not reach the node.
const tries = 3

// transmit sends a packet, and sends it again if the wire has lost it: what the node does
// with a packet is compared, and it can do nothing with one that it does not get.
func (l *Lab) transmit(p kernelmodel.Packet, port uint16) {
	l.Helper()
	packet := marshal(p, port)
	if p.In == "" {
		// Not permitted: a rule has dropped or rejected it.
		if err := unix.Sendto(l.raw, packet, 0, sockaddr(p.Destination.Addr())); !errors.Is(err, unix.EPERM) {
			l.must(err)
		}
		l.fence()
		return
	}
	kind := uint16(unix.ETH_P_IP)
	if l.six {
		kind = unix.ETH_P_IPV6
	}
	e := l.ends[p.In]
	for range tries {
		before := l.received()
		_, err := unix.Write(e.socket, frame(e.to, e.from, kind, packet))
		l.must(err)
		l.fence()
		if l.received() > before {
			return
		}
		l.Logf("lost on its way to the node: %+v", p)
	}
	l.Fatalf("%d packets did not reach the node: %+v", tries, p)
}

// fence sends two fences: when the first one has arrived the node has taken in what was
// sent before, when the second one has arrived it has let it go.
func (l *Lab) fence() {
	l.Helper()
	e := l.ends["eth0"]
	for range 2 {
		_, err := unix.Write(e.socket, frame(e.to, e.from, fenceType, make([]byte, 46)))
		l.must(err)
		if _, err := unix.Read(l.fences, make([]byte, 100)); err != nil {
			l.Fatalf("a fence does not arrive: %v", err)
		}
	}
}

var counterPattern = regexp.MustCompile(`(?m)^\[(\d+):\d+\] -A .*--comment "?(r\d+)`)

// Met counts how often each rule matched since the last time, by comment.
func (l *Lab) Met() map[string]int {
	l.Helper()
	out, err := exec.Command(l.program("-save"), "-c").Output() //nolint:gosec // a test's own words
	l.must(err)
	now, met := map[string]int{}, map[string]int{}
	for _, m := range counterPattern.FindAllSubmatch(out, -1) {
		n, err := strconv.Atoi(string(m[1]))
		l.must(err)
		comment := string(m[2])
		now[comment] = n
		if n > l.counters[comment] {
			met[comment] = n - l.counters[comment]
		}
	}
	l.counters = now
	return met
}

var resetPattern = regexp.MustCompile(`(?m)^\[(\d+):\d+\] -A OUTPUT .*--tcp-flags RST RST`)

// Resets counts the resets with which the node has answered: rules of Load keep them there.
func (l *Lab) Resets() int {
	l.Helper()
	out, err := exec.Command(l.program("-save"), "-c", "-t", "raw").Output() //nolint:gosec // a test's own words
	l.must(err)
	m := resetPattern.FindSubmatch(out)
	if m == nil {
		l.Fatalf("no rule about resets in %s", out)
	}
	n, err := strconv.Atoi(string(m[1]))
	l.must(err)
	return n
}

// unreachable counts the answers that a port is unreachable.
func (l *Lab) unreachable() int {
	l.Helper()
	if l.six {
		return l.counted("snmp6", "Icmp6OutDestUnreachs", "")
	}
	return l.counted("snmp", "OutDestUnreachs", "Icmp:")
}

// received counts the packets that have reached the node.
func (l *Lab) received() int {
	l.Helper()
	if l.six {
		return l.counted("snmp6", "Ip6InReceives", "")
	}
	return l.counted("snmp", "InReceives", "Ip:")
}

// counted reads one of the node's counters: from a line with its name and value, or from
// a row, which has a line with names and one with values.
func (l *Lab) counted(file, name, row string) int {
	l.Helper()
	text, err := os.ReadFile("/proc/thread-self/net/" + file)
	l.must(err)
	column := -1
	for line := range bytes.Lines(text) {
		words := strings.Fields(string(line))
		value := ""
		switch {
		case row == "" && words[0] == name:
			value = words[1]
		case words[0] != row:
		case column < 0:
			column = slices.Index(words, name)
		default:
			value = words[column]
		}
		if value != "" {
			n, err := strconv.Atoi(value)
			l.must(err)
			return n
		}
	}
	l.Fatalf("no %s in %s", name, text)
	return 0
}

// CheckShares sends packets and checks that each outcome that a model predicts has its share of them,
// within five standard deviations, and that there is no other.
func (l *Lab) CheckShares(p kernelmodel.Packet, outcomes []kernelmodel.Outcome, packets int) {
	l.Helper()
	got, total := l.Count(p, packets), 0
	for i := range outcomes {
		o := &outcomes[i]
		n, want := got[o.Endpoint.Port()], float64(packets)*o.Share
		if off := math.Abs(float64(n) - want); off > 5*math.Sqrt(want*(1-o.Share)) {
			l.Errorf("%s %s: %d of %d packets, the model predicts %.0f", o.Fate, o.Endpoint, n, packets, want)
		}
		total += n
	}
	if total != packets {
		l.Errorf("%d of %d packets have an outcome that the model knows: %v", total, packets, got)
	}
}

// Unpredictable reports whether a packet is masqueraded on its way from the node to
// itself, which has these addresses: the model does not know by which of them.
func Unpredictable(p kernelmodel.Packet, outcomes []kernelmodel.Outcome, node ...netip.Addr) bool {
	return p.In == "" && p.Source != netip.MustParseAddr("127.0.0.1") && slices.ContainsFunc(outcomes, func(o kernelmodel.Outcome) bool {
		i := slices.IndexFunc(o.Path, func(s kernelmodel.Step) bool { return s.Target == "MASQUERADE" })
		to := p.Destination.Addr()
		if o.Endpoint.IsValid() {
			to = o.Endpoint.Addr()
		}
		return i >= 0 && (i < len(o.Path)-1 || slices.Contains(node, to))
	})
}

var commentPattern = regexp.MustCompile(`--comment "?(r\d+)`)

// CountMet counts the rules on the path of an outcome, by comment.
func CountMet(met map[string]int, o *kernelmodel.Outcome) {
	for _, s := range o.Path {
		if m := commentPattern.FindStringSubmatch(s.Rule); m != nil {
			met[m[1]]++
		}
	}
}

// Differences lists where what the kernel did with a packet is not the outcome that the
// model predicted. Rules are compared if exact, that is if nothing is left to chance.
func Differences(p kernelmodel.Packet, o *kernelmodel.Outcome, seen *Seen, exact bool) []string {
	var out []string
	differ := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if exact {
		met := map[string]int{}
		CountMet(met, o)
		if !maps.Equal(met, seen.Met) {
			differ("rules that matched (-model +kernel):\n%s", cmp.Diff(met, seen.Met))
		}
	}
	stopped := o.Fate == kernelmodel.Rejected || o.Fate == kernelmodel.Dropped
	if p.State == established || p.State == invalid {
		if rejected := o.Fate == kernelmodel.Rejected; rejected != seen.Unreachable {
			differ("the model predicts %s, the kernel rejected it: %t", o.Fate, seen.Unreachable)
		}
		return out
	}
	if stopped || !seen.Tracked {
		// The node's own packet becomes a connection before it reaches INPUT.
		if !stopped || seen.Tracked && p.In != "" || (o.Fate == kernelmodel.Rejected) != seen.Unreachable {
			differ("the model predicts %s, the kernel let it through: %t, answered: %t", o.Fate, seen.Tracked, seen.Unreachable)
		}
		return out
	}
	to := p.Destination
	if o.Fate == kernelmodel.Delivered {
		to = o.Endpoint
	}
	if to != seen.To {
		differ("to %s by the model, %s by the kernel", to, seen.To)
	}
	if translated := seen.From.Addr() != p.Source; translated != o.Masqueraded && (translated || p.In != "") {
		differ("masqueraded by the model: %t, from %s by the kernel", o.Masqueraded, seen.From)
	}
	return out
}
