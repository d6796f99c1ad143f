package userspace

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// workersPerPort is how many workers accept the connections of a port at most: each needs a listener, and a node
// may have thousands of ports.
const workersPerPort = 4

// workers has one for each processor. Each has listeners of its own, among which the kernel
// distributes connections.
type workers struct {
	list []*worker

	mu   sync.Mutex // guards next
	next int        // worker that is first to get the next port
}

func newEngine(p *Proxy, count int) (*workers, error) {
	if count == 0 {
		count = runtime.GOMAXPROCS(0)
	}
	e := &workers{}
	for range count {
		w, err := newWorker(p)
		if err != nil {
			for _, w := range e.list {
				w.close()
			}
			return nil, err
		}
		e.list = append(e.list, w)
	}
	return e, nil
}

func (e *workers) run(ctx context.Context) error {
	var group sync.WaitGroup
	errs := make([]error, len(e.list))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i, w := range e.list {
		group.Go(func() {
			defer cancel() // one that has failed must not leave its listeners without an answer
			errs[i] = w.run(ctx)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// listen implements engine. One worker serves all datagrams of a port: their clients' sockets are its own.
func (e *workers) listen(p *port, by policy, address netip.Addr) (bound netip.AddrPort, end func(), err error) {
	if p.id.protocol == v1alpha1.ProtocolUDP {
		return e.take(1)[0].listenUDP(p, by, address)
	}
	bound = netip.AddrPortFrom(address, 0)
	var ends []func()
	end = func() {
		for _, one := range ends {
			one()
		}
	}
	for _, w := range e.take(workersPerPort) {
		fd, at, err := socket(unix.SOCK_STREAM, bound)
		if err != nil {
			end()
			return netip.AddrPort{}, nil, err
		}
		bound = at
		l := &listener{fd: fd, address: at, policy: by}
		if !w.do(func() { w.begin(fd, l, l.shut) }) {
			_ = unix.Close(fd)
		}
		ends = append(ends, func() { w.do(func() { l.leave(w) }) })
	}
	return bound, end, nil
}

// take returns so many workers, or all if there are fewer, in turns.
func (e *workers) take(count int) []*worker {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []*worker
	for range min(count, len(e.list)) {
		out = append(out, e.list[e.next%len(e.list)])
		e.next++
	}
	return out
}

// begin watches a socket on which something comes. Without its events no connection there would get an answer.
func (w *worker) begin(fd int, h handler, shut func(*worker)) {
	if err := w.watch(fd, unix.EPOLLIN, h); err != nil {
		shut(w)
	}
}

// listenUDP listens at any free port of an address.
func (w *worker) listenUDP(p *port, by policy, address netip.Addr) (bound netip.AddrPort, end func(), err error) {
	fd, bound, err := socket(unix.SOCK_DGRAM, netip.AddrPortFrom(address, 0))
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	s := &udpSocket{fd: fd, address: bound, port: p, policy: by, clients: map[netip.AddrPort]*udpClient{}}
	if !w.do(func() { w.begin(fd, s, s.shut) }) {
		_ = unix.Close(fd)
	}
	return bound, func() { w.do(func() { s.leave(w) }) }, nil
}

func (e *workers) endUDP() {
	for _, w := range e.list {
		w.do(func() {
			for _, h := range w.handlers {
				if s, is := h.handler.(*udpSocket); is {
					s.leave(w)
				}
			}
		})
	}
}
