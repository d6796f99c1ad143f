package ipvs_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// draw draws the parts of worlds.
type draw struct{ *rand.Rand }

func (d draw) chance(percent int) bool { return d.IntN(100) < percent }

func (d draw) endpoints(most int) []netip.AddrPort {
	var out []netip.AddrPort
	for i := range 6 {
		if len(out) < most && d.chance(50) {
			out = append(out, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 180, 0, byte(i + 1)}), 8080))
		}
	}
	return out
}

func (d draw) addresses(pool ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range pool {
		if d.chance(40) {
			out = append(out, ip(a))
		}
	}
	return out
}

func (d draw) port(n int) dataplane.Port {
	p := dataplane.Port{
		Name: fmt.Sprintf("p%d", n), Port: uint16(80 + n), Available: d.chance(80),
		Protocol: []v1alpha1.Protocol{v1alpha1.ProtocolTCP, v1alpha1.ProtocolUDP, v1alpha1.ProtocolSCTP}[d.IntN(3)],
	}
	if p.Available {
		p.Cluster, p.Local = d.endpoints(6), d.endpoints(2)
		p.LocalEndpoints = p.Local
	}
	if d.chance(40) {
		p.NodePort = uint16(30000 + d.IntN(6))
	}
	if d.chance(5) {
		p.NodePort = p.Port
	}
	return p
}

func (d draw) service(n int) *dataplane.Service {
	s := service(n)
	s.Ports = nil
	for i := range 1 + d.IntN(2) {
		s.Ports = append(s.Ports, d.port(i))
	}
	if d.chance(40) {
		s.ExternalIPs = d.addresses("1.1.1.1", "192.168.0.2", "192.168.7.7")
	}
	if d.chance(40) {
		s.LoadBalancerIPs = d.addresses("1.1.1.1", "2.2.2.2")
	}
	if d.chance(30) {
		s.SourceRanges = []netip.Prefix{netip.MustParsePrefix([]string{"192.168.0.0/16", "9.0.0.0/8", "0.0.0.0/0"}[d.IntN(3)])}
	}
	s.ExternalLocal, s.InternalLocal = d.chance(40), d.chance(20)
	if d.chance(20) {
		s.AffinitySeconds = 60
	}
	s.IPVSScheduler = []string{"", "", "", "sh", "mh", "none"}[d.IntN(6)]
	if d.chance(20) {
		s.HealthCheckNodePort = uint16(32000 + n)
	}
	return s
}

// change changes one or more Services, or the node's addresses.
func (d draw) change(b *bench) {
	for range 1 + d.IntN(2) {
		s := d.service(1 + d.IntN(5))
		if d.chance(20) {
			b.remove(s)
		} else {
			b.set(s)
		}
	}
	if d.chance(15) {
		b.kernel.SetAddresses(append(d.addresses("192.168.1.2", "192.168.7.7", "1.1.1.1"), ip("192.168.0.2"), ip("127.0.0.1"))...)
		b.r.Recheck = true
	}
}

// fresh returns the state of an empty kernel after one full pass.
func (b *bench) fresh() string {
	b.Helper()
	addresses, err := b.kernel.Addresses()
	if err != nil {
		b.Fatal(err)
	}
	other := newBench(b.TB)
	other.kernel.SetAddresses(addresses...)
	for _, s := range b.r.Services {
		other.set(s)
	}
	other.apply()
	return other.state()
}

// TestChangesEndAsFullPass: after any changes in any order, the kernel state is that of a full pass
// over an empty kernel.
func TestChangesEndAsFullPass(t *testing.T) {
	for seed := range uint64(60) {
		d := draw{rand.New(rand.NewPCG(seed, 1))}
		b := newBench(t)
		partial := 0
		for step := range 40 {
			d.change(b)
			if d.chance(5) {
				b.restart()
			}
			if result := b.apply(); result.Kind == v1alpha1.SyncPartial {
				partial++
			}
			if got, want := b.state(), b.fresh(); got != want {
				t.Fatalf("seed %d, step %d: %s\nwant\n%s", seed, step, got, want)
			}
			b.verified()
		}
		if partial < 5 {
			t.Errorf("seed %d: only %d partial passes", seed, partial)
		}
	}
}

// servers are the virtual servers with their real servers.
func (b *bench) servers() map[ipvs.Key][]netip.AddrPort {
	b.Helper()
	all, err := b.kernel.Servers()
	if err != nil {
		b.Fatal(err)
	}
	out := map[ipvs.Key][]netip.AddrPort{}
	for k := range all {
		out[k] = []netip.AddrPort{}
		reals, err := b.kernel.Reals(k)
		if err != nil {
			b.Fatal(err)
		}
		for real, r := range reals {
			if r.Weight > 0 {
				out[k] = append(out[k], real)
			}
		}
	}
	return out
}

