package ipvs_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/iptables/iptablestest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// connections gives a real server active and inactive connections.
func (b *bench) connections(key ipvs.Key, real string, active, inactive int) {
	b.Helper()
	if err := b.kernel.SetConnections(key, netip.MustParseAddrPort(real), active, inactive); err != nil {
		b.Fatal(err)
	}
}

// holds compares a virtual server.
func (b *bench) holds(key ipvs.Key, want string) {
	b.Helper()
	if got := b.kernel.Server(key); got != want {
		b.Errorf("%s: %q, want %q", key, got, want)
	}
}

// recheck is an Apply because of what Follow has told.
func (b *bench) recheck() {
	b.Helper()
	b.r.Recheck = true
	b.apply()
}

func TestDraining(t *testing.T) {
	key := tcp("10.0.0.1", 80)
	const one, two = "10.180.0.1:80", "10.180.0.2:80"
	start := func(t *testing.T, active, inactive int) *bench {
		b := newBench(t)
		b.set(service(1, one, two), service(2, "10.180.0.3:80"))
		b.apply()
		b.connections(key, two, active, inactive)
		b.set(service(1, one))
		b.apply()
		return b
	}
	t.Run("until connections are gone", func(t *testing.T) {
		b := start(t, 3, 0)
		b.holds(key, "rr "+one+" "+two+"=0")
		b.verified()
		b.connections(key, two, 0, 1)
		b.clock.Step(9 * time.Second)
		if b.recheck(); b.kernel.Messages() != 1 { // the node's addresses
			t.Errorf("looked at before it was time: %v", b.kernel.Calls())
		}
		b.clock.Step(time.Second)
		b.recheck()
		b.holds(key, "rr "+one+" "+two+"=0")
		b.connections(key, two, 0, 0)
		b.clock.Step(10 * time.Second)
		b.recheck()
		b.wants("DeleteReal 10.0.0.1,tcp:80 " + two)
		if n := b.kernel.Messages(); n != 3 {
			t.Errorf("%v", b.kernel.Calls())
		}
		b.verified()
	})
	t.Run("bound", func(t *testing.T) {
		b := start(t, 0, 1)
		b.clock.Step(15*time.Minute - time.Second)
		b.recheck()
		b.holds(key, "rr "+one+" "+two+"=0")
		b.clock.Step(10 * time.Second)
		b.recheck()
		b.holds(key, "rr "+one)
	})
	t.Run("other passes leave it alone", func(t *testing.T) {
		b := start(t, 1, 0)
		b.set(service(1, one, "10.180.0.9:80"))
		b.apply()
		b.r.Full = true
		b.apply()
		b.wants()
		b.holds(key, "rr "+one+" "+two+"=0 10.180.0.9:80")
	})
	t.Run("comes back", func(t *testing.T) {
		b := start(t, 1, 0)
		b.set(service(1, one, two))
		b.apply()
		b.wants("ChangeReal 10.0.0.1,tcp:80 " + two + " 1")
		b.clock.Step(time.Hour)
		b.recheck()
		b.holds(key, "rr "+one+" "+two)
	})
	t.Run("no connections", func(t *testing.T) {
		b := start(t, 0, 0)
		b.holds(key, "rr "+one)
	})
	t.Run("restart", func(t *testing.T) {
		b := start(t, 1, 0)
		b.clock.Step(14 * time.Minute)
		b.restart()
		b.apply()
		b.wants()
		b.holds(key, "rr "+one+" "+two+"=0")
		b.clock.Step(14 * time.Minute)
		b.recheck()
		b.holds(key, "rr "+one+" "+two+"=0")
		b.clock.Step(2 * time.Minute)
		b.recheck()
		b.holds(key, "rr "+one)
	})
	t.Run("comes back during a restart", func(t *testing.T) {
		b := start(t, 1, 0)
		b.set(service(1, one, two))
		b.restart()
		b.apply()
		b.wants("ChangeReal 10.0.0.1,tcp:80 " + two + " 1")
	})
	t.Run("the Service ends", func(t *testing.T) {
		b := start(t, 1, 0)
		b.remove(service(1))
		b.apply()
		b.holds(key, "")
		b.clock.Step(time.Minute)
		b.recheck()
		b.wants()
	})
	t.Run("somebody gives it weight again", func(t *testing.T) {
		b := start(t, 1, 0)
		if err := b.kernel.ChangeReal(key, netip.MustParseAddrPort(two), 1); err != nil {
			t.Fatal(err)
		}
		if diff, err := b.plane.Verify(context.Background(), b.r); err != nil || diff.Count != 1 || !strings.Contains(diff.Examples[0], "real server 10.180.0.2:80 too many (Service ns/svc0001)") {
			t.Errorf("%+v, %v", diff, err)
		}
		b.r.Full = true
		b.apply()
		b.holds(key, "rr "+one+" "+two+"=0")
	})
}

