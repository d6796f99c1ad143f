package cluster

import (
	"net/http"
	"sync"
	"time"
)

// clock is the API server's, from the headers of its responses. Times in objects are of it,
// or of machines in sync with it; the clock of the plugin's machine may be wrong.
type clock struct {
	mu   sync.Mutex
	last time.Time
}

// read records the time of a response.
func (c *clock) read(response *http.Response) {
	now, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.After(c.last) {
		c.last = now
	}
}

// Time is when the API server last responded, by its own clock; zero: unknown.
func (r *Reader) Time() time.Time {
	r.clock.mu.Lock()
	defer r.clock.mu.Unlock()
	return r.clock.last
}

// watched records the time of all responses.
type watched struct {
	http.RoundTripper
	clock *clock
}

// RoundTrip sends a request.
func (w watched) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.RoundTripper.RoundTrip(request)
	if err == nil {
		w.clock.read(response)
	}
	return response, err
}

// WrappedRoundTripper returns the transport that can cancel requests.
func (w watched) WrappedRoundTripper() http.RoundTripper { return w.RoundTripper }
