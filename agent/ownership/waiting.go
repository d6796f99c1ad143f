package ownership

import "time"

const (
	// QuietTime is for how long no other proxy may show after one has, until we
	// take our turn. A kube-proxy for which we have closed our ports opens them
	// within 5 s, and one that is replaced by a newer one is away for a moment.
	QuietTime = 10 * time.Second
	// QuietAfterStart is the same for an agent that starts where another proxy
	// was active before: after a reboot we may be the first.
	QuietAfterStart = 60 * time.Second
	// Where several turns in a row are shorter than shortTurn, and the other proxy
	// never shows in between, the time to be quiet doubles up to longestQuiet, so
	// that we do not fight a proxy that opens no port.
	shortTurn    = 2 * time.Minute
	longestQuiet = 5 * time.Minute
)

// Waiting decides how long it must be quiet before we take our turn. It knows
// no clock but now.
type Waiting struct {
	now func() time.Time
	// Since is when it became quiet; zero: it is not. Need is for how long it
	// must be.
	Since time.Time
	Need  time.Duration
	// Seen: another proxy has shown since the start. silent counts the looks in a
	// row that got no answer, short the turns in a row that were lost soon, to a
	// proxy that did not show afterwards.
	Seen   bool
	Silent int
	short  int
}

// NewWaiting returns a wait that has not begun.
func NewWaiting(now func() time.Time) *Waiting { return &Waiting{now: now} }

// Ended says that a turn of that length has ended, lost to another proxy or
// not.
func (w *Waiting) Ended(lost bool, length time.Duration) {
	w.Since, w.Silent, w.Need = time.Time{}, 0, QuietTime
	switch {
	case !lost: // Audit: should we be asked to write again, at once
		w.Need, w.short = 0, 0
		return
	case length >= shortTurn:
		w.short = 0
	default:
		for range w.short {
			w.Need = min(2*w.Need, longestQuiet)
		}
		w.short++
	}
	w.Seen = true
}

// Look takes what a look has found: that another proxy shows, or that this
// cannot be told. It reports whether it has been quiet for long enough.
func (w *Waiting) Look(shows, unknown bool) bool {
	switch {
	case shows:
		w.Since, w.Need, w.Seen, w.short = time.Time{}, QuietTime, true, 0
	case unknown:
		w.Since = time.Time{}
	case w.Since.IsZero():
		w.Since = w.now()
	}
	return !w.Since.IsZero() && w.now().Sub(w.Since) >= w.Need
}

// Remember says that another proxy was active before the agent started.
func (w *Waiting) Remember() {
	if !w.Seen {
		w.Need, w.Seen = QuietAfterStart, true
	}
}
