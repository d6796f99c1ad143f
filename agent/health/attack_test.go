package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// patience bounds each wait.
const patience = 10 * time.Second

// crowd opens connections that never end their request until the test ends, again
// and again as they are closed. It returns once more than the port takes have come.
func crowd(t *testing.T, address string, most int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	t.Cleanup(func() { cancel(); clients.Wait() })
	const extra = 50
	opened := make(chan struct{}, most+extra)
	for range most + extra {
		clients.Go(func() {
			for first := true; ctx.Err() == nil; first = false {
				if slowConnection(ctx, address); first {
					opened <- struct{}{}
				}
			}
		})
	}
	// Those beyond the bound return as they are closed, or close others.
	for range extra {
		select {
		case <-opened:
		case <-time.After(patience):
			t.Fatal("no connection was closed though there are too many")
		}
	}
}

// slowConnection sends a part of a request and waits until it is closed.
func slowConnection(ctx context.Context, address string) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", address)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // it may be closed already
	defer func() { stop(); _ = conn.Close() }()                 // it may be closed already
	if _, err := io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: "); err == nil {
		_, _ = io.Copy(io.Discard, conn) // until its end, whichever it is
	}
}

// ask asks once by a connection of its own from an address of this machine, as the
// kubelet does.
func ask(from, url string) error {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: patience}).Get(url)
	if err != nil {
		return err
	}
	_ = response.Body.Close() // not read
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return nil
}

// expectAnswer asks until there is an answer. The crowd comes back as its connections end.
func expectAnswer(t *testing.T, from, url string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ask(from, url)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s from %s is never answered within %s: %v", url, from, patience, err)
		}
	}
}

func TestSlowConnectionsBlockNoOthers(t *testing.T) {
	healthy := State{Now: now, Started: now, Eligible: true}
	state := func() State { return healthy }
	crowded := serveState(t, ProxyHandler(state, func(string, int) {}))
	probes := serveState(t, KubeletHandler(func() time.Duration { return 0 }, func() string { return "" }, http.NotFoundHandler()))
	crowd(t, crowded, maxConnections)
	expectAnswer(t, "127.0.0.1", "http://"+probes+"/livez")
	expectAnswer(t, "127.0.0.2", "http://"+crowded+"/healthz") // a load balancer
	expectAnswer(t, "127.0.0.1", "http://"+crowded+"/livez")   // who shares the address of the crowd
	crowd(t, probes, maxConnections)
	expectAnswer(t, "127.0.0.1", "http://"+probes+"/livez")
}

// serveState serves on a free port until the test ends, and returns its address.
func serveState(t *testing.T, handler http.Handler) string {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", portsFree(t, "tcp4", 1)[0])
	log := &lines{}
	server := &Server{Address: address, Handler: handler, Clock: clocktesting.NewFakeClock(now), Log: funcr.New(log.add, funcr.Options{})}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); server.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	await(t, "the port", func() bool { return log.String() != "" })
	return address
}

func TestSlowConnectionsToOneCheckLeaveOthers(t *testing.T) {
	r := runChecks(t, "tcp4")
	ports := portsFree(t, "tcp4", 2)
	pay := dataplane.ServiceName{Namespace: "shop", Name: "pay"}
	r.Set(r.owned, map[dataplane.ServiceName]Check{cart: {Port: ports[0], LocalEndpoints: 1}, pay: {Port: ports[1], LocalEndpoints: 1}}, nil)
	for _, port := range ports {
		r.expect("127.0.0.1", port, 200, "1")
	}
	crowd(t, fmt.Sprintf("127.0.0.1:%d", ports[0]), maxCheckConnections)
	for _, port := range ports {
		expectAnswer(t, "127.0.0.2", fmt.Sprintf("http://127.0.0.1:%d/", port))
	}
}
