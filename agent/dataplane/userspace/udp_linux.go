package userspace

import (
	"bytes"
	"container/list"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// udpIdle is how long a silent UDP client keeps its endpoint: usually, and if it has been answered for longer
// than streamAfter. It is shorter than what the kernel tracks its flow for by default
// (nf_conntrack_udp_timeout and nf_conntrack_udp_timeout_stream), so that no client comes back as another one.
var udpIdle = [...]time.Duration{25 * time.Second, 115 * time.Second}

// streamAfter is when a flow counts as a stream, in the kernel too.
const streamAfter = 2 * time.Second

// datagramsAtOnce is how many datagrams of a socket are forwarded before it is the turn of others.
const datagramsAtOnce = 64

// udpSocket is where the kernel sends the datagrams of one port by one policy.
type udpSocket struct {
	fd      int
	address netip.AddrPort
	port    *port
	policy  policy
	leaving bool // it ends
	clients map[netip.AddrPort]*udpClient
}

// udpClient is a client with the socket to its endpoint.
type udpClient struct {
	socket   *udpSocket
	address  netip.AddrPort
	fd       int // -1: there is no endpoint
	endpoint *endpoint
	tried    []*endpoint
	// first is its first datagram, which another endpoint can get as long as none has answered; nil:
	// it has sent more, or there was no room.
	first    []byte
	answered bool
	stream   bool // it has the longer time
	waiting  bool // for an answer
	began    time.Time
	active   time.Time // the last datagram
	last     time.Time // likewise, but exact to a second
	place    *list.Element
}

// idle has clients in the order in which they were last active, which is exact to a second.
type idle struct {
	timeout time.Duration
	clients *list.List // of *udpClient, the most silent one first
}

func newIdle(timeout time.Duration) idle { return idle{timeout, list.New()} }

// next is when the first client may have been silent too long; zero: there is none.
func (i *idle) next() time.Time {
	if front := i.clients.Front(); front != nil {
		return front.Value.(*udpClient).last.Add(i.timeout)
	}
	return time.Time{}
}

// expire ends clients that have been silent too long.
func (i *idle) expire(w *worker) {
	for front := i.clients.Front(); front != nil; front = i.clients.Front() {
		c := front.Value.(*udpClient)
		if w.now.Sub(c.last) < i.timeout {
			return
		}
		c.end(w)
	}
}

// ready forwards datagrams of clients.
func (s *udpSocket) ready(w *worker, _ int, _ uint32) {
	for range datagramsAtOnce {
		if w.requests >= requestsAtOnce {
			return // what is left is reported again
		}
		n, from, err := unix.Recvfrom(s.fd, w.buffer, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil: // an answer could not be delivered
			continue
		}
		s.received(w, addressOf(from), w.buffer[:n])
	}
}

// received forwards a datagram of a client.
func (s *udpSocket) received(w *worker, from netip.AddrPort, datagram []byte) {
	c := s.clients[from]
	if c == nil {
		if c = s.begin(w, from, datagram); c == nil {
			return
		}
	} else if c.first != nil {
		c.forgetFirst(w)
	}
	if c.endpoint != nil && c.endpoint.gone.Load() {
		c.disconnect(w)
		c.tried = nil
	}
	c.touch(w)
	c.send(w, datagram)
}

// begin returns a new client; nil: it is not served.
func (s *udpSocket) begin(w *worker, from netip.AddrPort, datagram []byte) *udpClient {
	if why, ok := w.proxy.admitUDP(s.port); !ok {
		s.port.rejected[why].Add(1)
		return nil
	}
	if flows := w.proxy.flows; flows != nil {
		w.requests++
		to, err := flows.Original(from, s.address)
		if err != nil || w.proxy.table.arrived(v1alpha1.ProtocolUDP, to, *w.proxy.node.Load(), w.now) != s.port {
			w.proxy.notRedirected.Add(1)
			w.proxy.leaveUDP(s.port)
			return nil
		}
	}
	c := &udpClient{socket: s, address: from, fd: -1}
	if w.proxy.retained.take(int64(len(datagram)), maxRetained) {
		c.first = bytes.Clone(datagram)
	}
	s.port.connections.Add(1)
	s.clients[from] = c
	c.began, c.last = w.now, w.now
	c.place = w.clients[0].clients.PushBack(c)
	return c
}

// touch notes that a client is active.
func (c *udpClient) touch(w *worker) {
	c.active = w.now
	if w.now.Sub(c.last) < time.Second {
		return
	}
	c.last = w.now
	if c.answered && !c.stream && w.now.Sub(c.began) > streamAfter {
		w.clients[c.kind()].clients.Remove(c.place)
		c.stream = true
		c.place = w.clients[c.kind()].clients.PushBack(c)
		return
	}
	w.clients[c.kind()].clients.MoveToBack(c.place)
}

// kind is the index of its list.
func (c *udpClient) kind() int {
	if c.stream {
		return 1
	}
	return 0
}

// send sends a datagram to the client's endpoint, or to another one that takes it.
func (c *udpClient) send(w *worker, datagram []byte) {
	for range maxAttempts {
		if c.fd < 0 && !c.connect(w) {
			return
		}
		_, err := unix.SendmsgN(c.fd, datagram, nil, nil, unix.MSG_NOSIGNAL)
		if err == nil {
			c.waiting = true
			c.socket.port.toEndpoint.Add(int64(len(datagram)))
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return // sent, or lost as on any network
		}
		c.attemptFailed(w)
	}
}

// connect gives a client an endpoint; false: there is none, and the client ends.
func (c *udpClient) connect(w *worker) bool {
	p := c.socket.port
	e := p.pick(c.socket.policy, c.address.Addr(), c.tried, w.now)
	if e == nil || len(c.tried) >= maxAttempts || w.proxy.loops(v1alpha1.ProtocolUDP, e.address) {
		p.rejected[noEndpoint].Add(1)
		c.end(w)
		return false
	}
	fd, err := unix.Socket(domainOf(e.address.Addr()), unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		p.rejected[noDescriptor].Add(1)
		c.end(w)
		return false
	}
	if err = unix.Connect(fd, sockaddr(e.address)); err == nil {
		err = w.watch(fd, unix.EPOLLIN, c)
	}
	if err != nil {
		_ = unix.Close(fd)
		p.rejected[noLocalPort].Add(1)
		c.end(w)
		return false
	}
	if len(c.tried) > 0 {
		p.retries.Add(1)
	}
	c.fd, c.endpoint = fd, e
	return true
}

// disconnect ends the socket to the endpoint.
func (c *udpClient) disconnect(w *worker) {
	if c.fd >= 0 {
		w.forget(c.fd)
		_ = unix.Close(c.fd)
		c.fd = -1
	}
}

// attemptFailed notes that no program listens at the endpoint.
func (c *udpClient) attemptFailed(w *worker) {
	c.socket.port.failure(c.endpoint, v1alpha1.EndpointRejects, w.now, &c.socket.port.counters)
	c.tried = append(c.tried, c.endpoint)
	c.disconnect(w)
}

// ready forwards the endpoint's answers, or tries another one.
func (c *udpClient) ready(w *worker, fd int, _ uint32) {
	for range datagramsAtOnce {
		n, err := unix.Read(fd, w.buffer)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ECONNREFUSED):
			c.retry(w)
			return
		case err != nil:
			return
		}
		if !c.answered {
			c.accepted(w)
		}
		c.touch(w)
		c.waiting = false
		c.socket.port.toClient.Add(int64(n))
		_ = unix.Sendto(c.socket.fd, w.buffer[:n], unix.MSG_NOSIGNAL, sockaddr(c.address)) // lost as on any network
	}
}

