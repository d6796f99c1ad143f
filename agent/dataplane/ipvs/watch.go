package ipvs

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

const (
	// countPause is the time between counts of virtual servers. IPVS has no events.
	countPause = 5 * time.Second
	// countShare bounds the cost of counting: the pause is so many times as long as the
	// count. It matters for IPv6, see Kernel.Count.
	countShare = 100
)

// watched is the watched part of the desired state. It is unknown while one of our own calls
// changes it.
type watched struct {
	mu    sync.Mutex // guards everything below
	known bool
	bound sets.Set[netip.Addr]
	// ours counts our virtual servers, all includes those of others; -1: unknown.
	ours, all int
}

// pause is called before we change the kernel.
func (w *watched) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known = false
}

// replace sets the addresses that must be bound.
func (w *watched) replace(bound iter.Seq[netip.Addr]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bound = sets.Set[netip.Addr]{}
	w.bound.Insert(slices.Collect(bound)...)
}

// change adds and removes addresses that must be bound, and adds to the number of virtual
// servers.
func (w *watched) change(bound, unbound []netip.Addr, servers int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all >= 0 {
		w.all += servers
	}
	w.bound.Insert(bound...)
	w.bound.Delete(unbound...)
}

// resume is called when the kernel has the desired state, with the number of our virtual
// servers.
func (w *watched) resume(servers int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known, w.ours = true, servers
}

// recount sets the number of virtual servers to that in the kernel.
func (w *watched) recount(k Kernel) {
	all := -1
	first, known := k.Count()
	if again, still := k.Count(); known && still {
		all = max(first, again) // one may have missed some
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = all
}

// gone reports whether an event removed something that must be there.
func (w *watched) gone(e Event) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.known || !e.Device || !e.Removed {
		return false
	}
	if !e.Addr.IsValid() {
		return len(w.bound) > 0
	}
	return w.bound.Has(e.Addr)
}

// lacks reports whether there are fewer virtual servers than before.
func (w *watched) lacks(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.known && n < w.all
}

// counted sets the number of virtual servers. It reports whether there are fewer than before,
// and whether some of ours must be among the missing ones.
func (w *watched) counted(n int) (fewer, sure bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.known || n >= w.all {
		return false, false
	}
	sure = n < w.ours || w.ours == w.all
	w.all = n
	return true, sure
}

// Watch implements dataplane.Observer: by Rules, by events of kube-ipvs0, and by counting
// virtual servers. It begins after the first successful Apply.
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
	for wait := countPause; pause.For(ctx, d.clock, wait); {
		begin := d.clock.Now()
		n, known := d.kernel.Count()
		wait = max(countPause, countShare*d.clock.Since(begin))
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

// watchDevice reports removed addresses of kube-ipvs0, and its deletion.
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

// noteAddresses notes the addresses by which the rules are planned.
func (d *Dataplane) noteAddresses(c *config) {
	d.nodePorts, d.answering = c.nodePorts, c.nodePortIPs
	nodePorts := c.nodePorts
	both := func(c *config) []netip.Addr { return slices.Concat(c.addresses, []netip.Addr{{}}, c.nodePortIPs) }
	d.addresses.Note(both(c), func(interfaces []netip.Addr) []netip.Addr {
		now := &config{family: d.family, nodePorts: nodePorts}
		now.setAddresses(interfaces)
		return both(now)
	})
}

// Follow implements dataplane.Observer: it calls changed when NodePorts must answer on other
// addresses, when another interface gets or loses an address of a Service, and when a check
// of draining real servers is due.
func (d *Dataplane) Follow(ctx context.Context, changed func()) {
	var wg sync.WaitGroup
	wg.Go(func() { d.followDrains(ctx, changed) })
	d.addresses.Follow(ctx, d.clock, d.subscribe, d.kernel.Addresses, changed)
	wg.Wait()
}

// subscribe reports changes of the addresses of interfaces other than kube-ipvs0.
func (d *Dataplane) subscribe(done <-chan struct{}) (<-chan struct{}, error) {
	events, err := d.kernel.Events(done)
	if err != nil {
		return nil, err
	}
	out := make(chan struct{})
	go func() {
		defer close(out)
		for e := range events {
			if !e.Device {
				out <- struct{}{}
			}
		}
	}()
	return out, nil
}
