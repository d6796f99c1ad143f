package connect

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"
)

// blackhole is an address on loopback that neither accepts nor rejects: the
// queue of its listener is full, so the kernel drops what else comes.
func blackhole(t *testing.T) string {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	listener := os.NewFile(uintptr(fd), "listener")
	t.Cleanup(func() { _ = listener.Close() }) // nothing to do about it
	must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, unix.Listen(fd, 0))
	bound, err := unix.Getsockname(fd)
	must(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", bound.(*unix.SockaddrInet4).Port)
	for range 8 { // one, in fact
		dialer := net.Dialer{Timeout: 200 * time.Millisecond}
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			return "https://" + address
		}
		t.Cleanup(func() { _ = conn.Close() }) // nothing to do about it
	}
	t.Fatalf("%s goes on accepting", address)
	return ""
}

func TestServerThatDropsEverything(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	first, second := blackhole(t), a.server(t)
	w := a.open(t, Options{APIServers: []string{first, second.URL}}, clock.RealClock{})
	start := time.Now()
	must(t, w.ask())
	if took := time.Since(start); took < dialTimeout-time.Second || took > dialTimeout+4*time.Second {
		t.Errorf("the second server is asked after %s, want %s", took, dialTimeout)
	}
	w.answered(second, 1)
}

// The kubeconfig's own server has no more time, so that the way is soon found
// open again.
func TestOneServerThatDropsEverything(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	w := a.open(t, Options{Kubeconfig: "f", APIServers: []string{blackhole(t)}}, clock.RealClock{})
	start := time.Now()
	err := w.ask()
	if took := time.Since(start); took > dialTimeout+4*time.Second {
		t.Errorf("it takes %s to report %v", took, err)
	}
	if err == nil || !strings.Contains(err.Error(), "i/o timeout") || len(w.log.with("No API server answers")) != 1 {
		t.Errorf("got %v, log %q", err, w.log.with(""))
	}
}

// However many servers there are, it is reported within 30 s that none answers.
func TestManyServersThatDropEverything(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	o := Options{}
	for range 8 {
		o.APIServers = append(o.APIServers, blackhole(t))
	}
	w := a.open(t, o, clock.RealClock{})
	start := time.Now()
	err := w.ask()
	if took := time.Since(start); took > 29*time.Second {
		t.Errorf("it takes %s to report %v", took, err)
	}
	reported := w.log.with("No API server answers")
	if len(reported) != 1 || !strings.Contains(reported[0], "not tried yet: ["+o.APIServers[4]) {
		t.Errorf("got %v, log %q", err, reported)
	}
}

// pipe forwards connections until it falls silent, as a cable that is cut.
type pipe struct {
	net.Listener
	silent atomic.Bool
}

func newPipe(t *testing.T, target string) *pipe {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() }) // nothing to do about it
	p := &pipe{Listener: listener}
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(target, "https://"))
			if err != nil {
				_ = near.Close() // the server is gone
				continue
			}
			t.Cleanup(func() { _, _ = near.Close(), far.Close() }) // nothing to do about it
			go p.forward(near, far)
			go p.forward(far, near)
		}
	}()
	return p
}

func (p *pipe) forward(from, to net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if p.silent.Load() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// A watch that hears nothing because the way is cut is not taken for one that
// has nothing to hear: within about 20 s it ends.
func TestDeadConnectionIsNoticed(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	first := a.serverAt(t, "127.0.0.1:0", func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush() // the client sees the headers, or its test fails
		<-r.Context().Done()
	})
	second, cable := a.server(t), newPipe(t, first.URL)
	w := a.open(t, Options{APIServers: []string{"https://" + cable.Addr().String(), second.URL}}, clock.RealClock{})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.Config().Host+"/watch", http.NoBody)
	must(t, err)
	response, err := w.client.Do(request)
	must(t, err)
	defer func() { _ = response.Body.Close() }() // only read from
	cable.silent.Store(true)
	must(t, cable.Close())
	start := time.Now()
	_, err = io.ReadAll(response.Body)
	took := time.Since(start)
	t.Logf("noticed after %s: %v", took.Round(100*time.Millisecond), err)
	if err == nil || errors.Is(err, io.EOF) || took > 25*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
	must(t, w.ask())
	w.answered(second, 1)
}
