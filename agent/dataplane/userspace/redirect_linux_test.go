package userspace

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// plane is a Dataplane with a kernel that is a map.
type plane struct {
	*testing.T
	*Dataplane
	kernel  *dataplanetest.Fake
	ruleset *dataplane.Ruleset
	host    *Host
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	kernel := dataplanetest.NewFake()
	host := NewHost(map[dataplane.Family]*dataplanetest.Fake{dataplane.IPv4: kernel}, Options{Workers: 1})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- host.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return &plane{T: t, Dataplane: host.planes[0], kernel: kernel, host: host, ruleset: &dataplane.Ruleset{
		Mode: v1alpha1.ModeIPTables, Full: true, Prune: true, Services: map[dataplane.ServiceName]*dataplane.Service{},
		Node: dataplane.Node{Settings: v1alpha1.CompleteSettings(nil), Addresses: []netip.Addr{loopback}},
	}}
}

// set sets a Service; nil removes it.
func (p *plane) set(name string, s *dataplane.Service) {
	if p.ruleset.Dirty == nil {
		p.ruleset.Dirty = map[dataplane.ServiceName]struct{}{}
	}
	p.ruleset.Dirty[named(name)] = struct{}{}
	if s == nil {
		delete(p.ruleset.Services, named(name))
		return
	}
	s.Name = named(name)
	p.ruleset.Services[named(name)] = s
}

// setMode sets the mode of the node.
func (p *plane) setMode(mode v1alpha1.ProxyMode) {
	p.ruleset.Node.Settings = v1alpha1.CompleteSettings(&v1alpha1.ProxySettings{Mode: &mode})
	p.ruleset.Mode, p.ruleset.Full = mode.Kernel(), true
}

func (p *plane) apply() dataplane.Result {
	p.Helper()
	result, err := p.Apply(p.Context(), p.ruleset)
	if err != nil {
		p.Fatal(err)
	}
	if d, err := p.Verify(p.Context(), p.ruleset, dataplane.VerifyOptions{}); err != nil || d.Count > 0 {
		p.Errorf("after an Apply the kernel differs: %v, %v", d.Examples, err)
	}
	p.ruleset.Full, p.ruleset.Dirty = false, nil
	return result
}

// proxied reports whether the kernel redirects a Service to the proxy.
func (p *plane) proxied(name string) bool {
	p.Helper()
	s := p.kernel.Service("default", name)
	if s == nil {
		p.Fatalf("the kernel has no Service %s", name)
	}
	for _, served := range p.host.table.all() {
		if served.id.service == s.Name && slices.Equal(s.Ports[0].Cluster, served.sockets[cluster:cluster+1]) {
			return true
		}
	}
	return false
}

func inUserspace(endpoints ...netip.AddrPort) *dataplane.Service {
	s := serving(v1alpha1.ProtocolTCP, endpoints...)
	s.Userspace = true
	return s
}

func TestSingleServices(t *testing.T) {
	p := newPlane(t)
	p.set("kernel", serving(v1alpha1.ProtocolTCP, addresses(2)...))
	if result := p.apply(); result.Instead != nil || p.host.engine != nil {
		t.Error("a proxy that serves nothing costs something")
	}
	other := inUserspace(addresses(2)...)
	other.ClusterIP = otherIP
	p.set("proxied", other)
	result := p.apply()
	if p.proxied("kernel") || !p.proxied("proxied") {
		t.Error("not only the Service that asks for it is redirected")
	}
	if result.Instead == nil || result.Instead.Services[named("proxied")] != p.kernel.Service("default", "proxied") {
		t.Error("the result does not have what the kernel has")
	}
	writes := p.kernel.Writes()
	p.ruleset.Full = true
	p.apply()
	if got := p.kernel.Writes() - writes; got != 0 {
		t.Errorf("another full pass writes %d Services", got)
	}
	// Back to the kernel, and away.
	p.set("proxied", serving(v1alpha1.ProtocolTCP, addresses(2)...))
	if p.apply(); p.proxied("proxied") || len(p.host.table.all()) != 0 {
		t.Error("it is still redirected")
	}
	p.set("proxied", inUserspace(addresses(1)...))
	p.apply()
	p.set("proxied", nil)
	if p.apply(); len(p.host.table.all()) != 0 || slices.Contains(p.kernel.Services(), "default/proxied") {
		t.Error("something is left")
	}
}

