package modes

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// place is a network namespace: the node's own, or one that goes with its thread.
type place struct {
	name  string
	steps chan func()
	tid   int
	addr  netip.Addr // its own
}

// newPlace makes an empty network namespace.
func newPlace(t *testing.T, name string, addr netip.Addr) *place {
	t.Helper()
	p := &place{name: name, addr: addr, steps: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with this function
		p.tid = unix.Gettid()
		ready <- unix.Unshare(unix.CLONE_NEWNET)
		for step := range p.steps {
			step()
		}
	}()
	t.Cleanup(func() { close(p.steps) })
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	p.must(t, "ip link set lo up", "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0")
	return p
}

// do runs a step in the place: what opens a socket, and starts no other thread.
func (p *place) do(step func()) {
	if p.steps == nil { // the node
		step()
		return
	}
	done := make(chan struct{})
	p.steps <- func() { defer close(done); step() }
	<-done
}

// must runs commands in the place.
func (p *place) must(t *testing.T, commands ...string) string {
	t.Helper()
	var out strings.Builder
	for _, c := range commands {
		words := strings.Fields(c)
		p.do(func() {
			printed, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil {
				t.Errorf("in %s: %s: %v: %s", p.name, c, err, printed)
			}
			out.Write(printed)
		})
	}
	if t.Failed() {
		t.FailNow()
	}
	return out.String()
}

// resent is how many SYNs were sent again from the place: what was dropped of new
// connections, though they came about in the end.
func (p *place) resent(t *testing.T) int {
	t.Helper()
	var text []byte
	var err error
	p.do(func() { text, err = os.ReadFile("/proc/thread-self/net/netstat") })
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[0] != "TcpExt:" {
			continue
		}
		if names == nil {
			names = words
			continue
		}
		for i, n := range names {
			if n == "TCPSynRetrans" {
				value, err := strconv.Atoi(words[i])
				if err != nil {
					t.Fatal(err)
				}
				return value
			}
		}
	}
	t.Fatal("no TCPSynRetrans")
	return 0
}

// serve answers each line by TCP, and each packet by UDP, with the place's name
// and the client's address, on all addresses of the place.
func (p *place) serve(t *testing.T, port uint16) {
	t.Helper()
	var (
		l   *net.TCPListener
		u   *net.UDPConn
		err error
	)
	p.do(func() {
		if l, err = net.ListenTCP("tcp", &net.TCPAddr{Port: int(port)}); err != nil {
			return
		}
		u, err = net.ListenUDP("udp", &net.UDPAddr{Port: int(port)})
	})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // guards open
	var open []net.Conn
	t.Cleanup(func() {
		_, _ = l.Close(), u.Close() // they are only read from
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			_ = c.Close() // nothing is lost by that
		}
	})
	go func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			go p.answer(c)
		}
	}()
	go func() {
		for {
			_, from, err := u.ReadFromUDPAddrPort(make([]byte, 16))
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = u.WriteToUDPAddrPort([]byte(p.name+" "+from.Addr().Unmap().String()), from)
			}
		}
	}()
}

func (p *place) answer(c *net.TCPConn) {
	defer func() { _ = c.Close() }() // nothing is lost by that
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		_, err := io.WriteString(c, p.name+" "+c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()+"\n")
		if err != nil {
			return
		}
	}
}

func addr(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}
