package dataplane

import (
	"context"
	"sync"
)

// Change is a sign that somebody else may have changed what an Apply left in
// the kernel.
type Change struct {
	// By is who did it, for people, as far as the kernel tells; empty: unknown.
	By string
	// Sure: something is gone from what is ours, though it may have been added by
	// others before. Otherwise it takes a Verify to tell.
	Sure bool
}

// Watcher is a Dataplane that notices changes by others as they happen, at
// next to no cost while others change what is not ours.
type Watcher interface {
	// Watch calls changed whenever somebody else may have changed what the last
	// Apply left in the kernel, until ctx is done. What our own calls change does
	// not count. It may run beside the other methods.
	Watch(ctx context.Context, changed func(Change))
}

// Watch calls changed whenever somebody else may have changed what a family's
// last Apply left in the kernel, until ctx is done; see Watcher.
func (f *Fanout) Watch(ctx context.Context, changed func(Family, Change)) {
	var wg sync.WaitGroup
	for family, d := range f.byFamily {
		if watcher, ok := d.(Watcher); ok {
			wg.Go(func() { watcher.Watch(ctx, func(c Change) { changed(family, c) }) })
		}
	}
	wg.Wait()
}
