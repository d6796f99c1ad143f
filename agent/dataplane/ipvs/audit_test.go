package ipvs_test

import (
	"context"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/dataplanetest/ipvstest"
	"github.com/nodeproxy-io/nodeproxy/agent/dataplane/ipvs"
)

// TestAudit beside a proxy of the same mode.
func TestAudit(t *testing.T) {
	b := newBench(t)
	b.set(service(1, "10.180.0.1:80", "10.180.0.2:80"), service(2, "10.180.0.3:80"))
	b.apply()
	if err := b.kernel.DeleteSets([]ipvs.SetName{"NODEPROXY-NO-LOCAL", "NODEPROXY-NO-LOCAL-ALL"}); err != nil {
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
		out, err := b.plane.Verify(context.Background(), b.r, dataplane.VerifyOptions{Audit: true})
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
	texts := func() string {
		out, err := b.plane.Verify(context.Background(), b.r, dataplane.VerifyOptions{Audit: true})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, f := range out.Findings {
			all = append(all, f.Text)
		}
		return strings.Join(all, "\n")
	}()
	for _, want := range []string{"virtual server 10.0.0.2:80/TCP has the unexpected real server 10.180.0.3:80 (Service ns/svc0002)", "ipset NODEPROXY-NO-LOCAL-ALL is missing"} {
		if !strings.Contains(texts, want) {
			t.Errorf("%s\nlacks %s", texts, want)
		}
	}
	if unused := "ipset NODEPROXY-NO-LOCAL is missing"; strings.Contains(texts, unused) {
		t.Errorf("%s\nhas %s", texts, unused)
	}
}

// TestWatch: it reports what others remove, and not our own changes.
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
	reported := func(what string) {
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
		<-time.After(time.Millisecond)
		b.r.Full = true
		b.apply()
	}
	reported("address")
	if err := b.kernel.DeleteServer(tcp("10.0.0.1", 80)); err != nil {
		t.Fatal(err)
	}
	for !b.clock.HasWaiters() {
		<-time.After(time.Millisecond)
	}
	b.clock.Step(5 * time.Second)
	reported("server")
	b.r.Full = true
	b.apply()
	if err := b.kernel.Unbind(ip("10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	reported("last address")
	if err := b.kernel.DeleteDevice(); err != nil { // only its deletion is left to report
		t.Fatal(err)
	}
	reported("device")
	if len(changes) > 0 {
		t.Errorf("%d more", len(changes))
	}
}

// deaf is a kernel without events.
type deaf struct {
	*ipvstest.Kernel
	asked chan struct{}
}

func (d *deaf) Events(<-chan struct{}) (<-chan ipvs.Event, error) {
	d.asked <- struct{}{}
	return nil, errBoom
}

// TestWatchWithoutEvents: without events Watch reports no change, and subscribes less and less
// often.
func TestWatchWithoutEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		kernel := &deaf{b.kernel, make(chan struct{}, 1000)}
		b.plane = ipvs.New(b.family, ipvs.Options{Kernel: kernel, Rules: b.rules, Clock: clock.RealClock{}})
		b.set(service(1, "10.180.0.1:80"))
		b.apply()
		go b.plane.Watch(t.Context(), func(c dataplane.Change) { t.Errorf("reported %+v", c) })
		<-time.After(10 * time.Minute)
		if n := len(kernel.asked); n < 10 || n > 20 {
			t.Errorf("asked %d times", n)
		}
	})
}

// counting is a kernel whose Count takes time and may be wrong once.
type counting struct {
	*ipvstest.Kernel
	takes  time.Duration
	misses atomic.Bool
	counts atomic.Int32
}

func (c *counting) Count() (int, bool) {
	<-time.After(c.takes)
	c.counts.Add(1)
	n, known := c.Kernel.Count()
	if c.misses.Swap(false) {
		n--
	}
	return n, known
}

// TestWatchCounts: slow counts are rare, and one that has missed a virtual server is repeated
// before a report.
func TestWatchCounts(t *testing.T) {
	for takes, want := range map[time.Duration]int32{time.Millisecond: 118, time.Second: 6} { // in 10 minutes
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			kernel := &counting{Kernel: b.kernel, takes: takes}
			b.plane = ipvs.New(b.family, ipvs.Options{Kernel: kernel, Rules: b.rules, Clock: clock.RealClock{}})
			b.set(service(1, "10.180.0.1:80"))
			b.apply()
			kernel.counts.Store(0)
			go b.plane.Watch(t.Context(), func(c dataplane.Change) { t.Errorf("reported %+v", c) })
			<-time.After(time.Minute)
			kernel.misses.Store(true)
			<-time.After(9 * time.Minute)
			if n := kernel.counts.Load(); n < want || n > want+3 {
				t.Errorf("%v each: counted %d times, want %d", takes, n, want)
			}
		})
	}
}
