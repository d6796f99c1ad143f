package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/nlattr"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// onRealKernel moves the test to a network namespace of its own, which goes
// with the test's thread.
func onRealKernel(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run sudo make test")
	}
	if _, err := exec.LookPath("conntrack"); err != nil {
		t.Fatal("conntrack not found: apt-get install conntrack")
	}
	runtime.LockOSThread() // and never unlock: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	run(t, "ip", "link", "set", "lo", "up")
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	var out, errs strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, errs.String())
	}
	return out.String()
}

// track makes an entry "from>to>endpoint" of a protocol, such as
// "10.244.7.7:40000>10.96.0.10:53>10.244.0.3:53".
func track(t *testing.T, protocol, text string, args ...string) {
	t.Helper()
	var ends []netip.AddrPort
	for word := range strings.SplitSeq(text, ">") {
		ends = append(ends, netip.MustParseAddrPort(word))
	}
	port := func(i int) string { return strconv.Itoa(int(ends[i].Port())) }
	all := append([]string{"-I", "-p", protocol, "-t", "600", "-u", "SEEN_REPLY,ASSURED",
		"-s", ends[0].Addr().String(), "--sport", port(0), "-d", ends[1].Addr().String(), "--dport", port(1),
		"--reply-src", ends[2].Addr().String(), "--reply-port-src", port(2), "--reply-dst", ends[0].Addr().String(), "--reply-port-dst", port(0)}, args...)
	if protocol == "tcp" {
		all = append(all, "--state", "ESTABLISHED")
	}
	run(t, "conntrack", all...)
}

// tracked lists what the table has, as track takes it, sorted.
func tracked(t *testing.T, family, protocol string) []string {
	t.Helper()
	out := run(t, "conntrack", "-L", "-f", family, "-p", protocol)
	var list []string
	for line := range strings.Lines(out) {
		values := map[string][]string{}
		for word := range strings.FieldsSeq(line) {
			if name, value, found := strings.Cut(word, "="); found {
				values[name] = append(values[name], value)
			}
		}
		if len(values["src"]) != 2 {
			continue
		}
		end := func(address, port string, i int) string {
			n, _ := strconv.Atoi(values[port][i])
			return netip.AddrPortFrom(netip.MustParseAddr(values[address][i]), uint16(n)).String()
		}
		text := end("src", "sport", 0) + ">" + end("dst", "dport", 0) + ">" + end("src", "sport", 1)
		for _, zone := range values["zone"] {
			text += " zone " + zone
		}
		list = append(list, text)
	}
	slices.Sort(list)
	return list
}