// Ports that shared a listener would delay a client's second connection that has the same source port.
func TestOwnListeners(t *testing.T) {
	p := newPlane(t)
	var all []netip.AddrPort
	for i, name := range []string{"a", "b"} {
		s := inUserspace(addresses(2)...)
		s.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)})
		s.Ports = append(s.Ports, s.Ports[0])
		s.Ports[1].Port, s.Ports[1].Local = 81, addresses(1)
		p.set(name, s)
		p.apply()
		for _, port := range p.kernel.Service("default", name).Ports {
			all = append(all, slices.Concat(port.Cluster, port.Local)...)
		}
	}
	if len(slices.Compact(slices.SortedFunc(slices.Values(all), netip.AddrPort.Compare))) != 6 {
		t.Errorf("listeners of two ports, one of them with policy Local, of two Services: %v", all)
	}
	accepts := func(at netip.AddrPort) bool {
		c, err := net.Dial("tcp", at.String())
		if err == nil {
			_ = c.Close()
		}
		return !errors.Is(err, unix.ECONNREFUSED) // it resets what was not redirected, perhaps at once
	}
	for _, at := range all {
		if !accepts(at) {
			t.Errorf("none listens at %s", at)
		}
	}
	p.set("a", nil)
	p.apply()
	for _, at := range all {
		if !accepts(at) { // handshakes may be under way
			t.Errorf("%s is closed at once", at)
		}
	}
	for i, at := range all {
		until(t, at.String()+" listens", func() bool { return accepts(at) == (i >= 3) })
	}
	// The rest of the limit is taken: the kernel serves one more port.
	p.host.listeners.n.Add(maxListeners - 3)
	more := inUserspace(addresses(1)...)
	more.ClusterIP = otherIP
	p.set("more", more)
	if result := p.apply(); p.proxied("more") || len(result.Notes) != 1 || !strings.Contains(result.Notes[0], "8192 ports") || len(result.Warnings) != 0 {
		t.Errorf("beyond the limit: redirected %t, notes %q, warnings %q", p.proxied("more"), result.Notes, result.Warnings)
	}
	p.set("b", nil)
	p.apply()
	until(t, "the listeners count", func() bool { return p.host.listeners.n.Load() == maxListeners-3 })
	p.set("more", more)
	if p.apply(); !p.proxied("more") {
		t.Error("what others have given back is not used")
	}
}

func TestWholeNode(t *testing.T) {
	p := newPlane(t)
	p.set("web", serving(v1alpha1.ProtocolTCP, addresses(2)...))
	p.apply()
	p.setMode(v1alpha1.ModeUserspace)
	if p.apply(); !p.proxied("web") || p.kernel.Mode() != v1alpha1.ModeIPTables {
		t.Errorf("in mode Userspace, the kernel has mode %s, redirected: %t", p.kernel.Mode(), p.proxied("web"))
	}
	p.setMode(v1alpha1.ModeIPTables)
	if p.apply(); p.proxied("web") {
		t.Error("it is still redirected")
	}
}

// A Service whose endpoints go has its connections rejected by the kernel.
func TestWithoutEndpoints(t *testing.T) {
	p := newPlane(t)
	p.set("web", inUserspace())
	p.apply()
	if s := p.kernel.Service("default", "web"); len(s.Ports[0].Cluster) != 0 {
		t.Errorf("%v", s.Ports[0].Cluster)
	}
}

func TestUnserved(t *testing.T) {
	p := newPlane(t)
	s := inUserspace(addresses(1)...)
	s.Ports = append(s.Ports, dataplane.Port{Protocol: v1alpha1.ProtocolSCTP, Port: 99, Cluster: addresses(1), Available: true})
	p.set("web", s)
	result := p.apply()
	if len(result.Notes) != 1 || !strings.Contains(result.Notes[0], "99/SCTP") {
		t.Errorf("notes %q", result.Notes)
	}
	if got := p.kernel.Service("default", "web").Ports[1].Cluster; !slices.Equal(got, addresses(1)) {
		t.Errorf("SCTP is redirected to %v", got)
	}
	p.ruleset.Node.Addresses, p.ruleset.Full = nil, true
	result = p.apply()
	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "no IPv4 address") || p.proxied("web") {
		t.Errorf("without an address: warnings %q, redirected: %t", result.Warnings, p.proxied("web"))
	}
}

