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

// Addresses tracks the addresses of the node's interfaces, as far as rules depend on them. The
// zero value is ready for use. Its methods may be called from several goroutines.
type Addresses struct {
	last atomic.Pointer[noted]
}

// noted is what rules were last planned by.
type noted struct {
	addresses []netip.Addr
	derive    func(interfaces []netip.Addr) []netip.Addr
}

// Note notes what rules are planned by: the addresses that derive makes of those of interfaces.
func (a *Addresses) Note(addresses []netip.Addr, derive func(interfaces []netip.Addr) []netip.Addr) {
	a.last.Store(&noted{slices.Clone(addresses), derive})
}

// Changed reports whether rules would be planned by other addresses now. Before the first Note
// they would not.
func (a *Addresses) Changed(read func() ([]netip.Addr, error)) bool {
	last := a.last.Load()
	if last == nil {
		return false
	}
	now, err := read()
	return err == nil && !slices.Equal(last.addresses, last.derive(now))
}

// Follow calls changed whenever rules have to be planned by other addresses, until ctx is done.
func (a *Addresses) Follow(ctx context.Context, c clock.Clock, subscribe func(done <-chan struct{}) (<-chan struct{}, error), read func() ([]netip.Addr, error), changed func()) {
	dataplane.FollowEvents(ctx, c, subscribe, func() {
		if a.Changed(read) {
			changed()
		}
	})
}

// NodePortWarning says that NodePorts answer nowhere, where a Service has one.
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
