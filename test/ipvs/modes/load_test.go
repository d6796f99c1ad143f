package modes

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var clockStart = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// route is a way by which new connections come.
type route struct {
	from     *place
	protocol string
	to       netip.AddrPort
	refused  bool // at once, because there is no endpoint
}

func (r route) String() string { return fmt.Sprintf("%s → %s %s", r.from.name, r.protocol, r.to) }

// routes are all that both modes serve.
func (l *lab) routes() []route {
	var out []route
	for _, protocol := range []string{"tcp", "udp"} {
		for _, from := range []*place{l.c, l.a, l.node, l.outside} {
			for _, to := range []netip.Addr{web, sticky, external, balancer} {
				if from != l.outside && to == balancer { // their addresses are outside of its source ranges
					continue
				}
				out = append(out, route{from, protocol, netip.AddrPortFrom(to, port), false})
			}
			out = append(out, route{from, protocol, netip.AddrPortFrom(nodeAddr, nodePort), false})
		}
		out = append(out,
			route{l.d, protocol, netip.AddrPortFrom(empty, port), true},
			route{l.d, protocol, netip.AddrPortFrom(nodeAddr, emptyPort), true})
	}
	return out
}

// load is a continuous load of new connections by all routes.
type load struct {
	*lab
	stop   atomic.Bool
	wg     sync.WaitGroup
	made   atomic.Int64
	mu     sync.Mutex // guards failed
	failed []string
	resent map[*place]int // SYNs, before
}

// pace is the time between connections of one place. It leaves the processor to
// what changes the mode.
const pace = 5 * time.Millisecond

// begin begins it. Each place makes connections by its routes in turn.
func (l *lab) begin() *load {
	out := &load{lab: l, resent: map[*place]int{}}
	for _, p := range l.places() {
		out.resent[p] = p.resent(l.T)
	}
	byPlace := map[*place][]route{}
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
				if err := r.try(); err != nil {
					out.mu.Lock()
					out.failed = append(out.failed, fmt.Sprintf("%s: %v", r, err))
					out.mu.Unlock()
				}
				out.made.Add(1)
			}
		})
	}
	return out
}

// places are those whose connections all come about at once. In d the kernel may
// get the answer to a SYN before it is ready for it, and sends it again.
func (l *lab) places() []*place { return []*place{l.node, l.a, l.c, l.outside} }

// try makes one connection.
func (r route) try() error {
	name, client, err := r.from.request(r.protocol, r.to)
	switch {
	case r.refused && err == nil:
		return fmt.Errorf("answered by %s", name)
	case r.refused && errors.Is(err, syscall.ECONNREFUSED):
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
	for _, p := range l.places() {
		if n := p.resent(l.T) - l.resent[p]; n > 0 {
			l.Errorf("%s: %d SYNs from %s were not answered at once", during, n, p.name)
		}
	}
	return l.made.Load()
}
