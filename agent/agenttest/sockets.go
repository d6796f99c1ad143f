package agenttest

import (
	"net/netip"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/sockets"
)

// Sockets are sockets that the test makes up. The last entry stays.
type Sockets struct {
	mu        sync.Mutex
	Listeners []*sockets.Listener // as one look after the other finds them
	Elsewhere bool                // the server's end of connections
	Err       error
}

// RootsSockets has every port be root's, whichever user runs the tests.
func RootsSockets() *Sockets { return &Sockets{Listeners: []*sockets.Listener{{Cookie: 1}}} }

// Listening returns the listeners one after the other; the last one stays.
func (o *Sockets) Listening(netip.AddrPort) (*sockets.Listener, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	l := o.Listeners[0]
	if len(o.Listeners) > 1 {
		o.Listeners = o.Listeners[1:]
	}
	return l, o.Err
}

// Here reports whether the peer of a connection is in this network namespace.
func (o *Sockets) Here(_, _ netip.AddrPort) (bool, error) { return !o.Elsewhere, nil }

// Holder returns the next listener, as Listening does.
func (o *Sockets) Holder(at netip.AddrPort) (*sockets.Listener, error) { return o.Listening(at) }
