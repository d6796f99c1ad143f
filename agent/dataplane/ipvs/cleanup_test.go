package ipvs_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs/ipvsmodel"
)

// TestCleanupMode: after another mode has been applied, what connections need stays until they end.
func TestCleanupMode(t *testing.T) {
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
	clean := func(b *bench) string {
		b.Helper()
		pending, err := b.plane.CleanupMode(context.Background(), b.r)
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
		if sets, _ := b.kernel.Sets(allSets()); len(sets)+len(b.kernel.Yielded())+len(b.rules.held.Chains) > 0 {
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
			if pending := clean(b); !strings.Contains(pending, "3 connections of 2 virtual servers, such as 10.0.0.3:80/TCP") {
				t.Error(pending)
			}
			if got := strings.Join(b.kernel.Keys(), " "); got != "10.0.0.3,tcp:80 192.168.0.2,tcp:30001 5.5.5.5,tcp:80" {
				t.Error(got)
			}
			bound, _, _ := b.kernel.Bound()
			if yielded := b.kernel.Yielded(); len(bound) > 0 || len(yielded) != 1 || yielded[0] != ip("10.0.0.3") || len(b.rules.held.Chains) == 0 {
				t.Errorf("bound are %v, yielded %v", bound, yielded)
			}
			again(b)
			b.connections(tcp("10.0.0.3", 80), "10.180.0.3:80", 0, 0)
			if pending := clean(b); !strings.Contains(pending, "1 connection of 1 virtual server,") {
				t.Error(pending)
			}
			b.clock.Step(14 * time.Minute)
			if clean(b) == "" {
				t.Error("nothing pending")
			}
			again(b)
			b.clock.Step(time.Minute)
			if pending := clean(b); name == "same agent" && pending != "" || name == "after restart" && pending == "" {
				t.Errorf("%q", pending)
			}
			if b.kernel.Server(tcp("192.168.0.2", 30001)) != "" {
				b.connections(tcp("192.168.0.2", 30001), "10.180.0.1:80", 0, 0)
			}
			if pending := clean(b); pending != "" {
				t.Error(pending)
			}
			empty(b)
			b.kernel.Reset()
			if clean(b); len(b.kernel.Writes()) > 0 || b.kernel.Messages() > 5 {
				t.Errorf("%v", b.kernel.Calls())
			}
			again(b)
			b.clock.Step(time.Hour)
			b.leave(tcp("192.168.0.2", 30001), "10.180.0.1:80")
			if pending := clean(b); !strings.Contains(pending, "1 connection of 1 virtual server,") {
				t.Errorf("of another proxy, later: %q", pending)
			}
		})
	}
	t.Run("and back", func(t *testing.T) {
		b := start(t)
		want := b.state()
		clean(b)
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
		if pending := clean(b); pending != "" {
			t.Error(pending)
		}
	})
	t.Run("it cannot be determined", func(t *testing.T) {
		b := start(t)
		b.kernel.Lacks = errBoom
		if pending, err := b.plane.CleanupMode(context.Background(), b.r); !errors.Is(err, errBoom) {
			t.Errorf("%q, %v", pending, err)
		}
	})
}

// TestCleanupWithout: what the node lacks is only ignored if it can have nothing of the mode.
func TestCleanupWithout(t *testing.T) {
	lacks := func(what string) error { return fmt.Errorf("%w: no %s", dataplane.ErrUnsupported, what) }
	for name, tt := range map[string]struct {
		open  error
		fresh bool // the mode has never run
		want  string
	}{
		"no IPVS":                 {&ipvs.NoIPVSError{Err: lacks("IPVS")}, true, ""},
		"no IPVS any more":        {&ipvs.NoIPVSError{Err: lacks("IPVS")}, false, ""},
		"no ipset":                {lacks("ipset"), true, ""},
		"no ipset, with a device": {lacks("ipset"), false, "no ipset"},
		"a passing failure":       {errBoom, true, "boom"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			if !tt.fresh {
				b.set(service(1, "10.180.0.1:80"))
				b.apply()
			}
			b.kernel.Reject = func(c ipvsmodel.Call) error {
				if c.Method == "Open" {
					return tt.open
				}
				return nil
			}
			b.restart()
			err := b.plane.Cleanup(context.Background(), dataplane.CleanupOptions{})
			if tt.want == "" && err != nil || tt.want != "" && !strings.Contains(fmt.Sprint(err), tt.want) || errors.Is(err, dataplane.ErrUnsupported) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if len(b.rules.held.Chains) > 0 {
				t.Error("rules are left")
			}
			if _, exists, _ := b.kernel.Bound(); exists && tt.want == "" {
				t.Error("the device is left")
			}
		})
	}
}

