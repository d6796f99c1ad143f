package userspace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// requestsAtOnce is how many requests about flows a worker sends to the kernel in a round. Each takes up to
// 0.1 ms, for which all others wait.
const requestsAtOnce = 16

// A worker blocks only in epoll_wait and, for UDP clients that begin or end, in requestsAtOnce requests to the
// kernel: neither clients nor endpoints can hold up others. What it has is its own, without locks; others reach
// it through do.
type worker struct {
	proxy *Proxy
	epoll int
	event int // wakes it up
	spare int // file descriptor to give up when there is no other
	// handlers are by file descriptor, and watched is how many there have been: it distinguishes those that
	// have had the same one.
	handlers   []watched
	watched    int32
	pipes      []*pipe // empty ones
	largePipes int     // open ones
	// busy are connections that have used up their share of a round.
	busy []*connection
	// attempts are those under way, by their number: all of one number time out after the same time.
	attempts [maxAttempts]fifo
	leaving  []leaver
	requests int     // to the kernel in this round
	more     bool    // a leaving socket has clients to end at once
	clients  [2]idle // of UDP, by udpIdle
	buffer   []byte  // for datagrams
	now      time.Time
	open     map[*connection]struct{}

	mu       sync.Mutex // guards everything below
	commands []func()
	stopped  bool
}

// watched is the handler of a file descriptor, with the number that its events have.
type watched struct {
	handler
	number int32
}

// leaver is a socket that ends when it can.
type leaver interface {
	// left ends it if it can, and reports whether it has ended.
	left(w *worker) bool
}

// handler gets the events of a file descriptor.
type handler interface {
	ready(w *worker, fd int, events uint32)
}

func newWorker(p *Proxy) (*worker, error) {
	w := &worker{proxy: p, epoll: -1, event: -1, spare: -1, buffer: make([]byte, 1<<16), open: map[*connection]struct{}{}}
	for i := range w.clients {
		w.clients[i] = newIdle(udpIdle[i])
	}
	var err error
	if w.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if w.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		w.close()
		return nil, os.NewSyscallError("eventfd", err)
	}
	if w.spare, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err != nil {
		w.close()
		return nil, os.NewSyscallError("eventfd", err)
	}
	if err := w.watch(w.event, unix.EPOLLIN, wakeUp{}); err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *worker) close() {
	for _, fd := range []int{w.epoll, w.event, w.spare} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	for _, p := range w.pipes {
		p.close()
	}
}

// watch has h get the events of a file descriptor.
func (w *worker) watch(fd int, events uint32, h handler) error {
	w.watched++
	if err := unix.EpollCtl(w.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: w.watched}); err != nil { //nolint:gosec // a file descriptor
		return os.NewSyscallError("epoll_ctl", err)
	}
	for len(w.handlers) <= fd {
		w.handlers = append(w.handlers, watched{})
	}
	w.handlers[fd] = watched{h, w.watched}
	return nil
}

// forget ends the events of a file descriptor, which is closed next.
func (w *worker) forget(fd int) {
	if fd < len(w.handlers) {
		w.handlers[fd] = watched{}
	}
}

// do has the worker call f between events. It returns false if the worker has ended.
func (w *worker) do(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return false
	}
	if w.commands = append(w.commands, f); len(w.commands) == 1 {
		_, _ = unix.Write(w.event, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // can only fail if it is awake anyway
	}
	return true
}

// wakeUp is the handler of the event by which do wakes the worker up.
type wakeUp struct{}

func (wakeUp) ready(w *worker, fd int, _ uint32) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
	w.mu.Lock()
	commands := w.commands
	w.commands = nil
	w.mu.Unlock()
	for _, f := range commands {
		f()
	}
}