// The node's address changes: the kernel has the new listener before the former one ends.
func TestAddressChanges(t *testing.T) {
	p := newPlane(t)
	p.set("web", inUserspace(addresses(1)...))
	p.apply()
	former := p.kernel.Service("default", "web").Ports[0].Cluster[0]
	p.ruleset.Node.Addresses, p.ruleset.Full = []netip.Addr{netip.MustParseAddr("127.0.0.2")}, true
	p.apply()
	now := p.kernel.Service("default", "web").Ports[0].Cluster[0]
	if now.Addr() != netip.MustParseAddr("127.0.0.2") || former.Addr() != loopback {
		t.Errorf("from %s to %s", former, now)
	}
}

func TestLeaveToKernel(t *testing.T) {
	p := newPlane(t)
	p.set("web", inUserspace(addresses(2)...))
	p.set("kernel", serving(v1alpha1.ProtocolTCP, addresses(1)...))
	p.apply()
	writes := p.kernel.Writes()
	if err := p.host.LeaveToKernel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.kernel.Service("default", "web"); !slices.Equal(s.Ports[0].Cluster, addresses(2)) {
		t.Errorf("the kernel sends connections to %v", s.Ports[0].Cluster)
	}
	if got := p.kernel.Writes() - writes; got != 1 {
		t.Errorf("%d Services were written, want 1", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if p.host.Drain(ctx, clock.RealClock{}); ctx.Err() != nil {
		t.Error("without a connection, it waits")
	}
}

func TestCleanup(t *testing.T) {
	p := newPlane(t)
	p.set("web", inUserspace(addresses(2)...))
	p.apply()
	if err := p.Dataplane.Cleanup(t.Context(), dataplane.CleanupOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(p.kernel.Services())+len(p.host.table.all()) != 0 {
		t.Errorf("left: %v", p.kernel.Services())
	}
}

// A Service that the kernel still redirects, because it rejects the rest, or a write has failed, is served.
func TestServesWhatTheKernelHas(t *testing.T) {
	p := newPlane(t)
	p.set("web", inUserspace(addresses(2)...))
	p.apply()
	p.kernel.Fail(errors.New("no"))
	p.set("web", nil)
	if _, err := p.Apply(t.Context(), p.ruleset); err == nil {
		t.Fatal("no error")
	}
	if len(p.host.table.all()) == 0 {
		t.Error("it is gone before the kernel has lost it")
	}
	p.kernel.Fail(nil)
	p.ruleset.Full = true
	if p.apply(); len(p.host.table.all()) != 0 {
		t.Error("it is still served after the kernel has lost it")
	}
	p.set("web", inUserspace(addresses(2)...))
	p.apply()
	p.set("web", serving(v1alpha1.ProtocolTCP, addresses(2)...))
	p.kernel.Reject("default", "web", "no")
	if result, err := p.Apply(t.Context(), p.ruleset); err != nil || len(result.Rejected) != 1 || len(p.host.table.all()) == 0 {
		t.Errorf("the kernel rejects the new rules: %v, served: %d", err, len(p.host.table.all()))
	}
}

// An agent that stops after a failed write leaves Services to the kernel all the same.
func TestLeaveToKernelAfterFailure(t *testing.T) {
	p := newPlane(t)
	p.set("web", inUserspace(addresses(2)...))
	p.kernel.Fail(errors.New("no"))
	if _, err := p.Apply(t.Context(), p.ruleset); err == nil {
		t.Fatal("no error")
	}
	p.kernel.Fail(nil)
	if err := p.host.LeaveToKernel(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.kernel.Service("default", "web"); s == nil || !slices.Equal(s.Ports[0].Cluster, addresses(2)) {
		t.Errorf("the kernel has %v", s)
	}
}
