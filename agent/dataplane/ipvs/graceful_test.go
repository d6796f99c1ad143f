package ipvs_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// connections sets the connections of a real server.
func (b *bench) connections(key ipvs.Key, real string, active, inactive int) {
	b.Helper()
	if err := b.kernel.SetConnections(key, netip.MustParseAddrPort(real), active, inactive); err != nil {
		b.Fatal(err)
	}
}

// has compares a virtual server.
func (b *bench) has(key ipvs.Key, want string) {
	b.Helper()
	if got := b.kernel.Server(key); got != want {
		b.Errorf("%s: %q, want %q", key, got, want)
	}
}

// recheck is an Apply after a call of Follow.
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
		b.has(key, "rr "+one+" "+two+"=0")
		b.verified()
		b.connections(key, two, 0, 1)
		b.clock.Step(9 * time.Second)
		if b.recheck(); b.kernel.Messages() != 1 { // the node's addresses
			t.Errorf("looked at before it was time: %v", b.kernel.Calls())
		}
		b.clock.Step(time.Second)
		b.recheck()
		b.has(key, "rr "+one+" "+two+"=0")
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
		b.has(key, "rr "+one+" "+two+"=0")
		b.clock.Step(10 * time.Second)
		b.recheck()
		b.has(key, "rr "+one)
	})
	t.Run("other passes leave it alone", func(t *testing.T) {
		b := start(t, 1, 0)
		b.set(service(1, one, "10.180.0.9:80"))
		b.apply()
		b.r.Full = true
		b.apply()
		b.wants()
		b.has(key, "rr "+one+" "+two+"=0 10.180.0.9:80")
	})
	t.Run("comes back", func(t *testing.T) {
		b := start(t, 1, 0)
		b.set(service(1, one, two))
		b.apply()
		b.wants("ChangeReal 10.0.0.1,tcp:80 " + two + " 1")
		b.clock.Step(time.Hour)
		b.recheck()
		b.has(key, "rr "+one+" "+two)
	})
	t.Run("no connections", func(t *testing.T) {
		b := start(t, 0, 0)
		b.has(key, "rr "+one)
	})
	t.Run("restart", func(t *testing.T) {
		b := start(t, 1, 0)
		b.clock.Step(14 * time.Minute)
		b.restart()
		b.apply()
		b.wants()
		b.has(key, "rr "+one+" "+two+"=0")
		b.clock.Step(14 * time.Minute)
		b.recheck()
		b.has(key, "rr "+one+" "+two+"=0")
		b.clock.Step(2 * time.Minute)
		b.recheck()
		b.has(key, "rr "+one)
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
		b.has(key, "")
		b.clock.Step(time.Minute)
		b.recheck()
		b.wants()
	})
	t.Run("another program gives it weight again", func(t *testing.T) {
		b := start(t, 1, 0)
		if err := b.kernel.ChangeReal(key, netip.MustParseAddrPort(two), 1); err != nil {
			t.Fatal(err)
		}
		if diff, err := b.plane.Verify(context.Background(), b.r, dataplane.VerifyOptions{}); err != nil || diff.Count != 1 || !strings.Contains(diff.Examples[0], "unexpected real server 10.180.0.2:80 (Service ns/svc0001)") {
			t.Errorf("%+v, %v", diff, err)
		}
		b.r.Full = true
		b.apply()
		b.has(key, "rr "+one+" "+two+"=0")
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
		if b.has(key, "rr 10.180.0.1:80"); b.kernel.Messages() != 1 {
			t.Errorf("%v", b.kernel.Calls())
		}
	}
}

// TestFollowWakesForDrains: Follow asks for an Apply when a check is due.
func TestFollowWakesForDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.set(service(1, "10.180.0.1:80", "10.180.0.2:80"))
		b.apply()
		ctx, cancel := context.WithCancel(t.Context())
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
		step := func() {
			synctest.Wait() // until Follow waits for the time that the last Apply has set
			b.clock.Step(10 * time.Second)
		}
		b.connections(tcp("10.0.0.1", 80), "10.180.0.2:80", 1, 0)
		b.set(service(1, "10.180.0.1:80"))
		b.apply()
		for range 3 {
			step()
			select {
			case <-changed:
			case <-time.After(10 * time.Second):
				t.Fatal("not reported")
			}
			b.recheck()
		}
		b.connections(tcp("10.0.0.1", 80), "10.180.0.2:80", 0, 0)
		step()
		b.recheck()
		b.has(tcp("10.0.0.1", 80), "rr 10.180.0.1:80")
	})
}

// TestAuditForgetsDrains: after an audit, draining real servers are left to another proxy.
func TestAuditForgetsDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.set(service(1, "10.180.0.1:80", "10.180.0.2:80"))
		b.apply()
		b.connections(tcp("10.0.0.1", 80), "10.180.0.2:80", 1, 0)
		b.set(service(1, "10.180.0.1:80"))
		b.apply()
		if _, err := b.plane.Verify(t.Context(), b.r, dataplane.VerifyOptions{Audit: true}); err != nil {
			t.Fatal(err)
		}
		b.clock.Step(time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.plane.Follow(ctx, func() { t.Error("woken") })
		}()
		synctest.Wait()
		cancel()
		<-done
	})
}
