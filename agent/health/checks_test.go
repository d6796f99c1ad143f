package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr/funcr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

var cart = dataplane.ServiceName{Namespace: "shop", Name: "cart"}

// checksRig runs Checks over the real network and a clock that the test moves.
type checksRig struct {
	*Checks
	t         *testing.T
	clock     *clocktesting.FakeClock
	log       *lines
	unhealthy atomic.Bool
	changes   atomic.Int32
	stop      func()
	owned     context.Context

	mu        sync.Mutex
	addresses []netip.Addr
	failure   error
}

func runChecks(t *testing.T, network string) *checksRig {
	t.Helper()
	r := &checksRig{t: t, clock: clocktesting.NewFakeClock(now), log: &lines{}}
	r.Checks = NewChecks(ChecksOptions{
		Network: network, Clock: r.clock, Log: funcr.New(r.log.add, funcr.Options{}),
		Healthy: func() bool { return !r.unhealthy.Load() }, Changed: func() { r.changes.Add(1) },
	})
	r.run()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *checksRig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	r.owned = ctx
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	r.stop = func() { cancel(); <-done }
}

// on sets what to serve on loopback addresses, as settings that name ranges do.
func (r *checksRig) on(desired map[dataplane.ServiceName]Check, addresses ...string) {
	r.move(addresses...)
	r.Set(r.owned, desired, func() ([]netip.Addr, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.addresses, r.failure
	})
}

func (r *checksRig) move(addresses ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses = nil
	for _, a := range addresses {
		r.addresses = append(r.addresses, netip.MustParseAddr(a))
	}
}

func (r *checksRig) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
}

// pause lets the time pass after which ports are looked at again.
func (r *checksRig) pause() {
	r.t.Helper()
	await(r.t, "a pause", r.clock.HasWaiters)
	r.clock.Step(bindPause)
}

// reply is what a load balancer sees.
type reply struct {
	code   int
	weight string
	body   string
}

func probe(host string, port uint16) (reply, error) {
	response, err := http.Get("http://" + net.JoinHostPort(host, fmt.Sprint(port)) + "/anything")
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = response.Body.Close() }() // only read from
	body, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(body)}, err
}

func (r *checksRig) expect(host string, port uint16, code int, weight string) {
	r.t.Helper()
	var got reply
	await(r.t, fmt.Sprintf("%d with weight %s from %s port %d", code, weight, host, port), func() bool {
		var err error
		got, err = probe(host, port)
		return err == nil && got.code == code && got.weight == weight
	})
}

func (r *checksRig) expectClosed(host string, port uint16) {
	r.t.Helper()
	await(r.t, fmt.Sprintf("no listener on %s port %d", host, port), func() bool {
		_, err := probe(host, port)
		return err != nil
	})
}

// portsFree returns ports that are free on all addresses of the family.
func portsFree(t *testing.T, network string, count int) []uint16 {
	t.Helper()
	var ports []uint16
	var open []net.Listener
	for range count {
		l, err := net.Listen(network, ":0")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, l)
		ports = append(ports, uint16(l.Addr().(*net.TCPAddr).Port))
	}
	for _, l := range open { // only now, so that no port comes twice
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return ports
}

func TestCheckAnswers(t *testing.T) {
	for network, host := range map[string]string{"tcp4": "127.0.0.1", "tcp6": "::1"} {
		t.Run(network, func(t *testing.T) {
			r := runChecks(t, network)
			port := portsFree(t, network, 1)[0]
			r.Set(r.owned, map[dataplane.ServiceName]Check{cart: {Port: port}}, nil)
			r.expect(host, port, 503, "0") // open without any endpoint
			r.Set(r.owned, map[dataplane.ServiceName]Check{cart: {Port: port, LocalEndpoints: 2}}, nil)
			got, err := probe(host, port) // at once
			if err != nil || got.code != 200 || got.weight != "2" {
				t.Errorf("two endpoints: %+v, %v", got, err)
			}
			want := "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"cart\"\n\t},\n\t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
			if got.body != want {
				t.Errorf("body %q, want %q", got.body, want)
			}
			r.unhealthy.Store(true) // row 146
			got, _ = probe(host, port)
			if got.code != 503 || got.weight != "2" || got.body != strings.Replace(want, "true", "false", 1) {
				t.Errorf("unhealthy: %+v", got)
			}
		})
	}
}

func TestCheckTakesAnyMethod(t *testing.T) {
	r := runChecks(t, "tcp4")
	port := portsFree(t, "tcp4", 1)[0]
	r.Set(r.owned, map[dataplane.ServiceName]Check{cart: {Port: port, LocalEndpoints: 1}}, nil)
	r.expect("127.0.0.1", port, 200, "1")
	for _, method := range []string{http.MethodHead, http.MethodPost, http.MethodDelete, "PROBE"} {
		request, err := http.NewRequest(method, fmt.Sprintf("http://127.0.0.1:%d/a/b?c=d", port), nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close() // not read
		if response.StatusCode != 200 || response.Header.Get("Content-Type") != "application/json" || response.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d, %v", method, response.StatusCode, response.Header)
		}
	}
}

