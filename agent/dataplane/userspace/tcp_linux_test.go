package userspace

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestConnections(t *testing.T) {
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, names(t, 3)...))
	if diff := cmp.Diff(map[string]int{"1": 10, "2": 10, "3": 10}, r.shares(30)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	until(t, "connections stay open", func() bool { return r.Open() == 0 })
	s := r.statistics()
	if s.Connections != 30 || s.Retries != 0 || s.Rejected != 0 || len(s.Failures) != 0 {
		t.Errorf("%+v", s)
	}
}

// Only ports with connections have metrics, and only as long as they exist.
func TestMetricsOfUsedPorts(t *testing.T) {
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, names(t, 1)...))
	count := func() int {
		metrics := make(chan prometheus.Metric, 100)
		r.Collector().Collect(metrics)
		return len(metrics)
	}
	unused := count()
	r.shares(1)
	if used := count(); unused != 1 || used < 10 {
		t.Errorf("%d metrics without a connection, %d with one", unused, used)
	}
	if _, err := r.Serve(dataplane.IPv4, named("web"), nil); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != unused {
		t.Errorf("%d metrics after the end of the Service", n)
	}
}

// One of three endpoints does not serve. No client notices.
func TestFailingEndpoint(t *testing.T) {
	for name, failing := range map[string]func(*testing.T) netip.AddrPort{"rejecting": rejecting, "resetting": resetting, "silent": silent} {
		t.Run(name, func(t *testing.T) {
			bad := failing(t)
			r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, append(names(t, 2), bad)...))
			r.SetConnectTimeout(20 * time.Millisecond)
			got := r.shares(100)
			if got["1"]+got["2"] != 100 || got["1"] < 30 || got["2"] < 30 {
				t.Errorf("%v", got)
			}
			s := r.statistics()
			// It rests for a second at a time, so that few connections try it.
			if s.Retries == 0 || s.Retries > 20 || s.Failures[bad.String()] != s.Retries || s.Rejected != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The proxy reports an endpoint that fails, with what that has cost.
func TestFailingIsReported(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Now())
	bad, good := rejecting(t), naming(t, "1")
	r := newRig(t, Options{Clock: clk}, serving(v1alpha1.ProtocolTCP, bad, good))
	r.shares(3)
	if got := r.Failing(); got != nil {
		t.Errorf("at once: %+v", got)
	}
	since := clk.Now()
	clk.SetTime(since.Add(failingAfter))
	r.shares(3)
	want := &v1alpha1.UserspaceReport{Failing: 1, Endpoints: []v1alpha1.FailingEndpoint{{
		Service: "default/web", Port: "80/TCP", Endpoint: bad.String(), Reason: v1alpha1.EndpointRejects,
		Since: metav1.NewTime(since.UTC().Truncate(time.Second)), Failed: 2, Connections: 6,
	}}}
	if diff := cmp.Diff(want, r.Failing()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.serve(serving(v1alpha1.ProtocolTCP, good))
	if got := r.Failing(); got != nil {
		t.Errorf("after its removal: %+v", got)
	}
}

func TestNoEndpointAccepts(t *testing.T) {
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, rejecting(t), rejecting(t)))
	if name, err := r.ask(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%q, %v", name, err)
	}
	if s := r.statistics(); s.Rejected != 1 || s.Retries != 1 {
		t.Errorf("%+v", s)
	}
	r.serve(serving(v1alpha1.ProtocolTCP, names(t, 1)...))
	if name, err := r.ask(); name != "1" || err != nil {
		t.Errorf("after a change: %q, %v", name, err)
	}
}

// The only endpoint is slow to accept: the kernel repeats a lost packet later than the first attempt ends.
func TestSlowEndpoint(t *testing.T) {
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, silent(t)))
	r.SetConnectTimeout(5 * time.Millisecond)
	if name, err := r.ask(); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("%q, %v", name, err)
	}
	if s := r.statistics(); s.Retries != maxAttempts-1 {
		t.Errorf("%d retries, want %d", s.Retries, maxAttempts-1)
	}
}

func TestAttemptTime(t *testing.T) {
	var got []time.Duration
	for attempt := range maxAttempts {
		got = append(got, attemptTime(250*time.Millisecond, attempt+1))
	}
	ms := time.Millisecond
	if diff := cmp.Diff([]time.Duration{250 * ms, 500 * ms, 1000 * ms, 2000 * ms}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := attemptTime(3*time.Second, 4); got != 3*time.Second {
		t.Errorf("with a setting of 3 s: %s", got)
	}
}

// digesting is a server that reads everything and answers with its digest, which it can only if it learns
// that the client has sent everything.
func digesting(t *testing.T) netip.AddrPort {
	t.Helper()
	return server(t, func(c *net.TCPConn) {
		h := sha256.New()
		if _, err := io.Copy(h, c); err == nil {
			_, _ = c.Write(h.Sum(nil))
		}
	})
}

func TestHalfClosed(t *testing.T) {
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, digesting(t)))
	var group sync.WaitGroup
	for size := range 8 {
		group.Go(func() {
			sent := randomBytes(1 << (3 * size))
			c := r.connect()
			defer c.Close()
			_, err := c.Write(sent)
			got, err2 := []byte{}, c.CloseWrite()
			if err == nil && err2 == nil {
				got, err = io.ReadAll(c)
			}
			if want := sha256.Sum256(sent); !bytes.Equal(got, want[:]) {
				t.Errorf("%d bytes: %x, %v, %v", len(sent), got, err, err2)
			}
		})
	}
	group.Wait()
	until(t, "connections stay open", func() bool { return r.Open() == 0 })
}

