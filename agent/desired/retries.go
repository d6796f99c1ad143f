package desired

import (
	"maps"
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// A rejected Service is tried again after FirstRetryPause, because an administrator may have
// repaired the node, and then after twice as long each time, up to longestRetryPause. A change
// of the Service is tried at once and starts that anew.
const (
	FirstRetryPause   = time.Minute
	longestRetryPause = 16 * time.Minute
)

// retries are the Services of one IP family that the kernel rejects.
type retries map[dataplane.ServiceName]retry

// retry is when a rejected Service is tried again.
type retry struct {
	service *dataplane.Service // that was rejected
	reason  string
	// suspected: it was rejected among others and may not be at fault.
	suspected bool
	// reduced: all of it is programmed except what belongs to another.
	reduced bool
	at      time.Time
	pause   time.Duration // before at
}

// noted returns the retries after an Apply at a time, which has tried all Services except those
// that rest or are unfinished.
func (r retries) noted(result *dataplane.Result, tried *dataplane.Ruleset, now time.Time) retries {
	out := make(retries, len(result.Rejected))
	for name, reason := range result.Rejected {
		former, before := r[name]
		_, rests := tried.Rest[name]
		_, unfinished := result.Unfinished[name]
		_, suspected := result.Suspected[name]
		next := retry{service: tried.Services[name], reason: reason, suspected: suspected, reduced: result.Reduced[name] != nil, at: now.Add(FirstRetryPause), pause: FirstRetryPause}
		switch {
		case !before || former.service != next.service:
		case rests, unfinished:
			next.at, next.pause = former.at, former.pause
		case suspected: // soon, however often it was
		default:
			next.pause = min(2*former.pause, longestRetryPause)
			next.at = now.Add(next.pause)
		}
		out[name] = next
	}
	return out
}

// due reports whether some Service is to be tried again.
func (r retries) due(now time.Time) bool {
	return some(maps.Values(r), func(t retry) bool { return !now.Before(t.at) })
}

// resting are those that are not to be tried yet and have not changed; never nil.
func (r retries) resting(dirty map[dataplane.ServiceName]struct{}, now time.Time) map[dataplane.ServiceName]struct{} {
	out := map[dataplane.ServiceName]struct{}{}
	for name, t := range r {
		if _, changed := dirty[name]; !changed && now.Before(t.at) {
			out[name] = struct{}{}
		}
	}
	return out
}