// TestExcludedStays: CleanupMode and Cleanup leave virtual servers in excluded ranges, ours or not.
func TestExcludedStays(t *testing.T) {
	exclude := func(b *bench) { b.r.Node.Settings.IPVS.ExcludeCIDRs = []string{"10.0.0.0/30"} }
	cleanMode := func(b *bench) error {
		_, err := b.plane.CleanupMode(context.Background(), b.r)
		return err
	}
	clean := func(b *bench) error { return b.plane.Cleanup(context.Background(), dataplane.CleanupOptions{}) }
	for name, end := range map[string]func(*bench) error{
		"cleaned up": cleanMode,
		"cleaned up after restart": func(b *bench) error {
			b.restart()
			return cleanMode(b)
		},
		"cleanup of all": clean,
		"cleanup of all after restart": func(b *bench) error {
			b.restart()
			ranges, err := dataplane.ParsePreserved(b.r.Node.Settings.IPVS.ExcludeCIDRs)
			return errors.Join(err, b.plane.Cleanup(context.Background(), dataplane.CleanupOptions{PreservedRanges: ranges}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			exclude(b)
			b.set(service(1, "10.180.0.1:80"), service(4, "10.180.0.4:80"))
			b.apply()
			unmanaged := tcp("10.0.0.1", 443) // on an address of ours
			if err := b.kernel.AddServer(unmanaged, ipvs.Server{Scheduler: "lc"}); err != nil {
				t.Fatal(err)
			}
			if err := end(b); err != nil {
				t.Fatal(err)
			}
			if got, want := b.state(), "10.0.0.1:443/TCP: lc\n10.0.0.1:80/TCP: rr 10.180.0.1:80\nbound false []"; got != want {
				t.Errorf("%s\nwant\n%s", got, want)
			}
		})
	}
	t.Run("and back", func(t *testing.T) {
		b := newBench(t)
		exclude(b)
		b.set(service(1, "10.180.0.1:80"))
		b.apply()
		want := b.state()
		if err := cleanMode(b); err != nil {
			t.Fatal(err)
		}
		b.r.Full = true
		if result := b.apply(); len(result.Rejected) > 0 || b.state() != want {
			t.Errorf("%v, %s\nwant\n%s", result.Rejected, b.state(), want)
		}
	})
	t.Run("a range that cannot be read", func(t *testing.T) {
		b := newBench(t)
		b.set(service(1, "10.180.0.1:80"))
		b.apply()
		b.r.Node.Settings.IPVS.ExcludeCIDRs = []string{"10.0.0.0"}
		if err := cleanMode(b); err == nil || b.kernel.Server(tcp("10.0.0.1", 80)) == "" {
			t.Errorf("%v, %s", err, b.state())
		}
	})
}

// leave adds a virtual server for a NodePort with a connection, like another proxy.
func (b *bench) leave(key ipvs.Key, real string) {
	b.Helper()
	sets := ipvs.SetChange{Name: "KUBE-NODE-PORT-TCP", Type: ipvs.BitmapPort, Create: true, Add: []ipvs.Entry{ipvs.Entry(strconv.Itoa(int(key.Port)))}}
	err := errors.Join(b.kernel.ChangeSets([]ipvs.SetChange{sets}), b.kernel.AddServer(key, ipvs.Server{Scheduler: "rr"}), b.kernel.AddReal(key, netip.MustParseAddrPort(real), 1))
	if err != nil {
		b.Fatal(err)
	}
	b.connections(key, real, 1, 0)
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
		if err := b.plane.Cleanup(context.Background(), dataplane.CleanupOptions{}); err != nil {
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
