package desired

import (
	"time"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// A Service that the kernel refuses is tried again after firstRetryPause, because
// somebody may have mended the node, and then after twice as long each time, up to
// longestRetryPause. A change of the Service starts that anew, and is tried at once.
const (
	FirstRetryPause   = time.Minute
	longestRetryPause = 16 * time.Minute
)

// retries are the Services of one IP family that the kernel refuses.
type retries map[dataplane.ServiceName]retry

// retry is when a refused Service is tried again.
type retry struct {
	service *dataplane.Service // that was refused
	reason  string
	// suspected: it was rejected among others and may not be at fault.
	suspected bool
	// reduced: all of it is programmed but what is another's.
	reduced bool
	at      time.Time
	pause   time.Duration // before at
}

// noted are the retries after an Apply at a time, which has tried all but those
// that rest: by what it reports as refused of these Services.
func (r retries) noted(result *dataplane.Result, tried *dataplane.Ruleset, now time.Time) retries {
	out := make(retries, len(result.Rejected))
	for name, reason := range result.Rejected {
		former, before := r[name]
		_, rests := tried.Rest[name]
		_, suspected := result.Suspected[name]
		next := retry{service: tried.Services[name], reason: reason, suspected: suspected, reduced: result.Reduced[name] != nil, at: now.Add(FirstRetryPause), pause: FirstRetryPause}
		switch {
		case !before || former.service != next.service:
		case rests:
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
	for _, t := range r {
		if !now.Before(t.at) {
			return true
		}
	}
	return false
}

// resting are those that are not to be tried yet, and have not changed; never nil.
func (r retries) resting(dirty map[dataplane.ServiceName]struct{}, now time.Time) map[dataplane.ServiceName]struct{} {
	out := map[dataplane.ServiceName]struct{}{}
	for name, t := range r {
		if _, changed := dirty[name]; !changed && now.Before(t.at) {
			out[name] = struct{}{}
		}
	}
	return out
}
