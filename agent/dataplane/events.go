package dataplane

import (
	"context"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

const (
	// settlePause is how long to wait for more events after one. A pod that starts causes
	// several changes of addresses.
	settlePause = 250 * time.Millisecond
	// subscribePause is the time between attempts to subscribe. It doubles with each failure,
	// up to maxSubscribePause.
	subscribePause    = time.Second
	maxSubscribePause = time.Minute
)

// Subscription receives events of the kernel, and resubscribes when the subscription ends.
type Subscription[E any] struct {
	// Clock times the pauses.
	Clock clock.Clock
	// Subscribe returns a channel of events that it closes when done is closed, or earlier if
	// the subscription ends, for example because the kernel's buffer overflows. Then it is
	// called again.
	Subscribe func(done <-chan struct{}) (<-chan E, error)
	// Begun, if not nil, is called at the beginning of each subscription. Missed: since Follow
	// was called there was a time without one.
	Begun func(missed bool)
	// Event, if not nil, is called for each event.
	Event func(E)
	// Settled, if not nil, is called settlePause after an event, once for all events
	// meanwhile.
	Settled func()
}

// Follow calls the subscription's functions until ctx is done. A failed subscription is no
// error: verifications find what has changed.
func (s *Subscription[E]) Follow(ctx context.Context) {
	wait := subscribePause
	for missed := false; ctx.Err() == nil; missed = true {
		next := min(2*wait, maxSubscribePause)
		if s.once(ctx, missed) {
			wait, next = subscribePause, subscribePause
		}
		pause.For(ctx, s.Clock, wait)
		wait = next
	}
}

// once follows one subscription, and reports whether there was one.
func (s *Subscription[E]) once(ctx context.Context, missed bool) bool {
	done := make(chan struct{})
	events, err := s.Subscribe(done)
	if err != nil {
		return false
	}
	defer func() {
		close(done)
		for range events { // until Subscribe closes it
		}
	}()
	if s.Begun != nil {
		s.Begun(missed)
	}
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return true
		case e, ok := <-events:
			if !ok {
				return true
			}
			if s.Event != nil {
				s.Event(e)
			}
			if due == nil && s.Settled != nil {
				due = s.Clock.After(settlePause)
			}
		case <-due:
			due = nil
			s.Settled()
		}
	}
}
