package ipvsmodel_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest/ipvstest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/kernelmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

var (
	vip     = netip.MustParseAddr("10.96.0.1")
	web     = ipvs.Key{Addr: vip, Port: 80, Protocol: v1alpha1.ProtocolTCP}
	realA   = netip.MustParseAddrPort("10.0.0.1:80")
	realB   = netip.MustParseAddrPort("10.0.0.2:80")
	outside = netip.MustParseAddr("203.0.113.2")
)

// newKernel holds one virtual server with two real servers.
func newKernel(t *testing.T, s ipvs.Server) *ipvstest.Kernel {
	t.Helper()
	k := ipvstest.New(dataplane.IPv4, netip.MustParseAddr("192.168.0.2"))
	must(t, k.CreateDevice(), k.Bind(vip), k.AddServer(web, s), k.AddReal(web, realA, 1), k.AddReal(web, realB, 1))
	return k
}

func must(t *testing.T, list ...error) {
	t.Helper()
	if err := errors.Join(list...); err != nil {
		t.Fatal(err)
	}
}

// connects opens connections one after the other and returns where they go.
func connects(t *testing.T, k *ipvstest.Kernel, source netip.Addr, n int) string {
	t.Helper()
	var out []string
	for range n {
		o, err := k.Connect(kernelmodel.Packet{Protocol: "tcp", In: "eth0", Source: source, Destination: netip.AddrPortFrom(vip, 80)})
		if err != nil {
			t.Fatal(err)
		}
		if o.Fate != kernelmodel.Delivered {
			out = append(out, string(o.Fate))
			continue
		}
		out = append(out, o.Endpoint.String())
	}
	return strings.Join(out, " ")
}

// TestTurns: real servers get connections in turn, but for those with weight 0.
func TestTurns(t *testing.T) {
	k := newKernel(t, ipvs.Server{Scheduler: "rr"})
	if got := connects(t, k, outside, 3); got != "10.0.0.1:80 10.0.0.2:80 10.0.0.1:80" {
		t.Error(got)
	}
	must(t, k.ChangeReal(web, realA, 0))
	if got := connects(t, k, outside, 2); got != "10.0.0.2:80 10.0.0.2:80" {
		t.Error(got)
	}
	if reals, err := k.Reals(web); err != nil || reals[realA] != (ipvs.Real{Active: 2}) || reals[realB] != (ipvs.Real{Weight: 1, Active: 3}) {
		t.Errorf("%+v, %v", reals, err)
	}
	must(t, k.ChangeReal(web, realB, 0))
	if got := connects(t, k, outside, 1); got != "REJECT" {
		t.Error(got)
	}
	must(t, k.DeleteServer(web))
	if got := connects(t, k, outside, 1); got != "PASS" {
		t.Error(got)
	}
}

// TestPersistence: a client keeps its real server until it has been silent for the
// timeout, or the real server gets no clients any more.
func TestPersistence(t *testing.T) {
	k := newKernel(t, ipvs.Server{Scheduler: "rr", Flags: ipvs.FlagPersistent, Timeout: 60})
	must(t, k.SetSysctl("net/ipv4/vs/expire_quiescent_template", "1"))
	if got := connects(t, k, outside, 3); got != "10.0.0.1:80 10.0.0.1:80 10.0.0.1:80" {
		t.Error(got)
	}
	if got := connects(t, k, netip.MustParseAddr("203.0.113.3"), 2); got != "10.0.0.2:80 10.0.0.2:80" {
		t.Error(got)
	}
	must(t, k.ChangeReal(web, realA, 0))
	if got := connects(t, k, outside, 1); got != "10.0.0.2:80" {
		t.Error(got)
	}
	must(t, k.ChangeReal(web, realA, 1))
	k.Pass(time.Minute)
	if got := connects(t, k, outside, 1); got != "10.0.0.1:80" {
		t.Error(got)
	}
}

