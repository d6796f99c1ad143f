package userspace

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// acceptedAtOnce is how many connections are accepted before it is the turn of others.
const acceptedAtOnce = 64

// listener accepts the connections to one port that the kernel has redirected by one policy.
type listener struct {
	fd      int
	address netip.AddrPort
	policy  policy
	until   time.Time // it ends then; zero: it stays
}

// ready accepts what has come. The kernel reports again what is left.
func (l *listener) ready(w *worker, _ int, _ uint32) { l.accept(w) }

// accept accepts some connections. It reports whether there may be more.
func (l *listener) accept(w *worker) (more bool) {
	for range acceptedAtOnce {
		fd, from, err := unix.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			w.accepted(l, fd, addressOf(from))
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		case outOfDescriptors(err):
			w.rejectOne(l)
			return false
		default: // EAGAIN, or what a network reports that is down
			return false
		}
	}
	return true
}

// rejectOne resets a connection for which there is no file descriptor, by the spare one, so that its
// client need not wait.
func (w *worker) rejectOne(l *listener) {
	if w.spare >= 0 {
		_ = unix.Close(w.spare)
		w.spare = -1
	}
	if fd, from, err := unix.Accept4(l.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC); err == nil {
		if p := w.portOf(l, fd, addressOf(from)); p != nil {
			p.used.Store(true)
			p.rejected[noDescriptor].Add(1)
			reset(fd)
		}
	}
	if fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil {
		w.spare = fd
	}
}

// leave ends it after queueTime: the last message of a handshake may be under way.
func (l *listener) leave(w *worker) {
	if l.fd >= 0 && l.until.IsZero() {
		l.until = w.now.Add(queueTime)
		w.leaving = append(w.leaving, l)
	}
}

func (l *listener) left(w *worker) bool {
	if !w.now.Before(l.until) {
		l.shut(w)
	}
	return l.fd < 0
}

// shut stops listening. What the kernel has queued is served first.
func (l *listener) shut(w *worker) {
	if l.fd < 0 {
		return
	}
	for l.accept(w) { // until there are none
	}
	w.forget(l.fd)
	_ = unix.Close(l.fd)
	l.fd = -1
}

// portOf returns the port that an accepted connection is for. If there is none, it resets the
// connection.
func (w *worker) portOf(l *listener, fd int, client netip.AddrPort) *port {
	to, err := w.proxy.original(fd, client.Addr())
	if err == nil && to != l.address {
		if p := w.proxy.table.arrived(v1alpha1.ProtocolTCP, to, *w.proxy.node.Load(), w.now); p != nil {
			return p
		}
	}
	w.proxy.notRedirected.Add(1)
	reset(fd)
	return nil
}

// accepted begins a connection.
func (w *worker) accepted(l *listener, fd int, client netip.AddrPort) {
	p := w.portOf(l, fd, client)
	if p == nil {
		return
	}
	if why, ok := w.proxy.admit(p); !ok {
		p.rejected[why].Add(1)
		reset(fd)
		return
	}
	tune(fd)
	c := &connection{port: p, policy: l.policy, client: client.Addr(), in: fd, out: -1, began: w.now}
	w.open[c] = struct{}{}
	if err := w.watch(fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET, c); err != nil {
		c.fail(w, noDescriptor)
		return
	}
	c.connect(w)
}

// connection joins a client's connection with one to an endpoint.
type connection struct {
	port    *port
	policy  policy
	client  netip.Addr
	in, out int // file descriptors: the client's, and the endpoint's; -1: none
	began   time.Time

	tried      []*endpoint // not to be tried again
	slow       []*endpoint // those of them that have not answered
	endpoint   *endpoint
	attempt    int  // of the endpoint, from 1
	connecting bool // the endpoint has not accepted yet
	counted    bool // as a connection
	queued     bool // among the busy ones
	closed     bool
	noPort     bool // the node had no port left for an attempt

	up, down flow // to the endpoint, and to the client
}

// connect begins the next attempt. If there is none left, the client is rejected.
func (c *connection) connect(w *worker) {
	for c.attempt < maxAttempts {
		e := c.next(w)
		if e == nil {
			break
		}
		c.endpoint = e
		if c.attempt++; c.attempt > 1 {
			c.port.retries.Add(1)
		}
		if w.proxy.loops(v1alpha1.ProtocolTCP, e.address) {
			c.attemptFailed(w, v1alpha1.EndpointLoops)
			continue
		}
		err := c.dial(w)
		switch {
		case err == nil:
			c.connecting = true
			w.attempts[c.attempt-1].push(c, w.now.Add(attemptTime(w.proxy.connectTimeout(), c.attempt)))
			return
		case outOfDescriptors(err):
			c.fail(w, noDescriptor)
			return
		case errors.Is(err, unix.EADDRNOTAVAIL): // the endpoint cannot help it
			c.noPort = true
			c.tried = append(c.tried, e)
		default:
			c.attemptFailed(w, failureOf(err))
		}
	}
	if c.noPort {
		c.fail(w, noLocalPort)
		return
	}
	c.fail(w, noEndpoint)
}