// retry sends the first datagram to another endpoint. Later ones are lost: whether an endpoint has
// acted on some of them is not known.
func (c *udpClient) retry(w *worker) {
	first := c.first
	c.attemptFailed(w)
	if c.answered {
		c.tried = nil // it had served the client: it has stopped since
	}
	if first != nil {
		c.send(w, first)
	}
}

// accepted notes that the endpoint has answered.
func (c *udpClient) accepted(w *worker) {
	c.forgetFirst(w)
	c.answered, c.tried = true, nil
	c.socket.port.success(c.endpoint)
}

func (c *udpClient) forgetFirst(w *worker) {
	w.proxy.retained.give(int64(len(c.first)))
	c.first = nil
}

// end forgets a client.
func (c *udpClient) end(w *worker) {
	c.disconnect(w)
	c.forgetFirst(w)
	w.clients[c.kind()].clients.Remove(c.place)
	delete(c.socket.clients, c.address)
	w.proxy.leaveUDP(c.socket.port)
}

// How long a client must be silent before its flow is forgotten, and how long it may wait for an answer until
// then.
const leaveAfter, leaveAtLast = 20 * time.Millisecond, time.Second

// leave ends the socket once its clients have the answers that they wait for. The kernel sends their next
// datagrams elsewhere.
func (s *udpSocket) leave(w *worker) {
	if s.fd >= 0 && !s.leaving {
		s.leaving = true
		w.leaving = append(w.leaving, s)
	}
}

// left ends the clients that wait for nothing, and then the socket. It reports whether that is done.
func (s *udpSocket) left(w *worker) bool {
	for _, c := range s.clients {
		if silent := w.now.Sub(c.active); silent < leaveAfter || c.waiting && silent < leaveAtLast {
			continue
		}
		if w.requests >= requestsAtOnce {
			w.more = true
			return false
		}
		c.forget(w)
	}
	if s.fd >= 0 && len(s.clients) == 0 {
		s.ready(w, s.fd, unix.EPOLLIN) // the last ones that the kernel has led here
		if w.requests >= requestsAtOnce {
			w.more = true
		} else if len(s.clients) == 0 {
			s.shut(w)
		}
	}
	return s.fd < 0
}

// forget ends a client whose next datagram begins a new flow. If its flow cannot be forgotten, the agent
// removes it with others that are stale.
func (c *udpClient) forget(w *worker) {
	if w.proxy.flows != nil {
		w.requests += 2 // it finds the flow, and deletes it
		_ = w.proxy.flows.Forget(c.address, c.socket.address)
	}
	c.end(w)
}

// shut ends a socket and its clients.
func (s *udpSocket) shut(w *worker) {
	if s.fd < 0 {
		return
	}
	for _, c := range s.clients {
		c.forget(w)
	}
	w.forget(s.fd)
	_ = unix.Close(s.fd)
	s.fd = -1
}