// Both directions are full at the same time, and the client reads slowly initially.
func TestBackPressure(t *testing.T) {
	const size = 32 << 20
	sent := randomBytes(size)
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, server(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })))
	c := r.connect()
	defer c.Close()
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := c.Write(sent); err != nil {
			t.Error(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
	})
	until(t, "nothing was sent", func() bool { return r.bytes() > 1<<20 })
	got, err := io.ReadAll(c)
	group.Wait()
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came back of %d: %v", len(got), size, err)
	}
}

// bytes is how many were sent to endpoints.
func (r *rig) bytes() (sum int64) {
	for _, p := range r.table.all() {
		sum += p.toEndpoint.Load()
	}
	return sum
}

func TestResetsPassOn(t *testing.T) {
	ends := make(chan error, 1)
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, server(t, func(c *net.TCPConn) {
		b := make([]byte, 1)
		if _, err := io.ReadFull(c, b); err != nil {
			ends <- err
			return
		}
		if b[0] == 'r' {
			_ = c.SetLinger(0)
			return
		}
		_, err := io.ReadFull(c, b)
		ends <- err
	})))
	c := r.connect()
	defer c.Close()
	if _, err := c.Write([]byte("r")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(c); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the endpoint has reset the connection, the client sees: %v", err)
	}
	c = r.connect()
	if _, err := c.Write([]byte("c")); err != nil {
		t.Fatal(err)
	}
	until(t, "nothing was sent", func() bool { return r.bytes() == 2 })
	if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
		t.Fatal(err)
	}
	if err := <-ends; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the client has reset the connection, the endpoint sees: %v", err)
	}
	if s := r.statistics(); s.Retries != 0 {
		t.Errorf("bytes were sent twice: %+v", s)
	}
}

func TestLimits(t *testing.T) {
	hangs := server(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	for name, limits := range map[string]Limits{"port": {Connections: 100, PerPort: 2}, "node": {Connections: 2, PerPort: 100}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Options{Limits: limits}, serving(v1alpha1.ProtocolTCP, hangs))
			var held []*net.TCPConn
			for range 2 {
				held = append(held, r.connect())
			}
			until(t, "they are not accepted", func() bool { return r.statistics().Connections == 2 })
			if _, err := r.ask(); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("beyond the limit: %v", err)
			}
			if s := r.statistics(); s.Open != 2 || s.Rejected != 1 {
				t.Errorf("%+v", s)
			}
			for _, c := range held {
				_ = c.Close()
			}
			until(t, "they stay open", func() bool { return r.Open() == 0 })
		})
	}
}

func TestNotRedirected(t *testing.T) {
	r := newRig(t, Options{Workers: 1}, serving(v1alpha1.ProtocolTCP, names(t, 1)...))
	listener := r.served.Ports[0].Cluster[0]
	for _, to := range []netip.AddrPort{listener, netip.AddrPortFrom(otherIP, 80)} {
		before := r.notRedirected.Load()
		r.within(func(*worker) { r.original = func(int, netip.Addr) (netip.AddrPort, error) { return to, nil } })
		if name, err := r.ask(); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("to %s: %q, %v", to, name, err)
		}
		if got := r.notRedirected.Load() - before; got != 1 {
			t.Errorf("to %s: %d counted", to, got)
		}
	}
}

// An endpoint that is an address of a Service of the proxy would have it connect to itself.
func TestLoop(t *testing.T) {
	s := serving(v1alpha1.ProtocolTCP, append(names(t, 1), netip.AddrPortFrom(clusterIP, 80), netip.AddrPortFrom(loopback, 30080))...)
	s.Ports[0].NodePort = 30080
	r := newRig(t, Options{}, s)
	if diff := cmp.Diff(map[string]int{"1": 6}, r.shares(6)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPolicies(t *testing.T) {
	both := names(t, 2)
	s := serving(v1alpha1.ProtocolTCP, both...)
	s.Ports[0].Local = both[1:]
	r := newRig(t, Options{}, s)
	r.served.Ports[0].Cluster = r.served.Ports[0].Local
	if diff := cmp.Diff(map[string]int{"2": 4}, r.shares(4)); diff != "" {
		t.Errorf("policy Local (-want +got):\n%s", diff)
	}
	r.serve(serving(v1alpha1.ProtocolTCP, both...))
	if got := r.served.Ports[0]; got.Local != nil || len(got.Cluster) != 1 || len(s.Ports[0].Cluster) != 2 {
		t.Errorf("%+v, from %+v", got, s.Ports[0])
	}
}

// An endpoint that is removed keeps its connections.
func TestDraining(t *testing.T) {
	echo := server(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	r := newRig(t, Options{}, serving(v1alpha1.ProtocolTCP, echo))
	c := r.connect()
	defer c.Close()
	echoes := func(text string) {
		t.Helper()
		b := make([]byte, len(text))
		_, err := io.WriteString(c, text)
		if _, err2 := io.ReadFull(c, b); err != nil || err2 != nil || string(b) != text {
			t.Errorf("%q: %q, %v, %v", text, b, err, err2)
		}
	}
	echoes("before")
	r.serve(serving(v1alpha1.ProtocolTCP, names(t, 1)...))
	r.Settle(dataplane.IPv4, nil)
	echoes("removed")
	if _, err := r.Serve(dataplane.IPv4, named("web"), nil); err != nil {
		t.Fatal(err)
	}
	r.Settle(dataplane.IPv4, nil)
	echoes("without the Service")
}

func randomBytes(n int) []byte {
	out := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(out)
	return out
}