// next returns the endpoint to try. One that has taken too long gets another try if there is no other.
func (c *connection) next(w *worker) *endpoint {
	if e := c.port.pick(c.policy, c.client, c.tried, w.now); e != nil || len(c.slow) == 0 {
		return e
	}
	c.tried = slices.DeleteFunc(c.tried, func(e *endpoint) bool { return slices.Contains(c.slow, e) })
	c.slow = nil
	return c.port.pick(c.policy, c.client, c.tried, w.now)
}

// dial begins to connect to the endpoint.
func (c *connection) dial(w *worker) error {
	fd, err := unix.Socket(domainOf(c.endpoint.address.Addr()), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	tune(fd)
	if err := unix.Connect(fd, sockaddr(c.endpoint.address)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		_ = unix.Close(fd)
		return os.NewSyscallError("connect", err)
	}
	if err := w.watch(fd, unix.EPOLLIN|unix.EPOLLOUT|unix.EPOLLRDHUP|unix.EPOLLET, c); err != nil {
		_ = unix.Close(fd)
		return err
	}
	c.out = fd
	return nil
}

// ready continues a connection.
func (c *connection) ready(w *worker, fd int, events uint32) {
	switch {
	case c.closed:
	case !c.connecting:
		c.transfer(w)
	case fd == c.in && events&(unix.EPOLLERR|unix.EPOLLHUP) != 0: // the client has given up
		c.reset(w)
	case fd == c.out && events&(unix.EPOLLOUT|unix.EPOLLERR|unix.EPOLLHUP) != 0:
		if err := errorOf(fd); err != nil {
			c.attemptFailed(w, failureOf(err))
			c.connect(w)
			return
		}
		c.accepted(w)
	}
}

// accepted begins to transfer.
func (c *connection) accepted(w *worker) {
	c.connecting = false
	c.port.success(c.endpoint)
	if !c.counted {
		c.counted = true
		c.port.connections.Add(1)
		c.port.observe(int64(w.now.Sub(c.began)))
	}
	c.transfer(w)
}

// timedOut ends an attempt.
func (c *connection) timedOut(w *worker) {
	c.slow = append(c.slow, c.endpoint)
	c.attemptFailed(w, v1alpha1.EndpointSilent)
	c.connect(w)
}

// attemptFailed ends an attempt that has failed, and has the endpoint rest.
func (c *connection) attemptFailed(w *worker, why v1alpha1.EndpointFailure) {
	c.connecting = false
	c.up.done = false // the next one does not know yet
	c.port.failure(c.endpoint, why, w.now, &c.port.counters)
	c.tried = append(c.tried, c.endpoint)
	if c.out >= 0 {
		w.forget(c.out)
		_ = unix.Close(c.out)
		c.out = -1
	}
}

// again continues a connection that had to wait for its turn.
func (c *connection) again(w *worker) {
	if c.queued = false; !c.closed {
		c.transfer(w)
	}
}

// transfer moves what there is, both ways.
func (c *connection) transfer(w *worker) {
	if c.connecting || c.out < 0 {
		return
	}
	sent, moreUp, up := c.up.transfer(w, c.in, c.out)
	// Also if the endpoint takes no more: it may have answered before.
	received, moreDown, down := c.down.transfer(w, c.out, c.in)
	c.port.toEndpoint.Add(sent)
	c.port.toClient.Add(received)
	switch {
	case c.untouched(up, down):
		c.attemptFailed(w, v1alpha1.EndpointResets)
		c.connect(w)
	case up == nil && down == nil && c.up.done && c.down.done, up != nil && !up.sender && received > 0:
		c.close(w, func(fd int) { _ = unix.Close(fd) })
	case up != nil || down != nil:
		c.reset(w)
	case (moreUp || moreDown) && !c.queued:
		c.queued = true
		w.busy = append(w.busy, c)
	}
}

// untouched reports whether the endpoint has reset the connection before anything was transferred, although
// the client waits: then another endpoint can serve it as well.
func (c *connection) untouched(up, down *brokenError) bool {
	if c.up.moved+c.down.moved > 0 || c.down.has() || c.up.ended && !c.up.has() {
		return false
	}
	return up != nil && !up.sender && errors.Is(up.error, unix.ECONNRESET) || up == nil && down != nil && down.sender && errors.Is(down.error, unix.ECONNRESET)
}

// fail resets a connection that cannot be served.
func (c *connection) fail(w *worker, why rejection) {
	c.port.rejected[why].Add(1)
	c.reset(w)
}

// reset ends a connection early, as both sides see.
func (c *connection) reset(w *worker) { c.close(w, reset) }

func (c *connection) close(w *worker, closeOne func(fd int)) {
	if c.closed {
		return
	}
	c.closed, c.connecting = true, false
	for _, fd := range []int{c.in, c.out} {
		if fd >= 0 {
			w.forget(fd)
			closeOne(fd)
		}
	}
	c.up.end(w)
	c.down.end(w)
	delete(w.open, c)
	w.proxy.leave(c.port)
}
