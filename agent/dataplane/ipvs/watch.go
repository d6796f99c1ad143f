package ipvs

import (
	"context"
	"iter"
	"net/netip"
	"sync"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

const (
	// countPause is the time between looks at the number of virtual servers. IPVS has
	// no events.
	countPause = 5 * time.Second
	// countShare bounds what the looks cost: the pause is so many times as long as the
	// look took. It matters for IPv6, see Kernel.Count.
	countShare = 100
)

// watched is the desired state of the kernel, as far as it is watched. It is unknown
// while one of our own calls changes it.
type watched struct {
	mu    sync.Mutex // guards everything below
	known bool
	bound map[netip.Addr]struct{}
	// ours counts our virtual servers, all those of others too; -1: not known.
	ours, all int
}

// pause says that we are about to change what the kernel has.
func (w *watched) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = false
}

// replace says which addresses should be bound from now on.
func (w *watched) replace(bound iter.Seq[netip.Addr]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bound = map[netip.Addr]struct{}{}
	for a := range bound {
		w.bound[a] = struct{}{}
	}
}

// change says which addresses should be bound besides, and which no longer, and
// how many virtual servers more there should be.
func (w *watched) change(bound, unbound []netip.Addr, servers int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all >= 0 {
		w.all += servers
	}
	for _, a := range bound {
		w.bound[a] = struct{}{}
	}
	for _, a := range unbound {
		delete(w.bound, a)
	}
}

// resume says that the kernel has what it should, and how many virtual servers
// of ours that are.
func (w *watched) resume(servers int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known, w.ours = true, servers
}

// recount takes the number of virtual servers for what it should be, after a
// look.
func (w *watched) recount(k Kernel) {
	all, counted := k.Count()
	if again, known := k.Count(); counted && known {
		all = max(all, again) // one may have missed some
	} else {
		all = -1
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = all
}

// gone tells whether an event is about something of ours that should be there.
func (w *watched) gone(e Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.known || !e.Device || !e.Removed {
		return false
	}
	if !e.Addr.IsValid() {
		return len(w.bound) > 0
	}
	_, ours := w.bound[e.Addr]
	return ours
}

// lacks reports whether a number of virtual servers is less than it was.
func (w *watched) lacks(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known && n < w.all
}

// counted takes the number of virtual servers. It reports whether there are fewer
// than there were, and whether some of ours must be among those.
func (w *watched) counted(n int) (fewer, sure bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.known || w.all < 0 || n >= w.all {
		return false, false
	}
	// With no virtual servers of others before, it is ours that are missing.
	sure = n < w.ours || w.ours == w.all
	w.all = n
	return true, sure
}

// Watch implements dataplane.Observer: by what Rules tell, by the events of
// kube-ipvs0, and by a look at the number of virtual servers from time to time.
// It begins after the first successful Apply.
func (d *Dataplane) Watch(ctx context.Context, changed func(dataplane.Change)) {
	select {
	case <-ctx.Done():
		return
	case <-d.engine.Begun():
	}
	var wg sync.WaitGroup
	wg.Go(func() { d.rules.Watch(ctx, changed) })
	wg.Go(func() { d.watchCount(ctx, changed) })
	d.watchDevice(ctx, changed)
	wg.Wait()
}

func (d *Dataplane) watchCount(ctx context.Context, changed func(dataplane.Change)) {
	for pause := countPause; ; {
		timer := d.clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		}
		begin := d.clock.Now()
		n, known := d.kernel.Count()
		pause = max(countPause, countShare*d.clock.Since(begin))
		if !known {
			continue
		}
		if d.watched.lacks(n) {
			again, _ := d.kernel.Count() // the first may have missed some
			n = max(n, again)
		}
		if fewer, sure := d.watched.counted(n); fewer {
			changed(dataplane.Change{Sure: sure})
		}
	}
}

// watchDevice tells of addresses that somebody takes off kube-ipvs0, and of its
// end.
func (d *Dataplane) watchDevice(ctx context.Context, changed func(dataplane.Change)) {
	s := dataplane.Subscription[Event]{
		Clock: d.clock, Subscribe: d.kernel.Events,
		Begun: func(missed bool) {
			if missed {
				changed(dataplane.Change{})
			}
		},
		Event: func(e Event) {
			if d.watched.gone(e) {
				changed(dataplane.Change{Sure: true})
			}
		},
	}
	s.Follow(ctx)
}