func TestOnlyTCPDrains(t *testing.T) {
	for _, protocol := range []v1alpha1.Protocol{v1alpha1.ProtocolUDP, v1alpha1.ProtocolSCTP} {
		b := newBench(t)
		s := service(1, "10.180.0.1:80", "10.180.0.2:80")
		s.Ports[0].Protocol = protocol
		b.set(s)
		b.apply()
		key := ipvs.Key{Addr: ip("10.0.0.1"), Port: 80, Protocol: protocol}
		b.connections(key, "10.180.0.2:80", 1, 1)
		b.set(with(s, "10.180.0.1:80"))
		b.apply()
		if b.holds(key, "rr 10.180.0.1:80"); b.kernel.Messages() != 1 {
			t.Errorf("%v", b.kernel.Calls())
		}
	}
}

// TestFollowWakesForDrains: Follow asks for an Apply when it is time to look.
func TestFollowWakesForDrains(t *testing.T) {
	b := newBench(t)
	b.set(service(1, "10.180.0.1:80", "10.180.0.2:80"))
	b.apply()
	ctx, cancel := context.WithCancel(context.Background())
	changed, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		b.plane.Follow(ctx, func() {
			select {
			case changed <- struct{}{}:
			case <-ctx.Done():
			}
		})
	}()
	defer func() { cancel(); <-done }()
	b.connections(tcp("10.0.0.1", 80), "10.180.0.2:80", 1, 0)
	b.set(service(1, "10.180.0.1:80"))
	b.apply()
	for range 3 {
		b.clock.Step(10 * time.Second)
		select {
		case <-changed:
		case <-time.After(10 * time.Second):
			t.Fatal("not told")
		}
		b.recheck()
	}
	b.connections(tcp("10.0.0.1", 80), "10.180.0.2:80", 0, 0)
	b.clock.Step(10 * time.Second)
	b.recheck()
	b.holds(tcp("10.0.0.1", 80), "rr 10.180.0.1:80")
}

