package engine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Addresses tracks the addresses of the node's interfaces on which rules depend. The zero value
// is ready for use. Its methods are safe for concurrent use.
type Addresses struct {
	last atomic.Pointer[noted]
}

// noted is the basis of the last plan.
type noted struct {
	addresses []netip.Addr
	derive    func(interfaces []netip.Addr) []netip.Addr
}

// Note notes the addresses by which rules are planned: those that derive returns for those of
// interfaces.
func (a *Addresses) Note(addresses []netip.Addr, derive func(interfaces []netip.Addr) []netip.Addr) {
	a.last.Store(&noted{slices.Clone(addresses), derive})
}

// Changed reports whether these addresses have changed. Before the first Note they have not.
func (a *Addresses) Changed(read func() ([]netip.Addr, error)) bool {
	last := a.last.Load()
	if last == nil {
		return false
	}
	now, err := read()
	return err == nil && !slices.Equal(last.addresses, last.derive(now))
}

// Follow calls changed whenever these addresses have changed, until ctx is done.
func (a *Addresses) Follow(ctx context.Context, c clock.Clock, subscribe func(done <-chan struct{}) (<-chan struct{}, error), read func() ([]netip.Addr, error), changed func()) {
	look := func() {
		if a.Changed(read) {
			changed()
		}
	}
	s := dataplane.Subscription[struct{}]{
		Clock: c, Subscribe: subscribe,
		Begun:   func(bool) { look() }, // for earlier events
		Settled: look,
	}
	s.Follow(ctx)
}

// NodePortWarning warns, if a Service has a NodePort, that NodePorts answer nowhere.
func NodePortWarning(family dataplane.Family, ports dataplane.NodePorts, services map[dataplane.ServiceName]*dataplane.Service) string {
	where := ""
	if len(ports.Ranges) > 0 {
		where = fmt.Sprintf(" inside %v", ports.Ranges)
	}
	for _, s := range services {
		if slices.ContainsFunc(s.Ports, func(p dataplane.Port) bool { return p.NodePort != 0 }) {
			return fmt.Sprintf("NodePorts answer on no %s address: no interface of the node has an address%s; see spec.settings.nodePorts", family, where)
		}
	}
	return ""
}