func TestCheckFamiliesCountApart(t *testing.T) {
	four, six := runChecks(t, "tcp4"), runChecks(t, "tcp6")
	port := portsFree(t, "tcp", 1)[0]
	four.Set(four.owned, map[dataplane.ServiceName]Check{cart: {Port: port, LocalEndpoints: 2}}, nil)
	six.Set(six.owned, map[dataplane.ServiceName]Check{cart: {Port: port}}, nil)
	four.expect("127.0.0.1", port, 200, "2")
	six.expect("::1", port, 503, "0")
}

func TestCheckPortChanges(t *testing.T) { // row 148
	r := runChecks(t, "tcp4")
	ports := portsFree(t, "tcp4", 2)
	pay := dataplane.ServiceName{Namespace: "shop", Name: "pay"}
	r.Set(r.owned, map[dataplane.ServiceName]Check{cart: {Port: ports[0], LocalEndpoints: 1}}, nil)
	r.expect("127.0.0.1", ports[0], 200, "1")
	r.Set(r.owned, map[dataplane.ServiceName]Check{cart: {Port: ports[1], LocalEndpoints: 1}, pay: {Port: ports[0], LocalEndpoints: 3}}, nil)
	r.expect("127.0.0.1", ports[1], 200, "1")
	r.expect("127.0.0.1", ports[0], 200, "3") // of another Service now
	r.Set(r.owned, map[dataplane.ServiceName]Check{pay: {Port: ports[0], LocalEndpoints: 3}}, nil)
	r.expectClosed("127.0.0.1", ports[1])
	r.expect("127.0.0.1", ports[0], 200, "3")
	r.Set(r.owned, nil, nil)
	r.expectClosed("127.0.0.1", ports[0])
	if problem := r.Problems(); len(problem) != 0 || r.log.String() != "" {
		t.Errorf("problems %q, log %s", problem, r.log)
	}
}

func TestCheckPortInUse(t *testing.T) {
	r := runChecks(t, "tcp4")
	ports := portsFree(t, "tcp4", 2)
	holder, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close() }() // closed below already, if all goes well
	other := dataplane.ServiceName{Namespace: "shop", Name: "other"}
	r.Set(r.owned, map[dataplane.ServiceName]Check{cart: {Port: ports[0], LocalEndpoints: 1}, other: {Port: ports[1], LocalEndpoints: 1}}, nil)
	r.expect("127.0.0.1", ports[1], 200, "1")
	await(t, "a problem", func() bool { return len(r.Problems()) == 1 })
	if got := r.Problems()[0]; !strings.Contains(got, "Service shop/cart") || !strings.Contains(got, fmt.Sprint(ports[0])) || !strings.Contains(got, "address already in use") {
		t.Errorf("problem %q", got)
	}
	for range 3 {
		r.pause()
	}
	await(t, "another pause", r.clock.HasWaiters)
	if reported := r.log.String(); strings.Count(reported, "Could not open") != 1 || !strings.Contains(reported, "shop/cart") {
		t.Errorf("log: %s", reported)
	}
	if r.changes.Load() != 1 {
		t.Errorf("%d changes, want 1", r.changes.Load())
	}
	if err := holder.Close(); err != nil {
		t.Fatal(err)
	}
	r.pause()
	r.expect("127.0.0.1", ports[0], 200, "1")
	await(t, "no problem", func() bool { return len(r.Problems()) == 0 })
	if !strings.Contains(r.log.String(), "are open now") || r.changes.Load() != 2 {
		t.Errorf("%d changes, log: %s", r.changes.Load(), r.log)
	}
}

func TestCheckFollowsAddresses(t *testing.T) {
	r := runChecks(t, "tcp4")
	port := portsFree(t, "tcp4", 1)[0]
	desired := map[dataplane.ServiceName]Check{cart: {Port: port, LocalEndpoints: 1}}
	r.on(desired, "127.0.0.2")
	r.expect("127.0.0.2", port, 200, "1")
	r.expectClosed("127.0.0.1", port)

	r.move("127.0.0.2", "127.0.0.3")
	r.pause()
	r.expect("127.0.0.3", port, 200, "1")

	r.fail(errors.New("netlink is busy"))
	r.pause()
	await(t, "a problem", func() bool { return len(r.Problems()) == 1 })
	r.expect("127.0.0.3", port, 200, "1") // what is open stays
	r.fail(nil)

	// 192.0.2.1 is an address of no interface: it has gone since it was read.
	r.move("192.0.2.1", "127.0.0.3")
	r.pause()
	r.expectClosed("127.0.0.2", port)
	r.expect("127.0.0.3", port, 200, "1")
	await(t, "the problem of one address", func() bool {
		problems := r.Problems()
		return len(problems) == 1 && strings.Contains(problems[0], "192.0.2.1")
	})

	r.move()
	r.pause()
	r.expectClosed("127.0.0.3", port)
	await(t, "no problem", func() bool { return len(r.Problems()) == 0 })
}

