package cluster

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Place is a network namespace of a cluster: a node, a pod, the control plane
// or the client outside. What is done from it meets the rules and routes there.
type Place struct {
	name    string // human-readable
	netns   string // under /run/netns
	space   *space
	cluster *Cluster
}

// space is an open network namespace. It may be closed while others use it.
type space struct {
	mu     sync.RWMutex // guards handle
	handle netns.NsHandle
}

// use calls f, which has to be quick, with the namespace kept open.
func (s *space) use(f func(ns netns.NsHandle) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.handle.IsOpen() {
		return errors.New("it is removed already")
	}
	return f(s.handle)
}

// open takes the handle of a namespace, in the place of one that is closed.
func (s *space) open(handle netns.NsHandle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = handle
}

// close gives the handle back; a handle keeps the kernel from freeing the
// namespace.
func (s *space) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle.IsOpen() {
		_ = s.handle.Close()
	}
}

// Name returns the place's name: that of the Node or Pod object, "outside" or
// "control-plane".
func (p *Place) Name() string { return p.name }

// Cluster returns the cluster that the place is in.
func (p *Place) Cluster() *Cluster { return p.cluster }

// Namespace returns the name of the network namespace, as `ip netns exec`
// takes it.
func (p *Place) Namespace() string { return p.netns }

// Do calls f inside the place's network namespace. Sockets that f opens and
// processes that it starts belong there; goroutines that f starts do not.
func (p *Place) Do(f func() error) error {
	return inThread(func() error { return p.visit(f) })
}

// inThread calls f on a locked thread and gives the thread back if it is still
// in the namespace it came from.
func inThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := f()
		if !errors.Is(err, errLost) {
			runtime.UnlockOSThread() // else the thread ends with this goroutine
		}
		result <- err
	}()
	return <-result
}

// errLost means that a thread could not return to its network namespace.
var errLost = errors.New("thread is in the wrong network namespace")

// visit calls f with the current thread, which must be locked, inside the place.
func (p *Place) visit(f func() error) error {
	return returning(func() error {
		if err := p.space.use(netns.Set); err != nil {
			return fmt.Errorf("entering network namespace %s: %w", p.netns, err)
		}
		return f()
	})
}

// returning calls f, which changes the network namespace of the current thread,
// and goes back.
func returning(f func() error) error {
	origin, err := netns.Get()
	if err != nil {
		return fmt.Errorf("finding the own network namespace: %w", err)
	}
	defer origin.Close()
	err = f()
	if back := netns.Set(origin); back != nil {
		return errors.Join(err, errLost, back)
	}
	return err
}

// newPlace creates a network namespace with its loopback up.
func (c *Cluster) newPlace(name, suffix string) (*Place, error) {
	p := &Place{name: name, netns: c.slot.prefix() + suffix, cluster: c, space: &space{handle: netns.None()}}
	err := c.make(func() error {
		err := inThread(func() error {
			return returning(func() (err error) {
				p.space.handle, err = newNamespace(p.netns)
				return err
			})
		})
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.places = append(c.places, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("creating network namespace %s: %w", p.netns, err)
	}
	if err := p.setSysctls(ipv6Sysctls); err != nil {
		return nil, err
	}
	return p, p.links(func(h *netlink.Handle) error { return setUp(h, "lo") })
}

// ipv6Sysctls hold for all links that a place gets. Some container runtimes
// switch IPv6 off in the namespace that new ones are modeled on. Addresses and
// routes come from us alone, and at once.
var ipv6Sysctls = map[string]string{
	"net/ipv6/conf/all/disable_ipv6":             "0",
	"net/ipv6/conf/default/disable_ipv6":         "0",
	"net/ipv6/conf/lo/disable_ipv6":              "0",
	"net/ipv6/conf/default/accept_dad":           "0",
	"net/ipv6/conf/default/accept_ra":            "0",
	"net/ipv6/conf/default/accept_redirects":     "0",
	"net/ipv6/conf/default/router_solicitations": "0",
}

// links calls f with a netlink handle of the place.
func (p *Place) links(f func(h *netlink.Handle) error) error {
	var h *netlink.Handle
	err := p.space.use(func(ns netns.NsHandle) (err error) {
		h, err = netlink.NewHandleAt(ns)
		return err
	})
	if err != nil {
		return fmt.Errorf("opening netlink in %s: %w", p.netns, err)
	}
	defer h.Close()
	if err := f(h); err != nil {
		return fmt.Errorf("in network namespace %s: %w", p.netns, err)
	}
	return nil
}

// close gives back the handle and the name of the place's namespace.
func (p *Place) close() error {
	p.space.close()
	return deleteNamespace(p.netns)
}

// PlaceOf returns the network namespace of a process, such as one of a real pod,
// as a place. Release gives it back.
func (c *Cluster) PlaceOf(name string, pid int) (*Place, error) {
	p := &Place{name: name, netns: fmt.Sprintf("that of process %d", pid), cluster: c, space: &space{handle: netns.None()}}
	err := c.make(func() (err error) {
		p.space.handle, err = netns.GetFromPid(pid)
		if err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.places = append(c.places, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace of %s, process %d: %w", name, pid, err)
	}
	return p, nil
}

// Release gives back a place that PlaceOf has returned, which keeps the kernel
// from freeing the namespace.
func (p *Place) Release() {
	p.cluster.forget(p)
	p.space.close()
}
