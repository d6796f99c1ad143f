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
	planes map[dataplane.Family]*Dataplane
}

// NewHost joins the kernel's data planes with a proxy.
func NewHost(kernel map[dataplane.Family]Kernel, o Options) *Host {
	h := &Host{Proxy: New(o), planes: map[dataplane.Family]*Dataplane{}}
	for family, plane := range kernel {
		h.planes[family] = Redirect(family, plane, h.Proxy)
	}
	return h
}

// Dataplanes returns the data planes by IP family.
func (h *Host) Dataplanes() map[dataplane.Family]dataplane.Dataplane {
	out := map[dataplane.Family]dataplane.Dataplane{}
	for family, plane := range h.planes {
		out[family] = plane
	}
	return out
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
