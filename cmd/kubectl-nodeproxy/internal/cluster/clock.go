package cluster

import (
	"net/http"
	"sync"
	"time"
)

// clock is the API server's, as its answers tell it. Times in objects are of it, or of
// machines that are kept in time with it; that of the plugin's machine may be anything.
type clock struct {
	mu   sync.Mutex
	last time.Time
}

// read notes the time that an answer tells.
func (c *clock) read(answer *http.Response) {
	told, err := http.ParseTime(answer.Header.Get("Date"))
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if told.After(c.last) {
		c.last = told
	}
}

// Time is when the API server gave its last answer, by its own clock; zero: it has not
// told.
func (r *Reader) Time() time.Time {
	r.clock.mu.Lock()
	defer r.clock.mu.Unlock()
	return r.clock.last
}

// watched lets a clock see all answers.
type watched struct {
	http.RoundTripper
	clock *clock
}

// RoundTrip sends a request.
func (w watched) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := w.RoundTripper.RoundTrip(request)
	if err == nil {
		w.clock.read(answer)
	}
	return answer, err
}

// WrappedRoundTripper is what sends, which knows how to cancel a request.
func (w watched) WrappedRoundTripper() http.RoundTripper { return w.RoundTripper }
