package ownership

import "time"

const (
	// quietTime is how long a proxy that was detected must stay undetected. A kube-proxy for
	// which we have closed our ports opens them within 5 s, and one that is replaced by a
	// newer one is away for a moment.
	quietTime = 10 * time.Second
	// quietAfterStart is the same if another proxy was active before the agent started:
	// after a reboot the agent may be the first to start.
	quietAfterStart = 60 * time.Second
	// If ownership is lost repeatedly after less than shortOwnership, to a proxy that is not
	// detected in between, the time doubles up to longestQuiet. Otherwise the agent would
	// fight a proxy that opens no port.
	shortOwnership = 2 * time.Minute
	longestQuiet   = 5 * time.Minute
)

// waiting decides how long no other proxy must be detected before ownership is acquired.
type waiting struct {
	now func() time.Time
	// since is when the last proxy was no longer detected; zero: one is detected. Need is how long
	// none must be.
	since time.Time
	need  time.Duration
	// seen: another proxy was detected since the start. Silent counts consecutive probes
	// without an answer, short consecutive losses that came soon.
	seen          bool
	silent, short int
}

// ended notes that ownership has ended after some time: lost to another proxy, or given up.
func (w *waiting) ended(lost bool, after time.Duration) {
	w.since, w.silent, w.need = time.Time{}, 0, quietTime
	switch {
	case !lost: // Audit: if the agent is to write again, it does so at once
		w.need, w.short = 0, 0
		return
	case after >= shortOwnership:
		w.short = 0
	default:
		for range w.short {
			w.need = min(2*w.need, longestQuiet)
		}
		w.short++
	}
	w.seen = true
}

// checked takes the result of a check: another proxy was detected, or that is unknown. It
// reports whether none was for long enough.
func (w *waiting) checked(detected, unknown bool) bool {
	switch {
	case detected:
		w.since, w.need, w.seen, w.short = time.Time{}, quietTime, true, 0
	case unknown:
		w.since = time.Time{}
	case w.since.IsZero():
		w.since = w.now()
	}
	return !w.since.IsZero() && w.now().Sub(w.since) >= w.need
}

// remember notes that another proxy was active before the agent started.
func (w *waiting) remember() { w.need, w.seen = quietAfterStart, true }
