package userspace

import (
	"bytes"
	"container/list"
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// udpIdle is how long a silent client of UDP keeps its endpoint: before the first answer, and from then
// on. It is shorter than what the kernel tracks its flow for (nf_conntrack_udp_timeout and
// nf_conntrack_udp_timeout_stream), so that a client never comes back as another one.
var udpIdle = [...]time.Duration{25 * time.Second, 115 * time.Second}

// datagramsAtOnce is how many datagrams of a socket are forwarded before it is the turn of others.
const datagramsAtOnce = 64

// udpSocket is where the kernel sends the datagrams of one port by one policy.
type udpSocket struct {
	fd      int
	address netip.AddrPort
	port    *port
	policy  policy
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
	last     time.Time
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
	if flows := w.proxy.flows; flows != nil {
		if to, err := flows.Original(from, s.address); err != nil || to == s.address {
			w.proxy.notRedirected.Add(1)
			return nil
		}
	}
	if why, ok := w.proxy.admit(s.port); !ok {
		s.port.rejected[why].Add(1)
		return nil
	}
	c := &udpClient{socket: s, address: from, fd: -1}
	if w.proxy.retained.take(int64(len(datagram)), maxRetained) {
		c.first = bytes.Clone(datagram)
	}
	s.port.connections.Add(1)
	s.clients[from] = c
	c.last = w.now
	c.place = w.clients[0].clients.PushBack(c)
	return c
}

// touch notes that a client is active.
func (c *udpClient) touch(w *worker) {
	if w.now.Sub(c.last) < time.Second {
		return
	}
	c.last = w.now
	w.clients[c.kind()].clients.MoveToBack(c.place)
}

// kind is the index of its list.
func (c *udpClient) kind() int {
	if c.answered {
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
	e := w.proxy.pick(p, c.socket.policy, c.address.Addr(), c.tried, w.now)
	if e == nil || len(c.tried) >= maxAttempts {
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
	c.socket.port.failure(c.endpoint, w.now)
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
	w.clients[0].clients.Remove(c.place)
	c.answered, c.tried, c.last = true, nil, w.now
	c.place = w.clients[1].clients.PushBack(c)
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
	w.proxy.leave(c.socket.port)
}

// forgetClients ends all clients, whose flows begin anew. If one cannot be forgotten, the next agent removes it.
func (s *udpSocket) forgetClients(w *worker) {
	for address, c := range s.clients {
		if w.proxy.flows != nil {
			_ = w.proxy.flows.Forget(address, s.address)
		}
		c.end(w)
	}
}

// shut ends a socket and its clients.
func (s *udpSocket) shut(w *worker) {
	for _, c := range s.clients {
		c.end(w)
	}
	w.forget(s.fd)
	_ = unix.Close(s.fd)
}
