package pause

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// For waits for d, or until ctx is done. It reports whether it has waited for all of d.
func For(ctx context.Context, c clock.Clock, d time.Duration) bool {
	return Wake(nil).For(ctx, c, d)
}

// Forever lasts until a call of Up or the end of the context.
const Forever = time.Duration(-1)

// Wake ends pauses early.
type Wake chan struct{}

// NewWake returns a Wake for the pauses of one goroutine.
func NewWake() Wake { return make(Wake, 1) }

// Up ends the current pause, or else the next one. It never waits.
func (w Wake) Up() {
	select {
	case w <- struct{}{}:
	default: // the next pause ends already
	}
}

// For is like the function For, but also ends with Up.
func (w Wake) For(ctx context.Context, c clock.Clock, d time.Duration) bool {
	var due <-chan time.Time
	if d != Forever {
		timer := c.NewTimer(d)
		defer timer.Stop()
		due = timer.C()
	}
	select {
	case <-ctx.Done():
	case <-w:
	case <-due:
		return true
	}
	return false
}