// walked lists what Walk visits, as tracked does.
func walked(t *testing.T, k *Kernel, family dataplane.Family, filters ...Filter) []string {
	t.Helper()
	var list []string
	err := k.Walk(context.Background(), family, v1alpha1.ProtocolUDP, filters, func(f Flow) {
		list = append(list, f.Source.String()+">"+f.Destination.String()+">"+f.ReplySource.String())
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}

// fillTCP makes n TCP entries, which no test touches.
func fillTCP(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		addr := netip.AddrFrom4([4]byte{10, 9, byte(i / 250), byte(i % 250)})
		f := Flow{Source: netip.AddrPortFrom(addr, 1000), Destination: netip.MustParseAddrPort("10.96.0.10:53")}
		if err := insert(f, unix.IPPROTO_TCP); err != nil {
			t.Fatal(err)
		}
	}
}

// insert makes an entry without the time that a program takes.
func insert(f Flow, protocol byte) error {
	b := nlattr.Append(headerOf(dataplane.IPv4), nl.CTA_TUPLE_ORIG|nlattr.Nested, tupleOf(protocol, f.Source, f.Destination))
	b = nlattr.Append(b, nl.CTA_TUPLE_REPLY|nlattr.Nested, tupleOf(protocol, f.Destination, f.Source))
	b = nlattr.Append(b, 7, binary.BigEndian.AppendUint32(nil, 600)) // timeout
	if protocol == unix.IPPROTO_TCP {
		b = nlattr.Append(b, 4|nlattr.Nested, nlattr.Append(nil, 1|nlattr.Nested, nlattr.Append(nil, 1, []byte{nl.TCP_CONNTRACK_ESTABLISHED})))
	}
	request := nl.NewNetlinkRequest(1<<8, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	request.AddRawData(b)
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

func TestKernelFilters(t *testing.T) {
	onRealKernel(t)
	const (
		dns      = "10.244.7.7:40000>10.96.0.10:53>10.244.0.3:53"
		dnsPort  = "10.244.7.7:40000>10.96.0.10:54>10.244.0.3:54"
		other    = "10.244.7.7:40001>10.96.0.20:53>10.244.0.4:53"
		nodePort = "192.0.2.9:40002>192.0.2.21:30053>10.244.0.3:53"
		six      = "[2001:db8:7::7]:40000>[fd00::10]:53>[2001:db8:a::1]:53"
	)
	for _, entry := range []string{dns, dnsPort, other, nodePort, six} {
		track(t, "udp", entry)
	}
	track(t, "udp", "10.244.7.7:40003>10.96.0.10:53>10.244.0.3:53", "-w", "7")
	track(t, "sctp", "10.244.7.7:40003>10.96.0.10:53>10.244.0.3:53", "--state", "ESTABLISHED", "--orig-vtag", "1", "--reply-vtag", "2")
	fillTCP(t, 5000)
	address := netip.MustParseAddr
	for name, tt := range map[string]struct {
		family    dataplane.Family
		filters   []Filter
		want      []string
		delivered int64
	}{
		"UDP":                 {dataplane.IPv4, []Filter{{}}, []string{dns, dnsPort, other, nodePort}, 5}, // and that of zone 7
		"UDP of IPv6":         {dataplane.IPv6, []Filter{{}}, []string{six}, 1},
		"an address":          {dataplane.IPv4, []Filter{{Address: address("10.96.0.10")}}, []string{dns, dnsPort}, 3},
		"an address and port": {dataplane.IPv4, []Filter{{address("10.96.0.10"), 53}}, []string{dns}, 2},
		"likewise of IPv6":    {dataplane.IPv6, []Filter{{address("fd00::10"), 53}}, []string{six}, 1},
		"another of IPv6":     {dataplane.IPv6, []Filter{{address("fd00::11"), 53}}, nil, 1}, // only the port is filtered
		"nothing there":       {dataplane.IPv6, []Filter{{address("fd00::10"), 54}}, nil, 0},
		"a port":              {dataplane.IPv4, []Filter{{Port: 30053}}, []string{nodePort}, 1},
		"several filters":     {dataplane.IPv4, []Filter{{address("10.96.0.20"), 53}, {Port: 30053}}, []string{other, nodePort}, 2},
		"no filter":           {dataplane.IPv4, nil, nil, 0},
	} {
		k := NewKernel()
		slices.Sort(tt.want)
		if diff := cmp.Diff(tt.want, walked(t, k, tt.family, tt.filters...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := k.delivered.Load(); got != tt.delivered {
			t.Errorf("%s: the kernel delivered %d entries, want %d", name, got, tt.delivered)
		}
		k = NewKernel()
		k.unfiltered.Store(true) // as before Linux 5.8
		if diff := cmp.Diff(tt.want, walked(t, k, tt.family, tt.filters...)); diff != "" {
			t.Errorf("%s, looked through here (-want +got):\n%s", name, diff)
		}
		if got := k.delivered.Load(); tt.family == dataplane.IPv4 && got < 5000 {
			t.Errorf("%s: an unfiltered dump delivered %d entries only", name, got)
		}
	}
}

// TestKernelFiltersUnansweredConnections and keeps the others to itself.
func TestKernelFiltersUnansweredConnections(t *testing.T) {
	onRealKernel(t)
	for _, tt := range []struct {
		family                    dataplane.Family
		name                      string
		answered                  string
		client, service, endpoint string
		filters                   []Filter
	}{
		{dataplane.IPv4, "ipv4", "10.244.7.7:40000>10.96.0.10:53>10.244.0.3:53", "10.244.7.7", "10.96.0.10", "10.244.0.3",
			[]Filter{{}, one, {Port: 53}}},
		{dataplane.IPv6, "ipv6", "[2001:db8:7::7]:40000>[fd00::10]:53>[2001:db8:a::1]:53", "2001:db8:7::7", "fd00::10", "2001:db8:a::1",
			[]Filter{{}, {netip.MustParseAddr("fd00::10"), 53}, {Port: 53}}},
	} {
		track(t, "tcp", tt.answered)
		run(t, "conntrack", "-I", "-p", "tcp", "-t", "100", "--state", "SYN_SENT",
			"-s", tt.client, "--sport", "40001", "-d", tt.service, "--dport", "53",
			"--reply-src", tt.endpoint, "--reply-port-src", "53", "--reply-dst", tt.client, "--reply-port-dst", "40001")
		k := NewKernel()
		var found Flow
		for _, filter := range tt.filters {
			for _, unfiltered := range []bool{false, true} { // as before Linux 5.8
				k.unfiltered.Store(unfiltered)
				var flows []Flow
				err := k.Walk(t.Context(), tt.family, v1alpha1.ProtocolTCP, []Filter{filter}, func(f Flow) { flows = append(flows, f) })
				if err != nil {
					t.Fatal(err)
				}
				if len(flows) != 1 || flows[0].Source.Port() != 40001 || flows[0].Protocol != v1alpha1.ProtocolTCP {
					t.Fatalf("%s, filter %v, looked through here %v: flows %v", tt.family, filter, unfiltered, flows)
				}
				found = flows[0]
			}
		}
		if got := k.delivered.Load(); got != 9 { // three times one, three times both
			t.Errorf("%s: the kernel delivered %d entries", tt.family, got)
		}
		if removed, err := k.Delete(found); err != nil || !removed {
			t.Errorf("%s: removed %v, %v", tt.family, removed, err)
		}
		if got := tracked(t, tt.name, "tcp"); len(got) != 1 {
			t.Errorf("%s: left: %v", tt.family, got)
		}
	}
}

func TestDeleteTakesOneFlowOnly(t *testing.T) {
	onRealKernel(t)
	const (
		one  = "10.244.7.7:40000>10.96.0.10:53>10.244.0.3:53"
		two  = "10.244.7.7:40001>10.96.0.10:53>10.244.0.3:53"
		zone = "10.244.7.7:40000>10.96.0.10:53>10.244.0.9:53"
	)
	track(t, "udp", zone, "-w", "7")
	track(t, "udp", one)
	track(t, "udp", two)
	track(t, "tcp", one)
	k := NewKernel()
	var flows []Flow
	if err := k.Walk(t.Context(), dataplane.IPv4, v1alpha1.ProtocolUDP, []Filter{{}}, func(f Flow) { flows = append(flows, f) }); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(flows, func(f Flow) bool { return f.Source.Port() == 40000 })
	if len(flows) != 2 || i < 0 {
		t.Fatalf("flows %v", flows)
	}
	again := flows[i]
	again.ID++ // as if the flow had been made again
	for step, tt := range []struct {
		flow Flow
		want bool
		left []string
	}{
		{again, false, []string{one, zone + " zone 7", two}},
		{flows[i], true, []string{zone + " zone 7", two}},
		{flows[i], false, []string{zone + " zone 7", two}},
	} {
		removed, err := k.Delete(tt.flow)
		if err != nil || removed != tt.want {
			t.Errorf("step %d: removed %v, %v; want %v", step, removed, err, tt.want)
		}
		if diff := cmp.Diff(tt.left, tracked(t, "ipv4", "udp")); diff != "" {
			t.Errorf("step %d: table (-want +got):\n%s", step, diff)
		}
	}
	if got := tracked(t, "ipv4", "tcp"); len(got) != 1 {
		t.Errorf("TCP: %v", got)
	}
}

func TestWalkEndsWithItsContext(t *testing.T) {
	onRealKernel(t)
	for i := range 3000 {
		f := Flow{Source: netip.AddrPortFrom(netip.MustParseAddr("10.9.0.1"), uint16(1000+i)), Destination: netip.MustParseAddrPort("10.96.0.10:53")}
		if err := insert(f, unix.IPPROTO_UDP); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	visited := 0
	err := NewKernel().Walk(ctx, dataplane.IPv4, v1alpha1.ProtocolUDP, []Filter{{}}, func(Flow) { visited++; cancel() })
	if !errors.Is(err, context.Canceled) || visited != 1 {
		t.Errorf("%v after %d flows", err, visited)
	}
}

// TestCleanerOnRealKernel makes entries of every kind and lets a pass choose.
func TestCleanerOnRealKernel(t *testing.T) {
	onRealKernel(t)
	run(t, "ip", "addr", "add", "192.0.2.21/32", "dev", "lo")
	run(t, "ip", "-6", "addr", "add", "2001:db8::21/128", "dev", "lo", "nodad")
	const (
		gone  = "10.244.7.7:1>10.96.0.10:53>10.244.0.9:53"
		raw   = "10.244.7.7:2>10.96.0.10:53>10.96.0.10:53"
		np    = "192.0.2.9:3>192.0.2.21:30053>10.244.0.9:53"
		valid = "10.244.7.7:4>10.96.0.10:53>10.244.0.3:53"
		away  = "10.244.7.7:5>192.0.2.99:30053>192.0.2.99:30053"
		other = "10.244.7.7:6>9.9.9.9:53>9.9.9.9:53"
		six   = "[2001:db8:7::7]:1>[fd00::10]:53>[2001:db8:a::9]:53"
		six2  = "[2001:db8:7::7]:2>[fd00::10]:53>[2001:db8:a::1]:53"
	)
	for _, entry := range []string{gone, raw, np, valid, away, other, six, six2} {
		track(t, "udp", entry)
	}
	track(t, "udp", gone, "-w", "7")
	track(t, "tcp", gone)
	fillTCP(t, 5000)
	k := NewKernel()
	mode := v1alpha1.ModeIPVS // what is made from outside is not of nat
	clean := func(family dataplane.Family, services ...*dataplane.Service) Pass {
		c := New(Options{Family: family, Protocol: v1alpha1.ProtocolUDP, Table: k, Clock: clock.RealClock{}, Log: logr.Discard(), May: func() bool { return true }})
		r := ruleset(true, services)
		r.Mode = mode
		c.Committed(r, dataplane.Result{OwnFlows: mode == v1alpha1.ModeIPVS})
		return c.pass(t.Context())
	}
	four := clean(dataplane.IPv4, service("dns", "ip 10.96.0.10 port 53 np 30053 ep 10.244.0.3:53"))
	if diff := cmp.Diff(map[Reason]int{EndpointGone: 2, NotTranslated: 1}, four.Removed); diff != "" || four.Err != nil {
		t.Errorf("IPv4: %v (-want +got):\n%s", four.Err, diff)
	}
	if diff := cmp.Diff([]string{valid, away, other, gone + " zone 7"}, tracked(t, "ipv4", "udp"), sorted); diff != "" {
		t.Errorf("IPv4 (-want +got):\n%s", diff)
	}
	if got := tracked(t, "ipv6", "udp"); len(got) != 2 {
		t.Errorf("a pass over IPv4 left of IPv6 only %v", got)
	}
	six6 := clean(dataplane.IPv6, service("dns", "ip fd00::10 port 53 np 30053 ep [2001:db8:a::1]:53"))
	if diff := cmp.Diff([]string{six2}, tracked(t, "ipv6", "udp")); diff != "" || six6.Err != nil {
		t.Errorf("IPv6: %v (-want +got):\n%s", six6.Err, diff)
	}
	mode = v1alpha1.ModeIPTables
	six6 = clean(dataplane.IPv6, service("dns", "ip fd00::10 port 53 np 30053 ep [2001:db8:a::1]:53"))
	if diff := cmp.Diff(map[Reason]int{OtherMode: 1}, six6.Removed); diff != "" || six6.Err != nil {
		t.Errorf("IPv6, in mode IPTables: %v (-want +got):\n%s", six6.Err, diff)
	}
	if got := tracked(t, "ipv4", "tcp"); len(got) != 5001 {
		t.Errorf("%d TCP entries are left", len(got))
	}
	if got := k.delivered.Load(); got > 10 {
		t.Errorf("the kernel delivered %d entries, most of them not UDP", got)
	}
}

var sorted = cmp.Transformer("sorted", func(list []string) []string { return slices.Sorted(slices.Values(list)) })

func BenchmarkAllUDP(b *testing.B)     { benchmark(b, Filter{}, false) }
func BenchmarkOneAddress(b *testing.B) { benchmark(b, one, false) }
func BenchmarkUnfiltered(b *testing.B) { benchmark(b, one, true) }

var one = Filter{netip.MustParseAddr("10.96.0.10"), 53}

// benchmark reads a table of 100,000 UDP and 5,000 TCP entries, none of them
// stale, and none of them of the one address.
func benchmark(b *testing.B, filter Filter, unfiltered bool) {
	onRealKernel(b)
	to := netip.MustParseAddrPort("10.96.0.20:53")
	for i := range 100_000 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 8, byte(i >> 8), byte(i)}), uint16(1000+i>>16))
		if err := insert(Flow{Source: from, Destination: to}, unix.IPPROTO_UDP); err != nil {
			b.Fatal(err)
		}
	}
	fillTCP(b, 5000)
	k := NewKernel()
	k.unfiltered.Store(unfiltered)
	p := planFor(dataplane.IPv4, nil, list{service("s", "ip 10.96.0.10 port 53 ep 10.244.0.3:53")})
	b.ReportAllocs()
	for b.Loop() {
		err := k.Walk(b.Context(), dataplane.IPv4, v1alpha1.ProtocolUDP, []Filter{filter}, func(f Flow) {
			if p.judge(f) != "" {
				b.Error("stale:", f)
			}
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(k.delivered.Load())/float64(b.N), "entries/op")
}

// TestOriginal finds where a flow was sent, and that there is none, and has one forgotten.
func TestOriginal(t *testing.T) {
	onRealKernel(t)
	k := NewKernel()
	for _, text := range []string{"10.244.7.7:40000>10.96.0.10:53>10.244.0.3:5353", "[fd00::7]:40000>[fd00:96::a]:53>[fd00::3]:5353"} {
		track(t, "udp", text)
		ends := strings.Split(text, ">")
		sender, arrives := netip.MustParseAddrPort(ends[0]), netip.MustParseAddrPort(ends[2])
		if got, err := k.Original(sender, arrives); err != nil || got.String() != ends[1] {
			t.Errorf("%s: %s, %v", text, got, err)
		}
		if got, err := k.Original(netip.AddrPortFrom(sender.Addr(), 40001), arrives); err == nil {
			t.Errorf("from another port: %s", got)
		}
		if err := k.Forget(sender, arrives); err != nil {
			t.Error(err)
		}
		if got, err := k.Original(sender, arrives); err == nil {
			t.Errorf("after it was forgotten: %s", got)
		}
	}
}
