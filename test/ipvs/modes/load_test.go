package modes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	traffic "github.com/nodeproxy-io/nodeproxy/test/load"
	"github.com/nodeproxy-io/nodeproxy/test/place"
)

var clockStart = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// route is a way by which new connections come.
type route struct {
	from     *place.Place
	protocol string
	to       netip.AddrPort
	rejected bool // at once, because there is no endpoint
}

func (r route) String() string { return fmt.Sprintf("%s → %s %s", r.from.Name, r.protocol, r.to) }

// patience is how long an answer may take. The kernel sends a SYN again after a
// second, which is counted.
const patience = 3 * time.Second

func (r route) target() place.Target {
	return place.Target{Protocol: r.protocol, To: r.to, Patience: patience}
}

// routes are all that both modes serve.
func (l *lab) routes() []route {
	var out []route
	for _, protocol := range []string{"tcp", "udp"} {
		for _, from := range []*place.Place{l.c, l.a, l.node, l.outside} {
			for _, to := range []netip.Addr{l.at.web, l.at.sticky, l.at.external, l.at.balancer} {
				if from != l.outside && to == l.at.balancer { // their addresses are outside of its source ranges
					continue
				}
				out = append(out, route{from, protocol, netip.AddrPortFrom(to, port), false})
			}
			out = append(out, route{from, protocol, netip.AddrPortFrom(l.at.nodeAddr, nodePort), false})
		}
		out = append(out,
			route{l.d, protocol, netip.AddrPortFrom(l.at.empty, port), true},
			route{l.d, protocol, netip.AddrPortFrom(l.at.nodeAddr, emptyPort), true})
	}
	return out
}

// load is a continuous load of new connections by all routes.
type load struct {
	*lab
	stop   atomic.Bool
	wg     sync.WaitGroup
	made   atomic.Int64
	mu     sync.Mutex // guards failed and plant
	failed []string
	plant  error                // see traffic.Planted
	resent map[*place.Place]int // SYNs, before
}

// pace is the time between connections of one place. It leaves the processor to
// what changes the mode.
const pace = 5 * time.Millisecond

// begin begins it. Each place makes connections by its routes in turn.
func (l *lab) begin() *load {
	out := &load{lab: l, resent: map[*place.Place]int{}, plant: traffic.Planted()}
	for _, p := range l.places() {
		out.resent[p] = resent(l.T, p)
	}
	byPlace := map[*place.Place][]route{}
	for _, r := range l.routes() {
		byPlace[r.from] = append(byPlace[r.from], r)
	}
	for _, routes := range byPlace {
		out.wg.Go(func() {
			ticks := time.NewTicker(pace)
			defer ticks.Stop()
			for i := 0; !out.stop.Load(); i++ {
				<-ticks.C
				r := routes[i%len(routes)]
				out.note(r, r.try())
			}
		})
	}
	return out
}

// note counts a connection and records how it went.
func (l *load) note(r route, err error) {
	l.made.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		err, l.plant = l.plant, nil
	}
	if err != nil {
		l.failed = append(l.failed, fmt.Sprintf("%s: %v", r, err))
	}
}

// places are those whose connections all come about at once. In d the kernel may
// get the answer to a SYN before it is ready for it, and sends it again.
func (l *lab) places() []*place.Place { return []*place.Place{l.node, l.a, l.c, l.outside} }

// try makes one connection.
func (r route) try() error {
	name, client, err := r.from.Ask(r.target())
	switch {
	case r.rejected && err == nil:
		return fmt.Errorf("answered by %s", name)
	case r.rejected && errors.Is(err, syscall.ECONNREFUSED):
		return nil
	case err != nil:
		return err
	case name != "a" && name != "r":
		return fmt.Errorf("answered by %q", name)
	case client == r.to.Addr().String():
		return fmt.Errorf("%s sees the client as %s, which is no address of it", name, client)
	}
	return nil
}

// more waits until there have been so many more connections.
func (l *load) more(n int64) {
	ticks := time.NewTicker(pace)
	defer ticks.Stop()
	for before := l.made.Load(); l.made.Load() < before+n; {
		<-ticks.C // the load itself has its own limits of time
	}
}

// end ends it and returns how many connections were made. That any failed, or had
// to be tried again by the kernel, fails the test.
func (l *load) end(during string) int64 {
	l.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	for i, f := range l.failed {
		if i == 20 {
			l.Errorf("… and %d more", len(l.failed)-i)
			break
		}
		l.Errorf("%s: %s", during, f)
	}
	if n := len(l.failed); n > 0 {
		traffic.Lost(l, "%s: %d connections failed", during, n)
	}
	for _, p := range l.places() {
		if n := resent(l.T, p) - l.resent[p]; n > 0 {
			traffic.Lost(l, "%s: %d SYNs from %s were not answered at once", during, n, p.Name)
		}
	}
	return l.made.Load()
}

// resent is how many SYNs were sent again from the place: what was dropped of new
// connections, though they came about in the end.
func resent(t *testing.T, p *place.Place) int {
	t.Helper()
	var text []byte
	err := p.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/netstat"); return err })
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
