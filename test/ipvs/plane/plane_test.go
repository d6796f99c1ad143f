package plane

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/modes"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

func TestMain(m *testing.M) { uml.Main(m) }

// patience is how long anything may take.
const patience = 20 * time.Second

// TestPlane boots a machine that has IPVS.
func TestPlane(t *testing.T) { uml.InKernel(t, uml.Options{MemoryMiB: 1024}, inKernel) }

func inKernel(t *testing.T) {
	run(t, "ip link add node0 type dummy")
	run(t, "ip link set node0 up")
	for _, a := range []string{"192.168.0.2/24", "10.244.0.1/32", "10.244.0.2/32", "2001:db8::2/64", "fd00:244::1/128", "fd00:244::2/128"} {
		line := "ip addr add " + a + " dev node0"
		if strings.Contains(a, ":") {
			line += " nodad"
		}
		run(t, line)
	}
	planes := []*plane{newPlane(t, dataplane.IPv4), newPlane(t, dataplane.IPv6)}
	t.Run("Life", planes[0].lifeOfServices)
	t.Run("AtLimits", atLimits)
	t.Run("Both", func(t *testing.T) { together(t, planes) })
}

// plane is a data plane of one family in the real kernel.
type plane struct {
	family dataplane.Family
	kernel ipvs.Kernel
	clock  *testclock.FakeClock
	plane  *ipvs.Dataplane
	r      *dataplane.Ruleset
}

func newPlane(t *testing.T, family dataplane.Family) *plane {
	t.Helper()
	p := &plane{family: family, kernel: ipvs.NewKernel(family, ""), clock: testclock.NewFakeClock(time.Now())}
	p.r = &dataplane.Ruleset{
		Mode: v1alpha1.ModeIPVS, Prune: true, Full: true,
		Node: dataplane.Node{
			Settings:  v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{}),
			Addresses: []netip.Addr{p.addr("192.168.0.2", "2001:db8::2")},
		},
		Services: map[dataplane.ServiceName]*dataplane.Service{}, Dirty: map[dataplane.ServiceName]struct{}{},
	}
	p.restart()
	return p
}

func (p *plane) restart() {
	p.plane = ipvs.New(p.family, ipvs.Options{
		Kernel: p.kernel, Rules: iptables.NewFixedRules(ipvs.Declaration(), p.family, iptables.Options{Modes: modes.Declarations()}), Clock: p.clock,
	})
	p.r.Full = true
}

func (p *plane) addr(v4, v6 string) netip.Addr {
	if p.family == dataplane.IPv6 {
		return netip.MustParseAddr(v6)
	}
	return netip.MustParseAddr(v4)
}

// end is the endpoint with a number.
func (p *plane) end(n int) netip.AddrPort {
	return netip.AddrPortFrom(p.addr(fmt.Sprintf("10.244.0.%d", n), fmt.Sprintf("fd00:244::%d", n)), 8080)
}

func (p *plane) service(ends ...netip.AddrPort) *dataplane.Service {
	return &dataplane.Service{
		Name:      dataplane.ServiceName{Namespace: "ns", Name: "web"},
		ClusterIP: p.addr("10.96.0.1", "fd00:96::1"),
		Ports:     []dataplane.Port{{Name: "web", Protocol: v1alpha1.ProtocolTCP, Port: 80, NodePort: 30080, Cluster: ends, Available: len(ends) > 0}},
	}
}

func (p *plane) set(list ...*dataplane.Service) {
	for _, s := range list {
		p.r.Services[s.Name] = s
		p.r.Dirty[s.Name] = struct{}{}
	}
}

func (p *plane) apply(t *testing.T) dataplane.Result {
	t.Helper()
	if p.r.Full {
		if err := p.plane.Supported(t.Context(), p.r); err != nil {
			t.Fatal(err)
		}
	}
	result, err := p.plane.Apply(t.Context(), p.r)
	if err != nil || len(result.Rejected)+len(result.Warnings) > 0 {
		t.Fatalf("%v, rejected %v, warnings %q", err, result.Rejected, result.Warnings)
	}
	p.r.Full, p.r.Recheck, p.r.Dirty = false, false, map[dataplane.ServiceName]struct{}{}
	return result
}

func (p *plane) verify(t *testing.T, want int) dataplane.Difference {
	t.Helper()
	diff, err := p.plane.Verify(t.Context(), p.r, dataplane.VerifyOptions{})
	if err != nil || diff.Count != want {
		t.Fatalf("%v, %+v; want %d", err, diff, want)
	}
	return diff
}

// reals are the weights of the real servers of a virtual server.
func (p *plane) reals(t *testing.T, k ipvs.Key) map[netip.AddrPort]int {
	t.Helper()
	list, err := p.kernel.Reals(k)
	if err != nil {
		t.Fatal(err)
	}
	out := map[netip.AddrPort]int{}
	for real, r := range list {
		out[real] = r.Weight
	}
	return out
}

// run runs a program and returns what it prints.
func run(t *testing.T, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput() //nolint:gosec // a test's own words
	if err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
	return string(out)
}

