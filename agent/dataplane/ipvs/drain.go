package ipvs

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

// drain notes that a real server drains.
func (d *Dataplane) drain(k Key, real netip.AddrPort) {
	now := d.clock.Now()
	d.draining.begin(k, real, now)
	d.lookMu.Lock()
	none := d.nextLook.IsZero()
	d.lookMu.Unlock()
	if none {
		d.lookNext(now.Add(drainLook))
	}
}

// lookNext sets when draining real servers are looked at next; zero: never.
func (d *Dataplane) lookNext(at time.Time) {
	d.lookMu.Lock()
	d.nextLook = at
	d.lookMu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default: // it is looked at anyway
	}
}

// lookAt returns when draining real servers are looked at next; zero: never.
func (d *Dataplane) lookAt() time.Time {
	d.lookMu.Lock()
	defer d.lookMu.Unlock()
	return d.nextLook
}

// lookAtDrains deletes the real servers that have drained, if it is time to look.
// It reads only the virtual servers that have draining ones.
func (d *Dataplane) lookAtDrains(ctx context.Context) error {
	now := d.clock.Now()
	if at := d.lookAt(); at.IsZero() || now.Before(at) {
		return nil
	}
	for k, reals := range d.draining {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("look at draining real servers: %w", err)
		}
		have, err := d.kernel.Reals(k)
		if err != nil {
			return err
		}
		for real, until := range reals {
			if !drained(have[real], until, now) {
				continue
			}
			if err := d.kernel.DeleteReal(k, real); err != nil {
				return err
			}
			d.draining.end(k, real)
		}
	}
	if len(d.draining) == 0 {
		now = time.Time{}
	} else {
		now = now.Add(drainLook)
	}
	d.lookNext(now)
	return nil
}

// followDrains calls changed when it is time to look at draining real servers,
// until ctx is done.
func (d *Dataplane) followDrains(ctx context.Context, changed func()) {
	for d.waitForLook(ctx) {
		changed()
		// Until an Apply has looked and says when next.
		select {
		case <-ctx.Done():
		case <-d.wake:
		case <-d.clock.After(drainLook):
		}
	}
}

// waitForLook waits until it is time to look. It returns false when ctx is done.
func (d *Dataplane) waitForLook(ctx context.Context) bool {
	for ctx.Err() == nil {
		at := d.lookAt()
		if at.IsZero() {
			select {
			case <-ctx.Done():
			case <-d.wake:
			}
			continue
		}
		left := at.Sub(d.clock.Now())
		if left <= 0 {
			return true
		}
		timer := d.clock.NewTimer(left)
		select {
		case <-ctx.Done():
		case <-d.wake:
		case <-timer.C():
		}
		timer.Stop()
	}
	return false
}
