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
	return d.planes[d.runs], d.changed
}

// Follow implements dataplane.Follower: by the mode that runs, and besides while
// something is left of another one.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	var wg sync.WaitGroup
	wg.Go(func() { d.lookAgain(ctx, changed) })
	d.whileRunning(ctx, func(ctx context.Context, plane dataplane.Dataplane) {
		if follower, ok := plane.(dataplane.Follower); ok {
			follower.Follow(ctx, changed)
		}
	})
	wg.Wait()
}

// Watch implements dataplane.Watcher: by the mode that runs.
func (d *Dataplane) Watch(ctx context.Context, changed func(dataplane.Change)) {
	d.whileRunning(ctx, func(ctx context.Context, plane dataplane.Dataplane) {
		if watcher, ok := plane.(dataplane.Watcher); ok {
			watcher.Watch(ctx, changed)
		}
	})
}

// whileRunning calls do with the plane that runs, one after the other, until ctx
// is done. The context that do gets ends when another one does.
func (d *Dataplane) whileRunning(ctx context.Context, do func(context.Context, dataplane.Dataplane)) {
	for ctx.Err() == nil {
		plane, replaced := d.running()
		within, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		if plane != nil {
			wg.Go(func() { do(within, plane) })
		}
		select {
		case <-ctx.Done():
		case <-replaced:
		}
		cancel()
		wg.Wait()
	}
}

// lookAgain calls changed retirePause after each Apply that has left something
// of another mode in the kernel.
func (d *Dataplane) lookAgain(ctx context.Context, changed func()) {
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
