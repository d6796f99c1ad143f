// Package syncer decides when the agent writes to the kernel: the first change
// at once, later ones after a minimum interval, failures again with backoff,
// and a slow verification. It knows nothing of what is written.
package syncer

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Options are what a Syncer needs.
type Options struct {
	// Clock tells the time.
	Clock clock.Clock
	// Sync writes what has changed. It is never called concurrently with itself
	// or with Verify.
	Sync func(context.Context) error
	// Verify compares everything and repairs. An error leads to Sync with
	// backoff.
	Verify func(context.Context) error
	// MinInterval is the least time between the end of a Sync and the start of
	// the next, VerifyInterval that between two calls of Verify.
	MinInterval, VerifyInterval time.Duration
	// RetryMin is the pause after a first failure until the same is tried again.
	// It doubles with every further one up to RetryMax. A change in between does
	// not wait for it.
	RetryMin, RetryMax time.Duration
}

// Syncer runs the loop. Its methods may be called from any goroutine.
type Syncer struct {
	options Options
	wake    chan struct{}

	mu             sync.Mutex // guards everything below
	minInterval    time.Duration
	verifyInterval time.Duration
	wanted         bool      // something has changed since the last Sync began
	wantedAt       time.Time // when that was; meaningful while wanted
	failures       int       // in a row
	retryAt        time.Time // meaningful while failures > 0
	syncEnd        time.Time // of the last Sync; zero before the first
	verifyBase     time.Time // what verifyInterval counts from
	verifyNow      bool
	runStart       time.Time // of what runs now; zero when nothing does
}

// action is what the loop does next.
type action int

const (
	doSync action = iota
	doVerify
)

// New returns a Syncer that waits for its first Trigger once it runs.
func New(options Options) *Syncer {
	return &Syncer{
		options:        options,
		wake:           make(chan struct{}, 1),
		minInterval:    options.MinInterval,
		verifyInterval: options.VerifyInterval,
		verifyBase:     options.Clock.Now(),
	}
}

// Trigger says that something has changed. It is written after the minimum
// interval even while Syncs fail: the failure may concern something else.
func (s *Syncer) Trigger() {
	s.mu.Lock()
	s.want()
	s.mu.Unlock()
	s.poke()
}

// TriggerAfresh says that something has changed that may end a row of
// failures: the backoff starts again.
func (s *Syncer) TriggerAfresh() {
	s.mu.Lock()
	s.want()
	s.failures = 0
	s.mu.Unlock()
	s.poke()
}

// want notes that something has changed. The caller holds mu.
func (s *Syncer) want() {
	if !s.wanted {
		s.wanted, s.wantedAt = true, s.options.Clock.Now()
	}
}

// VerifySoon asks for a verification as soon as nothing else is due.
func (s *Syncer) VerifySoon() {
	s.mu.Lock()
	s.verifyNow = true
	s.mu.Unlock()
	s.poke()
}

// SetIntervals changes both intervals from now on.
func (s *Syncer) SetIntervals(minimum, verify time.Duration) {
	s.mu.Lock()
	s.minInterval, s.verifyInterval = minimum, verify
	s.mu.Unlock()
	s.poke()
}

// Overdue is for how long the loop has been busy with one run, or late for
// one. It is small while the loop is alive, whatever the runs' results.
func (s *Syncer) Overdue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Clock.Now()
	if !s.runStart.IsZero() {
		return now.Sub(s.runStart)
	}
	_, due := s.next()
	return max(0, now.Sub(due))
}

// Run loops until ctx is done.
func (s *Syncer) Run(ctx context.Context) {
	for ctx.Err() == nil {
		s.mu.Lock()
		what, due := s.next()
		s.mu.Unlock()
		if wait := due.Sub(s.options.Clock.Now()); wait > 0 {
			s.sleep(ctx, wait)
			continue
		}
		s.run(ctx, what)
	}
}

// next says what is due next, and when. The caller holds mu.
func (s *Syncer) next() (action, time.Time) {
	verify := s.verifyBase.Add(s.verifyInterval)
	if s.verifyNow {
		verify = s.verifyBase
	}
	if !s.wanted && s.failures == 0 {
		return doVerify, verify
	}
	if !s.wanted {
		return doSync, s.retryAt
	}
	sync := s.wantedAt
	if earliest := s.syncEnd.Add(s.minInterval); sync.Before(earliest) {
		sync = earliest
	}
	switch {
	case s.failures > 0 && s.retryAt.Before(sync):
		return doSync, s.retryAt
	case s.failures == 0 && verify.Before(sync):
		return doVerify, verify
	default:
		return doSync, sync
	}
}

func (s *Syncer) run(ctx context.Context, what action) {
	s.mu.Lock()
	s.runStart = s.options.Clock.Now()
	do := s.options.Verify
	if what == doSync {
		do = s.options.Sync
		s.wanted = false
	} else {
		s.verifyNow = false
	}
	s.mu.Unlock()

	err := do(ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Clock.Now()
	s.runStart = time.Time{}
	if what == doSync {
		s.syncEnd = now
	} else {
		s.verifyBase = now
	}
	if err == nil {
		s.failures = 0
		return
	}
	s.failures++
	s.retryAt = now.Add(s.backoff())
}

// backoff is the pause after the current number of failures. The caller holds
// mu.
func (s *Syncer) backoff() time.Duration {
	pause := s.options.RetryMin
	for range s.failures - 1 {
		if pause >= s.options.RetryMax {
			break
		}
		pause *= 2
	}
	return max(s.minInterval, min(pause, s.options.RetryMax))
}

func (s *Syncer) sleep(ctx context.Context, wait time.Duration) {
	timer := s.options.Clock.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-s.wake:
	case <-timer.C():
	}
}

func (s *Syncer) poke() {
	select {
	case s.wake <- struct{}{}:
	default: // a poke is waiting already
	}
}