// Unless a sysctl changes that, clients stay with a real server of weight 0.
func TestPersistenceWithoutWeight(t *testing.T) {
	k := newKernel(t, ipvs.Server{Scheduler: "rr", Flags: ipvs.FlagPersistent, Timeout: 60})
	first := connects(t, k, outside, 1)
	must(t, k.ChangeReal(web, realA, 0), k.ChangeReal(web, realB, 0))
	if got := connects(t, k, outside, 1); got != first {
		t.Errorf("%s after %s", got, first)
	}
	if got := connects(t, k, netip.MustParseAddr("203.0.113.3"), 1); got != "REJECT" {
		t.Error(got)
	}
}

// IPVS forgets a client that was rejected.
func TestRejectionEndsPersistence(t *testing.T) {
	k := newKernel(t, ipvs.Server{Scheduler: "rr", Flags: ipvs.FlagPersistent, Timeout: 60})
	p := kernelmodel.Packet{Protocol: "tcp", In: "eth0", Source: outside, Destination: netip.AddrPortFrom(vip, 80)}
	for _, c := range []struct {
		got  netip.AddrPort
		want []netip.AddrPort
	}{{realB, []netip.AddrPort{realB}}, {netip.AddrPort{}, []netip.AddrPort{realA, realB}}} {
		k.Remember(web, outside, c.got)
		if reals, served := k.Tables.Balancer.Choose(p); !served || !slices.Equal(reals, c.want) {
			t.Errorf("after %s: %v, %t", c.got, reals, served)
		}
	}
	k.Remember(ipvs.Key{Addr: vip, Port: 81, Protocol: v1alpha1.ProtocolTCP}, outside, realA) // there is none
}

// The schedulers that choose by an address reject those who get a real server of weight 0.
func TestHashingWithoutWeight(t *testing.T) {
	for scheduler, want := range map[string]string{
		"rr": "DELIVERED 1.00", "mh": "REJECT 0.50 DELIVERED 0.50", "sh": "REJECT 0.50 DELIVERED 0.50", "dh": "REJECT 0.50 DELIVERED 0.50",
	} {
		k := newKernel(t, ipvs.Server{Scheduler: scheduler})
		must(t, k.ChangeReal(web, realA, 0))
		outcomes, err := k.Tables.Trace(kernelmodel.Packet{Protocol: "tcp", In: "eth0", Source: outside, Destination: netip.AddrPortFrom(vip, 80)})
		must(t, err)
		var got []string
		for _, o := range outcomes {
			got = append(got, fmt.Sprintf("%s %.2f", o.Fate, o.Share))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %s", scheduler, got, want)
		}
	}
}

// TestRejections: what the kernel does not take.
func TestRejections(t *testing.T) {
	k := newKernel(t, ipvs.Server{Scheduler: "rr"})
	other := ipvs.Key{Addr: vip, Port: 81, Protocol: v1alpha1.ProtocolTCP}
	var scheduler *ipvs.SchedulerError
	for name, is := range map[string]bool{
		"a virtual server twice":    errors.Is(k.AddServer(web, ipvs.Server{Scheduler: "rr"}), fs.ErrExist),
		"a real server twice":       errors.Is(k.AddReal(web, realA, 1), fs.ErrExist),
		"a change of none":          errors.Is(k.ChangeServer(other, ipvs.Server{Scheduler: "rr"}), fs.ErrNotExist),
		"a real server of none":     errors.Is(k.AddReal(other, realA, 1), fs.ErrNotExist),
		"a scheduler that it lacks": errors.As(k.AddServer(other, ipvs.Server{Scheduler: "none"}), &scheduler),
		"the other family":          k.AddReal(web, netip.MustParseAddrPort("[fd00::1]:80"), 1) != nil,
		"what is not there":         k.DeleteReal(web, netip.MustParseAddrPort("10.0.0.9:80")) == nil && k.DeleteServer(other) == nil,
	} {
		if !is {
			t.Error(name)
		}
	}
	k.Reject = func(c ipvsmodel.Call) error {
		if c.Key == other {
			return errors.New("no")
		}
		return nil
	}
	k.Reset()
	if k.AddServer(other, ipvs.Server{Scheduler: "rr"}) == nil || k.AddReal(web, netip.MustParseAddrPort("10.0.0.3:80"), 1) != nil {
		t.Error("rejects another key than it should")
	}
	if got := k.Writes(); !slices.Equal(got, []string{"AddServer 10.96.0.1,tcp:81 rr 0x0 0", "AddReal 10.96.0.1,tcp:80 10.0.0.3:80 1"}) || k.Messages() != 2 {
		t.Errorf("%d messages: %q", k.Messages(), got)
	}
}

