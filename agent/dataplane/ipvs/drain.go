package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

const (
	// drainLook is the time between checks of draining real servers.
	drainLook = 10 * time.Second
	// drainBound is how long a real server may drain: as long as IPVS by default remembers
	// an idle TCP session.
	drainBound = 15 * time.Minute
)

// drains are the draining real servers, by virtual server, with the time until which they
// may. They get no new connections, and are deleted once they have none.
type drains map[Key]map[netip.AddrPort]time.Time

// end notes that a real server does not drain any more.
func (d drains) end(k Key, real netip.AddrPort) {
	delete(d[k], real)
	if len(d[k]) == 0 {
		delete(d, k)
	}
}

// has reports whether a real server drains.
func (d drains) has(k Key, real netip.AddrPort) bool {
	_, found := d[k][real]
	return found
}

func (d drains) count() int {
	n := 0
	for _, reals := range d {
		n += len(reals)
	}
	return n
}

// drain notes that a real server drains.
func (d *Dataplane) drain(k Key, real netip.AddrPort) {
	if d.draining.has(k, real) {
		return
	}
	now := d.clock.Now()
	if d.draining[k] == nil {
		d.draining[k] = map[netip.AddrPort]time.Time{}
	}
	d.draining[k][real] = now.Add(drainBound)
	if d.nextLook.IsZero() {
		d.lookNext(now.Add(drainLook))
	}
}

// drains reports whether a real server that is not desired drains as it should.
func (d *Dataplane) drains(k Key, real netip.AddrPort, r Real) bool {
	return r.Weight == 0 && d.draining.has(k, real)
}

// forgetDrains leaves draining real servers to the program that reads the kernel next.
func (d *Dataplane) forgetDrains() {
	clear(d.draining)
	d.lookNext(time.Time{})
}

// lookNext sets when draining real servers are checked next; zero: never.
func (d *Dataplane) lookNext(at time.Time) {
	d.nextLook = at
	for {
		select {
		case d.looks <- at:
			return
		case <-d.looks: // replaces what followDrains has not seen
		}
	}
}

// lookAtDrains deletes the real servers that have drained, if the check is due. It reads
// only the virtual servers that have draining ones.
func (d *Dataplane) lookAtDrains(ctx context.Context) error {
	now := d.clock.Now()
	if d.nextLook.IsZero() || now.Before(d.nextLook) {
		return nil
	}
	for k, reals := range d.draining {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("check draining real servers: %w", err)
		}
		have, err := d.kernel.Reals(k)
		if err != nil {
			return err
		}
		for real, until := range reals {
			if have[real].connections() > 0 && now.Before(until) {
				continue
			}
			if err := d.kernel.DeleteReal(k, real); err != nil {
				return err
			}
			d.draining.end(k, real)
		}
	}
	if len(d.draining) == 0 {
		d.lookNext(time.Time{})
	} else {
		d.lookNext(now.Add(drainLook))
	}
	return nil
}

// followDrains calls changed when draining real servers are to be checked, until ctx is
// done. The Apply that follows sets the next time.
func (d *Dataplane) followDrains(ctx context.Context, changed func()) {
	var next time.Time
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			select {
			case d.looks <- next: // for the next call
			default:
			}
			return
		case next = <-d.looks:
			due = nil
			switch left := next.Sub(d.clock.Now()); {
			case next.IsZero():
			case left > 0:
				due = d.clock.After(left)
			default:
				changed()
			}
		case <-due:
			next, due = time.Time{}, nil
			changed()
		}
	}
}