// TestRetire: after another mode has been applied, what held connections need
// stays until they have ended.
func TestRetire(t *testing.T) {
	start := func(t *testing.T) *bench {
		b := newBench(t)
		s := service(1, "10.180.0.1:80")
		s.Ports[0].NodePort = 30001
		b.set(s, service(2, "10.180.0.2:80"), service(3, "10.180.0.3:80"))
		b.apply()
		b.connections(tcp("192.168.0.2", 30001), "10.180.0.1:80", 1, 0)
		b.connections(tcp("10.0.0.3", 80), "10.180.0.3:80", 0, 2)
		if err := b.kernel.AddServer(tcp("5.5.5.5", 80), ipvs.Server{Scheduler: "rr"}); err != nil {
			t.Fatal(err)
		}
		return b
	}
	retire := func(b *bench) string {
		b.Helper()
		pending, err := b.plane.Retire(context.Background(), b.r)
		if err != nil {
			b.Fatal(err)
		}
		return pending
	}
	empty := func(b *bench) {
		b.Helper()
		if got, want := b.state(), "5.5.5.5:80/TCP: rr\nbound false []"; got != want {
			b.Errorf("%s\nwant\n%s", got, want)
		}
		if sets, _ := b.kernel.Sets(allSets()); len(sets) > 0 || len(b.rules.held.Chains) > 0 {
			b.Errorf("%v, %v", sets, b.rules.held)
		}
	}
	for name, again := range map[string]func(*bench){
		"same agent":    func(*bench) {},
		"after restart": func(b *bench) { b.restart() },
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			again(b)
			if pending := retire(b); !strings.Contains(pending, "3 connections by 2 virtual servers, such as 10.0.0.3:80/TCP") {
				t.Error(pending)
			}
			if got := strings.Join(b.kernel.Keys(), " "); got != "10.0.0.3,tcp:80 192.168.0.2,tcp:30001 5.5.5.5,tcp:80" {
				t.Error(got)
			}
			if bound, _, _ := b.kernel.Bound(); len(bound) != 1 || bound[0] != ip("10.0.0.3") || len(b.rules.held.Chains) == 0 {
				t.Errorf("%v", bound)
			}
			again(b)
			b.connections(tcp("10.0.0.3", 80), "10.180.0.3:80", 0, 0)
			if pending := retire(b); !strings.Contains(pending, "1 connections by 1 virtual servers") {
				t.Error(pending)
			}
			b.clock.Step(14 * time.Minute)
			if retire(b) == "" {
				t.Error("nothing pending")
			}
			again(b)
			b.clock.Step(time.Minute)
			if pending := retire(b); name == "same agent" && pending != "" || name == "after restart" && pending == "" {
				t.Errorf("%q", pending)
			}
			b.connections2(tcp("192.168.0.2", 30001), "10.180.0.1:80")
			if pending := retire(b); pending != "" {
				t.Error(pending)
			}
			empty(b)
			b.kernel.Reset()
			if retire(b); len(b.kernel.Writes()) > 0 || b.kernel.Messages() > 5 {
				t.Errorf("%v", b.kernel.Calls())
			}
		})
	}
	t.Run("and back", func(t *testing.T) {
		b := start(t)
		want := b.state()
		retire(b)
		b.r.Full = true
		b.apply()
		if got := b.state(); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
		b.verified()
	})
	t.Run("no IPVS", func(t *testing.T) {
		b := newBench(t)
		b.kernel.Lacks = dataplane.ErrUnsupported
		if pending := retire(b); pending != "" {
			t.Error(pending)
		}
	})
}

// connections2 lets connections end where the real server is still there.
func (b *bench) connections2(key ipvs.Key, real string) {
	_ = b.kernel.SetConnections(key, netip.MustParseAddrPort(real), 0, 0)
}

