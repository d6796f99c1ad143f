package agent

import "time"

// waiting decides how long it must be quiet before we take our turn. It knows
// no clock but now.
type waiting struct {
	now func() time.Time
	// since is when it became quiet; zero: it is not. Need is for how long it
	// must be.
	since time.Time
	need  time.Duration
	// seen: another proxy has shown since the start. silent counts the looks in a
	// row that got no answer, short the turns in a row that were lost soon, to a
	// proxy that did not show afterwards.
	seen   bool
	silent int
	short  int
}

func newWaiting(now func() time.Time) *waiting { return &waiting{now: now} }

// ended says that a turn of that length has ended, lost to another proxy or
// not.
func (w *waiting) ended(lost bool, length time.Duration) {
	w.since, w.silent, w.need = time.Time{}, 0, quietTime
	switch {
	case !lost: // Audit: should we be asked to write again, at once
		w.need, w.short = 0, 0
		return
	case length >= shortTurn:
		w.short = 0
	default:
		for range w.short {
			w.need = min(2*w.need, longestQuiet)
		}
		w.short++
	}
	w.seen = true
}

// look takes what a look has found: that another proxy shows, or that this
// cannot be told. It reports whether it has been quiet for long enough.
func (w *waiting) look(shows, unknown bool) bool {
	switch {
	case shows:
		w.since, w.need, w.seen, w.short = time.Time{}, quietTime, true, 0
	case unknown:
		w.since = time.Time{}
	case w.since.IsZero():
		w.since = w.now()
	}
	return !w.since.IsZero() && w.now().Sub(w.since) >= w.need
}

// remember says that another proxy was active before the agent started.
func (w *waiting) remember() {
	if !w.seen {
		w.need, w.seen = quietAfterStart, true
	}
}
