package userspace

import (
	"context"
	"errors"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Host is the userspace proxy of a node with the data planes that redirect to it.
type Host struct {
	*Proxy
	// Dataplanes are those by IP family.
	Dataplanes map[dataplane.Family]dataplane.Dataplane
	planes     []*Dataplane // the same
}

// NewHost joins the kernel's data planes with a proxy.
func NewHost[K Kernel](kernel map[dataplane.Family]K, o Options) *Host {
	h := &Host{Proxy: New(o), Dataplanes: map[dataplane.Family]dataplane.Dataplane{}}
	for family, plane := range kernel {
		redirecting := Redirect(family, plane, h.Proxy)
		h.Dataplanes[family], h.planes = redirecting, append(h.planes, redirecting)
	}
	return h
}

// LeaveToKernel has the kernel serve all Services alone, so that new connections do not need the proxy any
// more. It is called after the last Apply.
func (h *Host) LeaveToKernel(ctx context.Context) error {
	var errs []error
	for _, plane := range h.planes {
		errs = append(errs, plane.leaveToKernel(ctx))
	}
	h.endUDP()
	return errors.Join(errs...)
}

// drainPause is the time between two looks at how many connections are left.
const drainPause = 100 * time.Millisecond

// Drain returns once the proxy has no connections, or ctx is done.
func (h *Host) Drain(ctx context.Context, clk clock.WithTicker) {
	tick := clk.NewTicker(drainPause)
	defer tick.Stop()
	for h.Open() > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
	}
}
