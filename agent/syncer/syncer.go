// Package syncer decides when the agent writes to the kernel: the first change
// at once, later ones after a minimum interval, failures again with backoff,
// a slow verification, and looks in between where there are signs of a change.
// It knows nothing of what is written.
package syncer

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Options are what a Syncer needs.
type Options struct {
	// Clock tells the time.
	Clock clock.Clock
	// Sync writes what has changed. Unless all, it leaves what is costly. It is called
	// again, with all, as long as it has left something. It is never called
	// concurrently with itself, Verify or Look.
	Sync func(ctx context.Context, all bool) (Load, error)
	// Verify compares everything and repairs. An error leads to Sync with
	// backoff.
	Verify func(context.Context) error
	// Look compares what LookBy was called for and repairs. An error leads to
	// Sync with backoff. Nil: LookBy is not called.
	Look func(context.Context) error
	// MinInterval is the least time between the end of a Sync, or the start of
	// one that was costly, and the start of the next, which is longer where Syncs
	// take long (see rest); VerifyInterval that between two calls of Verify.
	MinInterval, VerifyInterval time.Duration
	// RetryMin is the pause after a first failure until the same is tried again.
	// It doubles with every further one up to RetryMax. A change in between does
	// not wait for it.
	RetryMin, RetryMax time.Duration
}

// Load is what a Sync has done about changes that are costly to write.
type Load struct {
	Costly bool // it has written some, or what it wrote has turned out to be
	Left   bool // it has left some
}

// Syncer runs the loop. Its methods may be called from any goroutine.
type Syncer struct {
	options Options
	wake    chan struct{}

	mu             sync.Mutex // guards everything below
	minInterval    time.Duration
	verifyInterval time.Duration
	wanted         bool          // something has changed since the last Sync began
	wantedAt       time.Time     // when that was; meaningful while wanted
	failures       int           // in a row
	retryAt        time.Time     // meaningful while failures > 0
	syncFrom       time.Time     // what minInterval counts from: the end of the last Sync, zero before the first
	syncRest       time.Duration // the least pause after it
	left           bool          // Sync has left something
	restUntil      time.Time     // when a Sync may write what is costly, too
	verifyBase     time.Time     // what verifyInterval counts from
	verifyNow      bool
	lookAt         time.Time // when a look is due; zero: none
	runStart       time.Time // of what runs now; zero when nothing does
	progress       time.Time // its last sign of progress, at first runStart
}

// action is what the loop does next.
type action int

const (
	doSync action = iota
	doVerify
	doLook
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

// LookBy asks for a look at the given time, or earlier if one is asked for.
// Neither intervals nor failures of Sync keep it waiting.
func (s *Syncer) LookBy(at time.Time) {
	s.mu.Lock()
	if s.lookAt.IsZero() || at.Before(s.lookAt) {
		s.lookAt = at
	}
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

// Progress says that what runs now has come a step further, well or not.
func (s *Syncer) Progress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress = s.options.Clock.Now()
}

// Overdue is for how long the loop has been late for a run, or a run without
// progress. It is small while the loop is alive, whatever the runs' results and
// however long they take in all.
func (s *Syncer) Overdue() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Clock.Now()
	if !s.runStart.IsZero() {
		return now.Sub(s.progress)
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

// next says what is due next, and when. Failures of Sync do not keep Verify
// waiting: they may concern a part of the whole only. The caller holds mu.
func (s *Syncer) next() (action, time.Time) {
	what, due := s.nextOfAll()
	if !s.lookAt.IsZero() && s.lookAt.Before(due) {
		return doLook, s.lookAt
	}
	return what, due
}

// nextOfAll is next but for looks. The caller holds mu.
func (s *Syncer) nextOfAll() (action, time.Time) {
	verify := s.verifyBase.Add(s.verifyInterval)
	if s.verifyNow {
		verify = s.verifyBase
	}
	earliest := s.syncFrom.Add(max(s.minInterval, s.syncRest))
	var due []time.Time
	if s.failures > 0 {
		due = append(due, s.retryAt)
	}
	if s.wanted {
		due = append(due, later(s.wantedAt, earliest))
	}
	if s.left {
		due = append(due, later(s.restUntil, earliest))
	}
	if len(due) == 0 {
		return doVerify, verify
	}
	if sync := slices.MinFunc(due, time.Time.Compare); !verify.Before(sync) {
		return doSync, sync
	}
	return doVerify, verify
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func (s *Syncer) run(ctx context.Context, what action) {
	s.mu.Lock()
	s.runStart = s.options.Clock.Now()
	s.progress = s.runStart
	var do func(context.Context) error
	var load Load
	all := true
	switch what {
	case doSync:
		all = !s.runStart.Before(s.restUntil)
		do = func(ctx context.Context) (err error) {
			load, err = s.options.Sync(ctx, all)
			return err
		}
		s.wanted = false
	case doLook:
		do, s.lookAt = s.options.Look, time.Time{}
	default:
		do, s.verifyNow = s.options.Verify, false
	}
	s.mu.Unlock()

	err := do(ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Clock.Now()
	began := s.runStart
	s.runStart = time.Time{}
	switch what {
	case doSync:
		s.rest(load, all, began, now)
	case doVerify:
		s.verifyBase = now
	}
	if err == nil {
		if what == doSync { // a verification may have found nothing to do with what failed
			s.failures = 0
		}
		return
	}
	s.failures++
	s.retryAt = now.Add(s.backoff())
}

// Where a Sync takes long, the kernel is busy for as long and so is a processor. The
// pause after it grows by restFactor for what it takes above shortSync, but not above
// lightFactor times all of it nor maxRest, so that they are busy for a small part of the
// time. Few rules take less than shortSync, also on a busy machine. What is costly to
// write pauses alone, up to maxRest; meanwhile small changes are written. Where more of
// it waits than one Sync writes, it pauses for no longer than it took. Small changes that
// have come while it was written are written at once; but where a Sync of small changes
// turned out to be costly, so may the next one, and it pauses for as long as it took.
const (
	shortSync   = 25 * time.Millisecond
	restFactor  = 30
	maxRest     = 1500 * time.Millisecond
	lightFactor = 6
)

// rest sets the pauses after a Sync. The caller holds mu.
func (s *Syncer) rest(load Load, all bool, began, now time.Time) {
	took := now.Sub(began)
	rest := max(0, min(restFactor*(took-shortSync), maxRest))
	s.syncFrom, s.left = now, load.Left
	if load.Costly && all {
		s.syncFrom = began
	}
	light := min(rest, lightFactor*took)
	switch {
	case load.Costly && !all:
		s.syncRest, s.restUntil = min(rest, took), later(s.restUntil, now.Add(rest))
	case load.Costly && load.Left:
		s.syncRest, s.restUntil = 0, now.Add(min(rest, took))
	case load.Costly:
		s.syncRest, s.restUntil = 0, now.Add(rest)
	case load.Left:
		s.syncRest = light
	default:
		s.syncRest, s.restUntil = light, now.Add(light)
	}
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