// serve echoes what it is sent, until the test ends.
func serve(t *testing.T, on netip.AddrPort) {
	t.Helper()
	l, err := net.Listen("tcp", on.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

func dial(t *testing.T, to netip.AddrPort) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", to.String(), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	echo(t, conn)
	return conn
}

// echo sends something and waits for it.
func echo(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
}

// lifeOfServices takes a Service from its begin to its end, with a connection that
// outlives its endpoint's part in it.
func (p *plane) lifeOfServices(t *testing.T) {
	one, two := p.end(1), p.end(2)
	serve(t, one)
	serve(t, two)
	p.set(p.service(one))
	p.apply(t)
	p.verify(t, 0)
	key := ipvs.Key{Addr: p.service().ClusterIP, Port: 80, Protocol: v1alpha1.ProtocolTCP}
	held := dial(t, netip.AddrPortFrom(key.Addr, key.Port))
	dial(t, netip.AddrPortFrom(p.r.Node.Addresses[0], 30080))

	p.set(p.service(two))
	if result := p.apply(t); result.Kind != v1alpha1.SyncPartial {
		t.Errorf("%+v", result)
	}
	if got := p.reals(t, key); len(got) != 2 || got[one] != 0 || got[two] != 1 {
		t.Errorf("%v", got)
	}
	p.verify(t, 0)
	echo(t, held)
	p.restart()
	p.apply(t)
	p.verify(t, 0)
	echo(t, held)
	if got := p.reals(t, key); got[one] != 0 || len(got) != 2 {
		t.Errorf("after a restart: %v", got)
	}
	p.clock.Step(20 * time.Minute)
	p.r.Recheck = true
	p.apply(t)
	if got := p.reals(t, key); len(got) != 1 {
		t.Errorf("after its time: %v", got)
	}

	p.drift(t, key)
	last := dial(t, netip.AddrPortFrom(key.Addr, key.Port))
	pending, err := p.plane.CleanupMode(t.Context(), p.r)
	if err != nil || !strings.Contains(pending, key.String()) {
		t.Fatalf("%q, %v", pending, err)
	}
	echo(t, last)
	p.clock.Step(20 * time.Minute)
	if pending, err = p.plane.CleanupMode(t.Context(), p.r); err != nil || pending != "" {
		t.Fatalf("%q, %v", pending, err)
	}
	p.empty(t) // but for rules that mode IPTables has as well
	p.r.Full = true
	p.apply(t)
	p.verify(t, 0)
	dial(t, netip.AddrPortFrom(key.Addr, key.Port))
	p.restart()
	p.cleanup(t)
}

// cleanup expects that nothing is left.
func (p *plane) cleanup(t *testing.T) {
	t.Helper()
	if err := p.plane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
		t.Fatal(err)
	}
	p.empty(t)
	program := map[dataplane.Family]string{dataplane.IPv4: "iptables-save", dataplane.IPv6: "ip6tables-save"}[p.family]
	if out := run(t, program); strings.Contains(out, "KUBE-") {
		t.Errorf("rules:\n%s", out)
	}
}

// drift changes things as another program would, which is reported and repaired.
func (p *plane) drift(t *testing.T, key ipvs.Key) {
	ctx, cancel := context.WithCancel(t.Context())
	changes, done := make(chan dataplane.Change, 100), make(chan struct{})
	go func() {
		defer close(done)
		p.plane.Watch(ctx, func(c dataplane.Change) { changes <- c })
	}()
	defer func() { cancel(); <-done }()
	for end := time.Now().Add(patience); ; {
		if err := p.kernel.Unbind(key.Addr); err != nil {
			t.Fatal(err)
		}
		if diff := p.verify(t, 1); !diff.Drifted || !strings.Contains(diff.Examples[0], key.Addr.String()) {
			t.Errorf("%+v", diff)
		}
		p.r.Full = true
		p.apply(t)
		if len(changes) > 0 {
			break
		}
		if time.Now().After(end) { // nothing reported when the watch has begun
			t.Fatal("not noticed")
		}
	}
	for len(changes) > 0 {
		<-changes
	}
	if err := p.kernel.DeleteServer(key); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); len(changes) == 0; p.clock.Step(5 * time.Second) {
		if time.Now().After(end) {
			t.Fatal("the end of a virtual server is not noticed")
		}
		<-time.After(10 * time.Millisecond)
	}
	p.r.Full = true
	p.apply(t)
	p.verify(t, 0)
}

// empty expects nothing of the family in the kernel.
func (p *plane) empty(t *testing.T) {
	t.Helper()
	servers, err := p.kernel.Servers()
	if err != nil || len(servers) > 0 {
		t.Errorf("%v, %v", servers, err)
	}
	bound, exists, err := p.kernel.Bound()
	if err != nil || exists || len(bound) > 0 {
		t.Errorf("%v, %t, %v", bound, exists, err)
	}
	if out := run(t, "ipset list -n"); strings.Contains(out, map[dataplane.Family]string{dataplane.IPv4: "KUBE-CLUSTER-IP", dataplane.IPv6: "KUBE-6-CLUSTER-IP"}[p.family]) {
		t.Errorf("ipsets %q", out)
	}
}

// together has both families share the device: what one leaves is the other's.
func together(t *testing.T, planes []*plane) {
	one := planes[1].end(1)
	serve(t, one)
	planes[1].set(planes[1].service(one))
	for _, p := range planes {
		p.r.Full = true
		p.apply(t)
	}
	if pending, err := planes[0].plane.CleanupMode(t.Context(), planes[0].r); err != nil || pending != "" {
		t.Fatalf("%q, %v", pending, err)
	}
	planes[1].verify(t, 0)
	dial(t, netip.AddrPortFrom(planes[1].service().ClusterIP, 80))
	for _, p := range []*plane{planes[1], planes[0]} {
		p.cleanup(t)
	}
}
