package httpport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// serve runs a server on a loopback port until the test ends.
func serve(t *testing.T, limit *Limit) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := NewServer(limit, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve returned %v", err)
		}
	})
	return listener.Addr().String()
}

// client is a connection from an address of this machine.
type client struct {
	t *testing.T
	net.Conn
	answers *bufio.Reader
}

func dial(t *testing.T, from, to string) *client {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.DialContext(t.Context(), "tcp4", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // may be closed already
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &client{t, conn, bufio.NewReader(conn)}
}

// send sends a part of a request.
func (c *client) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// get asks, and reads the answer.
func (c *client) get() error {
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: here\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // only read from
	body, err := io.ReadAll(response.Body)
	if err == nil && string(body) != "ok" {
		err = fmt.Errorf("answer %q", body)
	}
	return err
}

// closed reports whether the server has closed the connection; else it is one
// that still answers.
func (c *client) closed() bool {
	c.t.Helper()
	_, err := c.answers.ReadByte()
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		c.t.Fatal("neither an answer nor an end within 10 s")
	}
	return err != nil
}

func TestOneTooManyClosesTheLongestWaiting(t *testing.T) {
	limit := NewLimit(3)
	address := serve(t, limit)
	slow := dial(t, "127.0.0.1", address)
	slow.send("GET / HTTP/1.1\r\nHo")
	awaitOpen(t, limit, 1)
	scraper := dial(t, "127.0.0.1", address)
	awaitOpen(t, limit, 2)
	silent := dial(t, "127.0.0.1", address)
	awaitOpen(t, limit, 3)
	if err := scraper.get(); err != nil {
		t.Fatal(err)
	}
	// The server notes only after the answer that silent waits longer by now.
	await(t, limit, "the scraper is not the last", func() bool {
		last, _ := limit.open.Back().Value.(*connection)
		return last.RemoteAddr().String() == scraper.LocalAddr().String()
	})
	for _, c := range []*client{dial(t, "127.0.0.1", address), dial(t, "127.0.0.1", address)} {
		if err := c.get(); err != nil {
			t.Errorf("a new client: %v", err)
		}
	}
	if !slow.closed() || !silent.closed() {
		t.Error("a connection that asks nothing outlives others")
	}
	if err := scraper.get(); err != nil {
		t.Errorf("the connection that was answered is closed: %v", err)
	}
}

// A client with many connections closes its own, however long others wait.
func TestClientWithMostConnectionsLosesThem(t *testing.T) {
	address := serve(t, NewLimit(4))
	kubelet := dial(t, "127.0.0.2", address)
	kubelet.send("GET / HTTP/1.1\r\n")
	for range 20 {
		dial(t, "127.0.0.1", address).send("G")
	}
	if err := dial(t, "127.0.0.3", address).get(); err != nil {
		t.Errorf("a client that comes: %v", err)
	}
	kubelet.send("Host: here\r\n\r\n")
	if response, err := http.ReadResponse(kubelet.answers, nil); err != nil || response.Body.Close() != nil || response.StatusCode != 200 {
		t.Errorf("the client that was there: %v, %v", response, err)
	}
}

func TestPortsShareALimit(t *testing.T) {
	limit := NewLimit(2)
	one, two := serve(t, limit), serve(t, limit)
	first := dial(t, "127.0.0.1", one)
	if err := first.get(); err != nil {
		t.Fatal(err)
	}
	second := dial(t, "127.0.0.1", two)
	if err := second.get(); err != nil {
		t.Fatal(err)
	}
	third := dial(t, "127.0.0.1", two)
	if err := third.get(); err != nil {
		t.Fatal(err)
	}
	// The server notes after an answer that a connection was answered last, so either may be the oldest.
	closed, remaining := first, second
	limit.mu.Lock()
	for e := limit.open.Front(); e != nil; e = e.Next() {
		if c, _ := e.Value.(*connection); c.RemoteAddr().String() == first.LocalAddr().String() {
			closed, remaining = second, first
		}
	}
	limit.mu.Unlock()
	if !closed.closed() {
		t.Error("the ports count apart")
	}
	// A connection that its client closes does not count.
	if err := third.Close(); err != nil {
		t.Fatal(err)
	}
	awaitOpen(t, limit, 1)
	if err := dial(t, "127.0.0.1", one).get(); err != nil {
		t.Fatal(err)
	}
	if err := remaining.get(); err != nil {
		t.Errorf("closed although there was a free place: %v", err)
	}
}

func awaitOpen(t *testing.T, limit *Limit, want int) {
	t.Helper()
	await(t, limit, fmt.Sprintf("not %d connections count", want), func() bool { return limit.open.Len() == want })
}

// await waits for a state of a limit, which is called with its lock.
func await(t *testing.T, limit *Limit, problem string, state func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		limit.mu.Lock()
		reached := state()
		limit.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(problem)
		}
	}
}

func TestLongHeadersAreNotRead(t *testing.T) {
	c := dial(t, "127.0.0.1", serve(t, NewLimit(1)))
	c.send("GET / HTTP/1.1\r\nHost: here\r\nX: " + strings.Repeat("x", 2*maxHeaderBytes))
	response, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close() // not read
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", response.StatusCode)
	}
}

// Every wait has an end: none of these may be zero, which is for ever.
func TestEveryWaitHasAnEnd(t *testing.T) {
	s := NewServer(NewLimit(1), nil)
	for name, d := range map[string]time.Duration{
		"headers": s.http.ReadHeaderTimeout, "read": s.http.ReadTimeout, "write": s.http.WriteTimeout, "idle": s.http.IdleTimeout,
	} {
		if d <= 0 || d > 90*time.Second {
			t.Errorf("%s: %s", name, d)
		}
	}
}
