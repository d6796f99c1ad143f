package syncer

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/nodeproxy-io/nodeproxy/agent/pause"
)

// Options configure a Syncer.
type Options struct {
	Clock clock.Clock
	// Sync writes what has changed. Unless all, it omits what is costly. It is called again, with
	// all, as long as it has omitted something. It is never called concurrently with itself,
	// Verify or Check.
	Sync func(ctx context.Context, all bool) (Load, error)
	// Verify compares everything and repairs. An error causes a Sync with backoff.
	Verify func(context.Context) error
	// Check compares what CheckBy was called for and repairs. An error causes a Sync with backoff.
	// It is only required by CheckBy.
	Check func(context.Context) error
	// MinInterval is the least time between the end of a Sync, or the start of a costly one, and
	// the start of the next; it is longer if Syncs take long (see rest). VerifyInterval is the
	// time between two calls of Verify.
	MinInterval, VerifyInterval time.Duration
	// RetryMin is the pause after a first failure until the retry. It doubles with each further
	// failure, up to RetryMax. Changes do not wait for it.
	RetryMin, RetryMax time.Duration
}

// Load is what a Sync did about changes that are costly to write.
type Load struct {
	Costly bool // it wrote some, or what it wrote proved costly
	Left   bool // it omitted some, or a part of what it wrote
}

// Syncer runs the loop. Its methods may be called from any goroutine.
type Syncer struct {
	options Options
	wake    pause.Wake

	mu             sync.Mutex // guards everything below
	minInterval    time.Duration
	verifyInterval time.Duration
	pending        time.Time     // the first change since the last Sync began; zero: none
	failures       int           // in a row
	retryAt        time.Time     // meaningful while failures > 0
	syncFrom       time.Time     // start of minInterval: the end of the last Sync, zero before the first
	syncRest       time.Duration // the least pause after it
	owed           time.Time     // when the pauses of small changes so far would all have passed
	left           bool          // Sync has omitted something
	restUntil      time.Time     // when a Sync may write what is costly
	verifyBase     time.Time     // start of verifyInterval
	verifyNow      bool
	checkAt        time.Time // when a Check is due; zero: none
	runStart       time.Time // of the current run; zero: none
	progress       time.Time // its last progress, initially runStart
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
		wake:           pause.NewWake(),
		minInterval:    options.MinInterval,
		verifyInterval: options.VerifyInterval,
		verifyBase:     options.Clock.Now(),
	}
}

// update changes the state and wakes the loop up.
func (s *Syncer) update(change func()) {
	s.mu.Lock()
	change()
	s.mu.Unlock()
	s.wake.Up()
}

// Trigger reports a change. It is written after the minimum interval even while Syncs fail: the
// failure may concern something else.
func (s *Syncer) Trigger() { s.update(s.addPending) }

// TriggerAfresh reports a change that may end a row of failures: the backoff starts again.
func (s *Syncer) TriggerAfresh() {
	s.update(func() {
		s.addPending()
		s.failures = 0
	})
}

func (s *Syncer) addPending() {
	if s.pending.IsZero() {
		s.pending = s.options.Clock.Now()
	}
}

// VerifySoon requests a verification as soon as nothing else is due.
func (s *Syncer) VerifySoon() { s.update(func() { s.verifyNow = true }) }

// CheckBy requests a Check at the given time, or earlier if another call does. It waits neither for
// intervals nor because of failed Syncs.
func (s *Syncer) CheckBy(at time.Time) {
	s.update(func() {
		if s.checkAt.IsZero() || at.Before(s.checkAt) {
			s.checkAt = at
		}
	})
}

// SetIntervals changes both intervals.
func (s *Syncer) SetIntervals(minimum, verify time.Duration) {
	s.update(func() { s.minInterval, s.verifyInterval = minimum, verify })
}

// Waiting reports whether a change waits that could be written if the current run, a costly Sync,
// ended: it may leave the rest for the next one.
func (s *Syncer) Waiting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.pending.IsZero() && s.options.Clock.Now().Sub(s.runStart) >= s.minInterval
}

