package modes

import (
	"context"
	"sync"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// follow has the changes of one mode be followed from now on; empty: of none.
func (d *Dataplane) follow(mode v1alpha1.ProxyMode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if mode == d.runs {
		return
	}
	d.runs = mode
	close(d.changed)
	d.changed = make(chan struct{})
}

// running returns the plane that runs, nil for none, and what is closed when
// another one does.
func (d *Dataplane) running() (dataplane.Dataplane, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	plane, err := d.plane(d.runs)
	if err != nil {
		return nil, d.changed
	}
	return plane.Retirer, d.changed
}

// Follow implements dataplane.Observer: by the mode that runs, and besides while
// something is left of another one.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	var wg sync.WaitGroup
	wg.Go(func() { d.checkAgain(ctx, changed) })
	d.whileRunning(ctx, func(ctx context.Context, plane dataplane.Observer) { plane.Follow(ctx, changed) })
	wg.Wait()
}

// Watch implements dataplane.Observer: by the mode that runs.
func (d *Dataplane) Watch(ctx context.Context, changed func(dataplane.Change)) {
	d.whileRunning(ctx, func(ctx context.Context, plane dataplane.Observer) { plane.Watch(ctx, changed) })
}

// whileRunning calls do with the plane that runs, one after the other, until ctx
// is done. The context that do gets ends when another one does.
func (d *Dataplane) whileRunning(ctx context.Context, do func(context.Context, dataplane.Observer)) {
	for ctx.Err() == nil {
		plane, replaced := d.running()
		within, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if observer, ok := plane.(dataplane.Observer); ok {
			wg.Go(func() { do(within, observer) })
		}
		select {
		case <-ctx.Done():
		case <-replaced:
		}
		cancel()
		wg.Wait()
	}
}

// checkAgain calls changed retirePause after each Apply that has left something
// of another mode in the kernel.
func (d *Dataplane) checkAgain(ctx context.Context, changed func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.again:
		}
		timer := d.Clock.NewTimer(retirePause)
		select {
		case <-ctx.Done():
		case <-timer.C():
			changed()
		}
		timer.Stop()
	}
}