// TestSets: how ipsets of each type take entries and find packets.
func TestSets(t *testing.T) {
	packet := kernelmodel.Packet{Protocol: "tcp", In: "eth0", Source: outside, Destination: netip.AddrPortFrom(vip, 80)}
	for _, c := range []struct {
		kind       ipvs.SetType
		entry      ipvs.Entry
		directions string
		in         bool
	}{
		{ipvs.HashIP, "10.96.0.1", "dst", true},
		{ipvs.HashIP, "10.96.0.1", "src", false},
		{ipvs.HashIPPort, "10.96.0.1,tcp:80", "dst,dst", true},
		{ipvs.HashIPPort, "10.96.0.1,udp:80", "dst,dst", false},
		{ipvs.HashIPPort, "203.0.113.2,tcp:80", "src,dst", true},
		{ipvs.HashIPPortIP, "10.96.0.1,tcp:80,203.0.113.2", "dst,dst,src", true},
		{ipvs.HashIPPortIP, "10.96.0.1,tcp:80,203.0.113.3", "dst,dst,src", false},
		{ipvs.HashIPPortNet, "10.96.0.1,tcp:80,203.0.113.0/25", "dst,dst,src", true},
		{ipvs.HashIPPortNet, "10.96.0.1,tcp:80,203.0.113.128/25", "dst,dst,src", false},
		{ipvs.BitmapPort, "80", "dst", true},
		{ipvs.BitmapPort, "81", "dst", false},
	} {
		k := ipvstest.New(dataplane.IPv4)
		must(t, k.ChangeSets([]ipvs.SetChange{{Name: "S", Type: c.kind, Create: true, Add: []ipvs.Entry{c.entry}}}))
		in, err := k.Tables.Balancer.InSet("S", strings.Split(c.directions, ","), packet)
		if err != nil || in != c.in {
			t.Errorf("%s %s by %s: %t, %v", c.kind, c.entry, c.directions, in, err)
		}
	}
}

// A set of ports matches no packet of SCTP, which is why node ports of SCTP are in a set with
// addresses.
func TestPortsOfSCTP(t *testing.T) {
	k := ipvstest.New(dataplane.IPv4)
	must(t, k.ChangeSets([]ipvs.SetChange{{Name: "S", Type: ipvs.BitmapPort, Create: true, Add: []ipvs.Entry{"80"}}}))
	for protocol, want := range map[string]bool{"tcp": true, "udp": true, "sctp": false} {
		packet := kernelmodel.Packet{Protocol: protocol, In: "eth0", Source: outside, Destination: netip.AddrPortFrom(vip, 80)}
		if in, err := k.Tables.Balancer.InSet("S", []string{"dst"}, packet); err != nil || in != want {
			t.Errorf("%s: %t, %v", protocol, in, err)
		}
	}
}