// Progress reports a step of the current run, successful or not.
func (s *Syncer) Progress() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress = s.options.Clock.Now()
}

// Overdue is for how long the loop has been late for a run, or a run without progress. It is small
// while the loop is alive, whatever the results of runs and however long they take in all.
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
			s.wake.For(ctx, s.options.Clock, wait)
			continue
		}
		s.run(ctx, what)
	}
}

// next returns what is due next, and when. Failed Syncs do not delay Verify: they may concern only
// a part. The caller holds mu.
func (s *Syncer) next() (action, time.Time) {
	what, due := doVerify, s.verifyBase
	if !s.verifyNow {
		due = due.Add(s.verifyInterval)
	}
	earliest := s.syncFrom.Add(max(s.minInterval, s.syncRest))
	var syncs []time.Time
	if s.failures > 0 {
		syncs = append(syncs, s.retryAt)
	}
	if !s.pending.IsZero() {
		syncs = append(syncs, later(s.pending, earliest))
	}
	if s.left {
		syncs = append(syncs, later(s.restUntil, earliest))
	}
	for _, at := range syncs {
		if !due.Before(at) {
			what, due = doSync, at
		}
	}
	if !s.checkAt.IsZero() && s.checkAt.Before(due) {
		return doLook, s.checkAt
	}
	return what, due
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
		s.pending = time.Time{}
	case doLook:
		do, s.checkAt = s.options.Check, time.Time{}
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
		if what == doSync { // a verification may not concern what failed
			s.failures = 0
		}
		return
	}
	s.failures++
	s.retryAt = now.Add(s.backoff())
}

// If a Sync takes long, the kernel and a processor are busy for as long. The pause after it grows by
// restFactor for the time above shortSync, up to lightFactor times all of it, so that they are busy
// for a small part of the time. It is at most maxLight, or half the Sync's time: beside costly
// changes small ones take long too, and wait for this pause besides. Up to maxLight of it is owed
// until after the next Syncs: a Service often comes just before its endpoints, which need not wait.
// Few rules take less than shortSync, even on a busy machine. What is costly to write pauses alone,
// up to maxRest; meanwhile small changes are written, with pauses of at most the time that they
// took. If more of it is pending than one Sync writes, it pauses only for as long as the Sync took.
// Small changes that arrived during a costly Sync are written at once; but if a Sync of small
// changes proved costly, so may the next one, and it pauses for as long as it took.
const (
	shortSync   = 25 * time.Millisecond
	restFactor  = 30
	maxRest     = 1500 * time.Millisecond
	lightFactor = 6
	maxLight    = 500 * time.Millisecond
)

// rest sets the pauses after a Sync. The caller holds mu.
func (s *Syncer) rest(load Load, all bool, began, now time.Time) {
	took := now.Sub(began)
	rest := max(0, min(restFactor*(took-shortSync), maxRest))
	s.syncFrom, s.left = now, load.Left
	if load.Costly && all {
		s.syncFrom = began
	}
	light := min(rest, max(min(lightFactor*took, maxLight), took/2))
	switch {
	case load.Costly && !all:
		s.syncRest, s.restUntil = min(rest, took), later(s.restUntil, now.Add(rest))
	case load.Costly && load.Left:
		s.syncRest, s.restUntil = 0, now.Add(min(rest, took))
	case load.Costly:
		s.syncRest, s.restUntil = 0, now.Add(rest)
	case load.Left:
		s.syncRest = min(light, took)
	default:
		s.owed = later(s.owed, began).Add(took + light)
		s.syncRest, s.restUntil = s.owed.Sub(now)-min(light, maxLight), now.Add(light)
	}
}

// backoff is the pause after the current number of failures. The caller holds mu.
func (s *Syncer) backoff() time.Duration {
	wait := s.options.RetryMin
	for range s.failures - 1 {
		wait = min(2*wait, s.options.RetryMax)
	}
	return max(s.minInterval, min(wait, s.options.RetryMax))
}
