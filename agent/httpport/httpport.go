package httpport

import (
	"container/list"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Limits of one connection. Probes and scrapes take milliseconds; with the idle limit, a scraper
// that comes every minute keeps its connection.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 20 * time.Second
	idleTimeout    = 90 * time.Second
	maxHeaderBytes = 16 << 10
)

// Limit bounds how many connections are open, at one port or at several together. One too many is
// accepted, and closes the connection that has waited longest of the client with most
// connections. If it waited instead, as with netutil.LimitListener, a client with all connections
// could block others.
type Limit struct {
	most int

	mu      sync.Mutex // guards everything below, and the element of each connection
	open    *list.List // of *connection, in order of their last answer
	clients map[netip.Addr]int
}

// NewLimit returns a limit of a number of connections.
func NewLimit(most int) *Limit {
	return &Limit{most: most, open: list.New(), clients: map[netip.Addr]int{}}
}

// Server serves connections that a Limit counts.
type Server struct {
	limit *Limit
	http  http.Server
}

// NewServer returns a server. Servers may share a limit.
func NewServer(limit *Limit, handler http.Handler) *Server {
	return &Server{limit: limit, http: http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ConnState: func(c net.Conn, state http.ConnState) {
			if answered, ok := c.(*connection); ok && state == http.StateIdle {
				limit.renew(answered)
			}
		},
	}}
}

// Serve serves until the server is closed; then it returns http.ErrServerClosed.
func (s *Server) Serve(listener net.Listener) error {
	return s.http.Serve(&counted{Listener: listener, limit: s.limit})
}

// Close closes the listeners and all connections.
func (s *Server) Close() error { return s.http.Close() }

// counted is a listener whose connections a limit counts.
type counted struct {
	net.Listener
	limit *Limit
}

// Accept returns the next connection.
func (l *counted) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: accepted, limit: l.limit}
	if address, ok := accepted.RemoteAddr().(*net.TCPAddr); ok {
		c.client = address.AddrPort().Addr().Unmap()
	}
	for _, surplus := range l.limit.add(c) {
		_ = surplus.Conn.Close() // it no longer serves, even with an error
	}
	return c, nil
}

// connection is one that a limit counts.
type connection struct {
	net.Conn
	limit   *Limit
	client  netip.Addr
	element *list.Element // nil once it no longer counts
}

// Close closes the connection, which no longer counts then.
func (c *connection) Close() error {
	c.limit.mu.Lock()
	c.limit.remove(c)
	c.limit.mu.Unlock()
	return c.Conn.Close()
}

// add counts a connection, and returns those that no longer count instead.
func (l *Limit) add(c *connection) []*connection {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.element = l.open.PushBack(c)
	l.clients[c.client]++
	var surplus []*connection
	for l.open.Len() > l.most {
		oldest := l.oldest()
		l.remove(oldest)
		surplus = append(surplus, oldest)
	}
	return surplus
}

// oldest returns the connection to close next, if there is any. The caller holds mu.
func (l *Limit) oldest() *connection {
	most := slices.Max(slices.Collect(maps.Values(l.clients)))
	for e := l.open.Front(); e != nil; e = e.Next() {
		if c, ok := e.Value.(*connection); ok && l.clients[c.client] == most {
			return c
		}
	}
	return nil
}

// remove makes a connection no longer count. The caller holds mu.
func (l *Limit) remove(c *connection) {
	if c.element == nil {
		return
	}
	l.open.Remove(c.element)
	c.element = nil
	if l.clients[c.client]--; l.clients[c.client] == 0 {
		delete(l.clients, c.client)
	}
}

// renew records an answer to a connection.
func (l *Limit) renew(c *connection) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.element != nil {
		l.open.MoveToBack(c.element)
	}
}
