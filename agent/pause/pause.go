// Package pause waits for a time or for the end of a context, whichever comes first.
package pause

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

// For waits for d, or until ctx is done. It reports whether it has waited for all of d.
func For(ctx context.Context, c clock.Clock, d time.Duration) bool {
	timer := c.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}
