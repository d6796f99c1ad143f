package dataplane

import (
	"context"
	"time"

	"k8s.io/utils/clock"
)

const (
	// settlePause is how long after an event more are waited for. A pod that starts
	// brings several changes of addresses.
	settlePause = 250 * time.Millisecond
	// subscribePause is the time between attempts to subscribe to events. It doubles
	// with each that fails, up to maxSubscribePause.
	subscribePause    = time.Second
	maxSubscribePause = time.Minute
)

// Subscription hears of events of the kernel, again and again.
type Subscription[E any] struct {
	// Clock times the pauses.
	Clock clock.Clock
	// Subscribe returns a channel of events that it closes when done is closed, or
	// earlier if the subscription ends, as it does when more events than the kernel
	// keeps have not been read. Then it is called again.
	Subscribe func(done <-chan struct{}) (<-chan E, error)
	// Begun, if not nil, is called at the beginning of each subscription. Missed: there
	// was a time without one since Follow was called.
	Begun func(missed bool)
	// Event, if not nil, is called for each event.
	Event func(E)
	// Settled, if not nil, is called a short while after an event, once for all those
	// of that while.
	Settled func()
}

// Follow calls the subscription's functions until ctx is done. A subscription that
// fails is no error: verifications find what has changed.
func (s *Subscription[E]) Follow(ctx context.Context) {
	pause := subscribePause
	for missed := false; ctx.Err() == nil; missed = true {
		next := min(2*pause, maxSubscribePause)
		if s.once(ctx, missed) {
			pause, next = subscribePause, subscribePause
		}
		timer := s.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
		pause = next
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
		for range events { // what is being handed over
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

// FollowEvents calls look at the beginning of each subscription to events of the
// kernel, and after events, those of a short while taken together, until ctx is
// done; see Subscription.
func FollowEvents(ctx context.Context, c clock.Clock, subscribe func(done <-chan struct{}) (<-chan struct{}, error), look func()) {
	s := Subscription[struct{}]{
		Clock: c, Subscribe: subscribe,
		Begun:   func(bool) { look() }, // at what came before
		Settled: look,
	}
	s.Follow(ctx)
}