func TestCleanup(t *testing.T) {
	b := newBench(t)
	s := service(1, "10.180.0.1:80")
	s.Ports[0].NodePort, s.HealthCheckNodePort = 30001, 30002
	b.set(s, service(2, "10.180.0.2:80"))
	b.apply()
	if err := b.kernel.AddServer(tcp("5.5.5.5", 80), ipvs.Server{Scheduler: "rr"}); err != nil {
		t.Fatal(err)
	}
	b.restart()
	for range 2 {
		if err := b.plane.Cleanup(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := b.state(); got != "5.5.5.5:80/TCP: rr\nbound false []" {
			t.Error(got)
		}
		if sets, _ := b.kernel.Sets(allSets()); len(sets) > 0 {
			t.Errorf("%v", sets)
		}
	}
}

// TestAudit beside a proxy of the same mode.
func TestAudit(t *testing.T) {
	b := newBench(t)
	b.set(service(1, "10.180.0.1:80", "10.180.0.2:80"), service(2, "10.180.0.3:80"))
	b.apply()
	if err := b.kernel.DeleteSets([]ipvs.SetName{"NODEPROXY-NO-LOCAL"}); err != nil {
		t.Fatal(err)
	}
	key := tcp("10.0.0.1", 80)
	if err := b.kernel.AddReal(key, netip.MustParseAddrPort("10.180.0.9:80"), 0); err != nil {
		t.Fatal(err)
	}
	b.connections(key, "10.180.0.9:80", 1, 0)
	b.restart()
	b.kernel.Reset()
	audit := func(want ...string) []dataplane.Finding {
		t.Helper()
		out, err := b.plane.Audit(context.Background(), b.r)
		if err != nil || len(out.Findings) != len(want) {
			t.Fatalf("%v, %+v", err, out)
		}
		for i, f := range out.Findings {
			if !strings.Contains(f.Text, want[i]) {
				t.Errorf("%+v, want %q", f, want[i])
			}
		}
		return out.Findings
	}
	audit()
	b.wants()
	if err := b.kernel.ChangeReal(key, netip.MustParseAddrPort("10.180.0.2:80"), 0); err != nil {
		t.Fatal(err)
	}
	if err := b.kernel.AddServer(tcp("10.0.0.1", 99), ipvs.Server{Scheduler: "rr"}); err != nil {
		t.Fatal(err)
	}
	want := []string{"real server 10.180.0.2:80 of virtual server 10.0.0.1:80/TCP has weight 0, not 1 (Service ns/svc0001)", "virtual server 10.0.0.1:99/TCP belongs to no Service"}
	first := audit(want...)
	second := audit(want...)
	for i := range first {
		if first[i].Key != second[i].Key || first[i].Key == "" {
			t.Errorf("%q, then %q", first[i].Key, second[i].Key)
		}
	}
	local := service(2)
	local.InternalLocal, local.Ports[0].Available = true, true
	b.set(local)
	b.r.Prune = false
	b.plane.Audit(context.Background(), b.r)
	texts := func() string {
		out, err := b.plane.Audit(context.Background(), b.r)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, f := range out.Findings {
			all = append(all, f.Text)
		}
		return strings.Join(all, "\n")
	}()
	for _, want := range []string{"virtual server 10.0.0.2:80/TCP has the real server 10.180.0.3:80 too many (Service ns/svc0002)", "ipset NODEPROXY-NO-LOCAL is missing"} {
		if !strings.Contains(texts, want) {
			t.Errorf("%s\nlacks %s", texts, want)
		}
	}
}

// TestWatch: what others take away is noticed, what we do is not.
func TestWatch(t *testing.T) {
	b := newBench(t)
	b.set(service(1, "10.180.0.1:80"), service(2, "10.180.0.2:80"))
	b.apply()
	ctx, cancel := context.WithCancel(context.Background())
	changes, done := make(chan dataplane.Change, 100), make(chan struct{})
	go func() {
		defer close(done)
		b.plane.Watch(ctx, func(c dataplane.Change) { changes <- c })
	}()
	defer func() { cancel(); <-done }()
	told := func(what string) {
		t.Helper()
		select {
		case c := <-changes:
			if !c.Sure {
				t.Errorf("%s: not sure", what)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: not noticed", what)
		}
	}
	b.remove(service(2))
	b.apply()
	for deadline := time.Now().Add(10 * time.Second); len(changes) == 0 && time.Now().Before(deadline); {
		if err := b.kernel.Unbind(ip("10.0.0.1")); err != nil { // until it is watched
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
		b.r.Full = true
		b.apply()
	}
	told("address")
	if err := b.kernel.DeleteServer(tcp("10.0.0.1", 80)); err != nil {
		t.Fatal(err)
	}
	for !b.clock.HasWaiters() {
		time.Sleep(time.Millisecond)
	}
	b.clock.Step(5 * time.Second)
	told("server")
	b.r.Full = true
	b.apply()
	if err := b.kernel.DeleteDevice(); err != nil {
		t.Fatal(err)
	}
	told("device")
	if len(changes) > 1 { // of the address, too
		t.Errorf("%d more", len(changes))
	}
}

var _ = iptablestest.Packet{}