func TestChecksEndAndBeginAgain(t *testing.T) {
	r := runChecks(t, "tcp4")
	port := portsFree(t, "tcp4", 1)[0]
	desired := map[dataplane.ServiceName]Check{cart: {Port: port, LocalEndpoints: 1}}
	r.Set(r.owned, desired, nil)
	r.expect("127.0.0.1", port, 200, "1")
	r.stop()
	r.expectClosed("127.0.0.1", port)
	r.run() // nothing is served until it is known anew
	r.Set(r.owned, desired, nil)
	r.expect("127.0.0.1", port, 200, "1")
}

// What a write that outlives ownership reports must neither open the ports
// beside another proxy nor be served by the next ownership.
func TestChecksAfterOwnershipEnds(t *testing.T) {
	r := runChecks(t, "tcp4")
	port := portsFree(t, "tcp4", 1)[0]
	desired := map[dataplane.ServiceName]Check{cart: {Port: port, LocalEndpoints: 1}}
	r.Set(r.owned, desired, nil)
	r.expect("127.0.0.1", port, 200, "1")
	over := r.owned
	r.stop()
	r.Set(over, desired, nil)
	r.run()
	r.Set(over, desired, nil)
	r.pokeAndWait()
	if _, err := probe("127.0.0.1", port); err == nil {
		t.Error("the port is open by the former ownership")
	}
}

// The end of ownership closes what is open even where something is set at the very
// moment.
func TestChecksAreSetWhileTheyEnd(t *testing.T) {
	var c *Checks
	owned, end := context.WithCancel(t.Context())
	port := portsFree(t, "tcp4", 1)[0]
	set := func() { c.Set(owned, map[dataplane.ServiceName]Check{cart: {Port: port, LocalEndpoints: 1}}, nil) }
	c = NewChecks(ChecksOptions{
		Network: "tcp4", Clock: clocktesting.NewFakeClock(now), Healthy: func() bool { return true },
	})
	done := make(chan struct{})
	go func() { defer close(done); c.Run(owned) }()
	stop := make(chan struct{})
	var setters sync.WaitGroup
	setters.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				set()
			}
		}
	})
	await(t, "an answer", func() bool { _, err := probe("127.0.0.1", port); return err == nil })
	end()
	<-done
	_, err := probe("127.0.0.1", port)
	close(stop)
	setters.Wait()
	if err == nil {
		t.Error("the port is still open")
	}
}

func TestCheckThatDies(t *testing.T) {
	r := runChecks(t, "tcp4")
	port := portsFree(t, "tcp4", 1)[0]
	r.Set(r.owned, map[dataplane.ServiceName]Check{cart: {Port: port, LocalEndpoints: 1}}, nil)
	r.expect("127.0.0.1", port, 200, "1")
	p := place{cart, netip.AddrPortFrom(netip.IPv4Unspecified(), port)}
	r.mu2(func() { r.failed[p] = errors.New("accept: too bad") })
	r.wake.Up()
	await(t, "a problem", func() bool { return strings.Contains(strings.Join(r.Problems(), ""), "too bad") })
	r.expectClosed("127.0.0.1", port) // one that fails at once would fail for ever
	r.pause()
	r.expect("127.0.0.1", port, 200, "1")
	await(t, "no problem", func() bool { return len(r.Problems()) == 0 })
}

// pokeAndWait makes Run reconcile, and waits until it has: one poke is stored, and the next one is
// accepted only after that.
func (r *checksRig) pokeAndWait() {
	for range 3 {
		r.wake <- struct{}{}
	}
}

func (r *checksRig) mu2(f func()) {
	r.Checks.mu.Lock()
	defer r.Checks.mu.Unlock()
	f()
}

func TestSummaryIsBounded(t *testing.T) {
	if got := Summary(nil); got != "" {
		t.Errorf("no problem: %q", got)
	}
	got := Summary([]string{"a", "b", "c", "d", "e"})
	if !strings.Contains(got, "(a, b, c and 2 more)") || !strings.Contains(got, "ss -ltnp") {
		t.Errorf("%q", got)
	}
}

func TestWithheld(t *testing.T) {
	state := State{Now: now, Eligible: true, Withheld: true, Families: map[string]FamilyState{"IPv4": {}}}
	handler := ProxyHandler(func() State { return state }, func(string, int) {})
	if code, _, body := get(t, handler, "/healthz"); code != 503 || fmt.Sprint(body["nodeEligible"]) != "false" {
		t.Errorf("healthz %d, %v", code, body)
	}
	if code, _, _ := get(t, handler, "/livez"); code != 200 {
		t.Errorf("livez %d", code)
	}
	if ServesTraffic(state) {
		t.Error("health checks of Services use outdated rules")
	}
}