// between compares what is served during an Apply to before and after.
func between(before, now, after map[ipvs.Key][]netip.AddrPort) string {
	for k, was := range before {
		will, stays := after[k]
		if !stays {
			continue
		}
		is, there := now[k]
		if !there {
			return fmt.Sprintf("%s is gone", k)
		}
		if len(is) == 0 && len(was) > 0 && len(will) > 0 {
			return fmt.Sprintf("%s has no real server", k)
		}
		for _, real := range was {
			if slices.Contains(will, real) && !slices.Contains(is, real) {
				return fmt.Sprintf("%s lacks %s", k, real)
			}
		}
	}
	for k, is := range now {
		for _, real := range is {
			if !slices.Contains(before[k], real) && !slices.Contains(after[k], real) {
				return fmt.Sprintf("%s has %s", k, real)
			}
		}
	}
	return ""
}

// TestStoppedAtEveryCall: an agent that stops or fails at any kernel call leaves every Service
// served as before or as desired, and the next one repairs it.
func TestStoppedAtEveryCall(t *testing.T) {
	for seed := range uint64(12) {
		for _, once := range []bool{false, true} { // fail once, or be dead from then on
			stopped := true
			for at := 0; stopped && at < 500; at++ {
				stopped = stopAt(t, seed, at, once)
			}
			if stopped {
				t.Fatal("no end of calls")
			}
		}
	}
}

func stopAt(t *testing.T, seed uint64, at int, once bool) (stopped bool) {
	d := draw{rand.New(rand.NewPCG(seed, 2))}
	b := newBench(t)
	for range 3 {
		d.change(b)
	}
	b.apply()
	before := b.servers()
	d.change(b)
	full := seed%3 == 0
	b.r.Full = full
	n := 0
	fail := func() error {
		n++
		if n-1 == at || n-1 > at && !once {
			stopped = true
			return errBoom
		}
		return nil
	}
	b.kernel.Reject = func(ipvsmodel.Call) error { return fail() }
	b.rules.before = fail
	_, err := b.try()
	b.kernel.Reject, b.rules.before = nil, nil
	now := b.servers()
	dead := stopped && !once
	if err == nil && !dead {
		b.r.Full = b.r.Full || stopped // a Service may be rejected until the next full pass
	}
	if dead {
		b.restart()
	}
	b.apply()
	after := b.servers()
	if why := between(before, now, after); why != "" {
		t.Errorf("seed %d, stopped at %d (%v): %s", seed, at, err, why)
	}
	if got, want := b.state(), b.fresh(); got != want {
		t.Fatalf("seed %d, stopped at %d, once %t (%v): %s\nwant\n%s", seed, at, once, err, got, want)
	}
	b.verified()
	return stopped
}

// TestDrainsEndAsFullPass: the same with connections, for which undesired real servers drain.
func TestDrainsEndAsFullPass(t *testing.T) {
	drained := 0
	for seed := range uint64(25) {
		d := draw{rand.New(rand.NewPCG(seed, 3))}
		b := newBench(t)
		for step := range 30 {
			d.connect(b)
			d.change(b)
			if d.chance(10) {
				b.restart()
			}
			if d.chance(30) {
				b.clock.Step(time.Duration(d.IntN(1000)) * time.Second)
				b.r.Recheck = true
			}
			b.apply()
			b.verified()
			got := b.state()
			drained += strings.Count(got, "=0")
			if got, want := weightless.ReplaceAllString(got, ""), b.fresh(); got != want {
				t.Fatalf("seed %d, step %d: %s\nwant\n%s", seed, step, got, want)
			}
		}
		b.clock.Step(time.Hour)
		b.recheck()
		if got, want := b.state(), b.fresh(); got != want {
			t.Fatalf("seed %d, in the end: %s\nwant\n%s", seed, got, want)
		}
	}
	if drained < 100 {
		t.Errorf("real servers have drained %d times only", drained)
	}
}

// weightless matches draining real servers in the output of state.
var weightless = regexp.MustCompile(` [0-9.]+:[0-9]+=0`)

// connect lets connections of some real servers begin and end.
func (d draw) connect(b *bench) {
	servers := b.servers()
	for _, k := range slices.SortedFunc(maps.Keys(servers), ipvs.Key.Compare) {
		slices.SortFunc(servers[k], netip.AddrPort.Compare)
		for _, real := range servers[k] {
			b.connections(k, real.String(), d.IntN(3)/2, d.IntN(3)/2)
		}
	}
}
