package userspace

import (
	"container/list"
	"net/netip"
	"time"
)

// maxClients is how many clients of one port stay with their endpoints: of more, those that have been
// silent longest lose theirs.
const maxClients = 10_000

// affinity remembers which endpoint a client stays with. A nil one remembers nothing.
type affinity struct {
	timeout time.Duration // without a new connection
	clients map[netip.Addr]*list.Element
	recent  *list.List // of *client, the most recent one first
}

type client struct {
	address  netip.Addr
	endpoint *endpoint
	last     time.Time
}

// within returns the same clients with another timeout; 0: none.
func (a *affinity) within(timeout time.Duration) *affinity {
	switch {
	case timeout == 0:
		return nil
	case a == nil:
		a = &affinity{clients: map[netip.Addr]*list.Element{}, recent: list.New()}
	}
	a.timeout = timeout
	return a
}

// of returns the endpoint of a client; nil: it has none.
func (a *affinity) of(address netip.Addr, now time.Time) *endpoint {
	if a == nil {
		return nil
	}
	a.expire(now)
	if element := a.clients[address]; element != nil {
		return element.Value.(*client).endpoint
	}
	return nil
}

// stay notes that a client uses an endpoint.
func (a *affinity) stay(address netip.Addr, e *endpoint, now time.Time) {
	if a == nil {
		return
	}
	if element := a.clients[address]; element != nil {
		c := element.Value.(*client)
		c.endpoint, c.last = e, now
		a.recent.MoveToFront(element)
		return
	}
	if len(a.clients) >= maxClients {
		a.remove(a.recent.Back())
	}
	a.clients[address] = a.recent.PushFront(&client{address, e, now})
}

func (a *affinity) expire(now time.Time) {
	for element := a.recent.Back(); element != nil && now.Sub(element.Value.(*client).last) >= a.timeout; element = a.recent.Back() {
		a.remove(element)
	}
}

func (a *affinity) remove(element *list.Element) {
	delete(a.clients, element.Value.(*client).address)
	a.recent.Remove(element)
}
