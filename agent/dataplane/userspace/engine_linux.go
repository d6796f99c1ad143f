package userspace

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// workers has one for each processor. Each has listeners of its own, among which the kernel
// distributes connections.
type workers struct {
	list []*worker

	mu   sync.Mutex // guards next
	next int        // worker that gets the next port of UDP
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

// listen listens at any free port of an address, the same one for all workers.
func (e *workers) listen(address netip.Addr, by policy) (bound netip.AddrPort, end func(), err error) {
	bound = netip.AddrPortFrom(address, 0)
	var ends []func()
	end = func() {
		for _, one := range ends {
			one()
		}
	}
	for _, w := range e.list {
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
		ends = append(ends, func() { w.do(func() { l.shut(w) }) })
	}
	return bound, end, nil
}

// begin watches a socket on which something comes. Without its events no connection there would get an answer.
func (w *worker) begin(fd int, h handler, shut func(*worker)) {
	if err := w.watch(fd, unix.EPOLLIN, h); err != nil {
		shut(w)
	}
}

// listenUDP listens at any free port of an address. One worker serves all datagrams of a port: their
// clients' sockets are its own.
func (e *workers) listenUDP(p *port, by policy, address netip.Addr) (bound netip.AddrPort, end func(), err error) {
	fd, bound, err := socket(unix.SOCK_DGRAM, netip.AddrPortFrom(address, 0))
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	e.mu.Lock()
	w := e.list[e.next%len(e.list)]
	e.next++
	e.mu.Unlock()
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
