// Package pause waits for a time or for the end of a context, whichever comes first.
package pause

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// For waits for d, or until ctx is done. It reports whether it has waited for all of d.
func For(ctx context.Context, c clock.Clock, d time.Duration) bool {
	return Until(ctx, c, d, nil) == Elapsed
}

// Reason is why a pause has ended.
type Reason int

// Reasons.
const (
	Elapsed Reason = iota
	Woken
	Done
)

// Until waits for d, or until something arrives on wake, or ctx is done.
func Until(ctx context.Context, c clock.Clock, d time.Duration, wake <-chan struct{}) Reason {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return Done
	case <-wake:
		return Woken
	case <-timer.C():
		return Elapsed
	}
}

// Wake wakes a pause on a channel with room for one, or the next one on it.
func Wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is there already
	}
}