// TestEntriesThatAreRejected: what is not of the type, or not as the kernel prints
// it.
func TestEntriesThatAreRejected(t *testing.T) {
	for kind, list := range map[ipvs.SetType][]ipvs.Entry{
		ipvs.HashIP:        {"10.96.0.1/32", "10.96.0.1,tcp:80", "fd00::1"},
		ipvs.HashIPPort:    {"10.96.0.1", "10.96.0.1,80", "10.96.0.1,tcp:080", "10.96.0.1,icmp:80"},
		ipvs.HashIPPortIP:  {"10.96.0.1,tcp:80", "10.96.0.1,tcp:80,10.0.0.0/8"},
		ipvs.HashIPPortNet: {"10.96.0.1,tcp:80,0.0.0.0/0", "10.96.0.1,tcp:80,10.0.0.1/8", "10.96.0.1,tcp:80,10.0.0.1/32"},
		ipvs.BitmapPort:    {"tcp:80", "70000"},
	} {
		for _, e := range list {
			k := ipvstest.New(dataplane.IPv4)
			var fault *ipvs.SetError
			err := k.ChangeSets([]ipvs.SetChange{{Name: "S", Type: kind, Create: true, Add: []ipvs.Entry{e}}})
			if !errors.As(err, &fault) || fault.Entry != e {
				t.Errorf("%s %s: %v", kind, e, err)
			}
		}
	}
	k := ipvstest.New(dataplane.IPv4)
	must(t, k.ChangeSets([]ipvs.SetChange{{Name: "S", Type: ipvs.HashIP, Create: true}}),
		k.Tables.Restore("*filter\n-A INPUT -m set --match-set S dst -j DROP\nCOMMIT\n"))
	if k.DeleteSets([]ipvs.SetName{"S"}) == nil {
		t.Error("an ipset is deleted that a rule asks")
	}
}

// TestSetsApart: an ipset that is rejected does not keep others from being changed and
// deleted, but from losing entries.
func TestSetsApart(t *testing.T) {
	k := ipvstest.New(dataplane.IPv4)
	var fault *ipvs.SetError
	err := k.ChangeSets([]ipvs.SetChange{
		{Name: "A", Type: ipvs.HashIP, Create: true, Add: []ipvs.Entry{"nonsense"}},
		{Name: "B", Type: ipvs.HashIP, Create: true, Add: []ipvs.Entry{"10.0.0.1"}, Remove: []ipvs.Entry{"10.0.0.1"}},
	})
	if got := k.Entries("B"); !errors.As(err, &fault) || fault.Set != "A" || !slices.Equal(got, []string{"10.0.0.1"}) {
		t.Errorf("%v, B has %v", err, got)
	}
	must(t, k.Tables.Restore("*filter\n-A INPUT -m set --match-set A dst -j DROP\nCOMMIT\n"))
	err = k.DeleteSets([]ipvs.SetName{"A", "B"})
	if !errors.As(err, &fault) || fault.Set != "A" || !k.Tables.Balancer.HasSet("A") || k.Tables.Balancer.HasSet("B") {
		t.Errorf("%v, A is there: %t, B is there: %t", err, k.Tables.Balancer.HasSet("A"), k.Tables.Balancer.HasSet("B"))
	}
}

// TestEvents: listeners get events until they hang up.
func TestEvents(t *testing.T) {
	k := ipvstest.New(dataplane.IPv4, netip.MustParseAddr("192.168.0.2"))
	done := make(chan struct{})
	events, err := k.Events(done)
	must(t, err, k.CreateDevice(), k.Bind(vip), k.Bind(vip))
	k.SetAddresses(netip.MustParseAddr("192.168.0.3"), netip.MustParseAddr("fd00::1"))
	must(t, k.DeleteDevice())
	close(done)
	var got []ipvs.Event
	for e := range events {
		got = append(got, e)
	}
	want := []ipvs.Event{
		{Device: true, Addr: vip},
		{Addr: netip.MustParseAddr("192.168.0.2"), Removed: true}, {Addr: netip.MustParseAddr("192.168.0.3")},
		{Device: true, Addr: vip, Removed: true}, {Device: true, Removed: true},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
}