// run handles events until ctx is done. Then it resets all connections.
func (w *worker) run(ctx context.Context) error {
	defer w.close()
	defer w.end()
	stop := context.AfterFunc(ctx, func() { w.do(func() {}) })
	defer stop()
	var events [256]unix.EpollEvent
	for round := 0; ctx.Err() == nil; round++ {
		n, err := unix.EpollWait(w.epoll, events[:], w.patience())
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for connections: %w", os.NewSyscallError("epoll_wait", err))
		}
		w.now, w.requests = w.proxy.clock.Now(), 0
		for i := range max(n, 0) {
			e := events[(i+round)%n] // each is first at times: later ones may find no requests left
			// An earlier event of this round may have ended a connection, and given its descriptor to another.
			if fd := int(e.Fd); fd < len(w.handlers) && w.handlers[fd].handler != nil && w.handlers[fd].number == e.Pad {
				w.handlers[fd].ready(w, fd, e.Events)
			}
		}
		busy := w.busy
		w.busy = nil
		for _, c := range busy {
			c.again(w)
		}
		w.expire()
		w.requests, w.more = 0, false
		w.leaving = slices.DeleteFunc(w.leaving, func(s leaver) bool { return s.left(w) })
	}
	return nil
}

// end resets what is open, and rejects what comes.
func (w *worker) end() {
	w.mu.Lock()
	w.stopped = true
	commands := w.commands
	w.mu.Unlock()
	for _, f := range commands {
		f()
	}
	for fd, h := range w.handlers {
		if closer, ok := h.handler.(interface{ shut(*worker) }); ok {
			closer.shut(w)
			w.forget(fd)
		}
	}
	for c := range w.open {
		c.reset(w)
	}
}

// patience is how long epoll_wait may wait, in ms; -1: until something happens.
func (w *worker) patience() int {
	if len(w.busy) > 0 || w.more {
		return 0
	}
	next := time.Time{}
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for i := range w.attempts {
		earlier(w.attempts[i].next())
	}
	for i := range w.clients {
		earlier(w.clients[i].next())
	}
	if len(w.leaving) > 0 {
		earlier(w.proxy.clock.Now().Add(leaveAfter))
	}
	if next.IsZero() {
		return -1
	}
	// Rounded up, so that it is due then.
	return max(0, int((next.Sub(w.proxy.clock.Now())+time.Millisecond-1)/time.Millisecond))
}

// expire ends what has taken too long.
func (w *worker) expire() {
	for i := range w.attempts {
		for {
			c, due := w.attempts[i].pop(w.now)
			if !due {
				break
			}
			if c.connecting && c.attempt == i+1 {
				c.timedOut(w)
			}
		}
	}
	for i := range w.clients {
		w.clients[i].expire(w)
	}
}

// fifo has attempts in the order in which they time out.
type fifo struct {
	waiting []waiting
	first   int
}

type waiting struct {
	c    *connection
	till time.Time
}

// push adds an attempt; before others only if the setting has become shorter since these began.
func (f *fifo) push(c *connection, till time.Time) {
	at := len(f.waiting)
	for at > f.first && f.waiting[at-1].till.After(till) {
		at--
	}
	f.waiting = slices.Insert(f.waiting, at, waiting{c, till})
}

// next is when the first one times out; zero: there is none. Those that have ended meanwhile go.
func (f *fifo) next() time.Time {
	for f.first < len(f.waiting) && !f.waiting[f.first].c.connecting {
		f.drop()
	}
	if f.first == len(f.waiting) {
		return time.Time{}
	}
	return f.waiting[f.first].till
}

// pop returns the first attempt if its time is over.
func (f *fifo) pop(now time.Time) (*connection, bool) {
	if f.first == len(f.waiting) || f.waiting[f.first].till.After(now) {
		return nil, false
	}
	c := f.waiting[f.first].c
	f.drop()
	return c, true
}

// drop removes the first one, and now and then the room of those that were removed.
func (f *fifo) drop() {
	f.waiting[f.first] = waiting{}
	f.first++
	switch {
	case f.first == len(f.waiting):
		f.waiting, f.first = f.waiting[:0], 0
	case f.first > 1024 && 2*f.first > len(f.waiting):
		n := copy(f.waiting, f.waiting[f.first:])
		clear(f.waiting[n:])
		f.waiting, f.first = f.waiting[:n], 0
	}
}
