package connect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// complaintPause is how often it is logged that none responds.
const complaintPause = time.Minute

// servers are the API servers that may be used, and their state.
type servers struct {
	clock clock.PassiveClock
	log   logr.Logger
	// pick chooses the first one of n servers of the file.
	pick func(n int) int
	// fixed are those of the command line. fallback is that of the credentials, which is
	// used if no other is known.
	fixed    []server
	fallback server
	// sources is the remedy if none responds.
	sources string

	mu        sync.Mutex       // guards the fields below
	listed    []server         // fixed and the last ones of the file
	current   server           // is tried first
	answering server           // responded last; empty: none has
	failures  map[server]error // since the last response
	logged    time.Time        // when it was logged that none responds; zero: not since the last response
}

// replace sets the servers of the file; nil: retain the previous ones.
func (s *servers) replace(file []server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(file) == 0 && len(s.listed) > 0 {
		return
	}
	listed := slices.Clone(s.fixed)
	for _, one := range file {
		if !slices.Contains(listed, one) {
			listed = append(listed, one)
		}
	}
	if s.current != "" && slices.Equal(listed, s.listed) {
		return
	}
	if s.current != "" {
		s.log.Info("Addresses of API servers changed", "apiServers", listed)
	}
	s.listed = listed
	switch {
	case slices.Contains(listed, s.current): // stays the first
	case len(s.fixed) > 0:
		s.current = s.fixed[0]
	case len(listed) > 0:
		s.current = listed[s.pick(len(listed))]
	default:
		s.current = s.fallback
	}
}

// order returns the servers in the order in which to try them: from the current one on. The
// unlisted one is last, if it is not the current one.
func (s *servers) order() []server {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.candidates()
	n := len(all)
	if s.unlisted() && s.current != s.answering {
		n--
	}
	first := max(slices.Index(all[:n], s.current), 0)
	return slices.Concat(all[first:n], all[:first], all[n:])
}

// candidates are all servers that may be tried. The one that responded last is among them
// until another one responds, even if it is no longer listed: the new ones may be wrong.
func (s *servers) candidates() []server {
	all := slices.Clone(s.listed)
	if len(all) == 0 {
		all = append(all, s.fallback)
	}
	if s.unlisted() {
		all = append(all, s.answering)
	}
	return all
}

// unlisted reports whether the server that responded last is no longer listed.
func (s *servers) unlisted() bool {
	return s.answering != "" && len(s.listed) > 0 && !slices.Contains(s.listed, s.answering)
}

// answered records a response of a server.
func (s *servers) answered(one server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one == s.answering && len(s.failures) == 0 {
		return
	}
	former, why := s.answering, s.failures[s.answering]
	switch {
	case !s.logged.IsZero():
		s.log.Info("An API server answers again", "apiServer", one)
	case former == "":
		s.log.Info("An API server answers", "apiServer", one)
	case former != one:
		reason := "it is no longer listed"
		if why != nil {
			reason = why.Error()
		}
		s.log.Info("Using another API server", "apiServer", one, "former", former, "reason", reason)
	}
	s.answering, s.current, s.failures, s.logged = one, one, nil, time.Time{}
}

// failed records that a server did not respond. From now on the next one is tried first,
// unless another request has already moved on.
func (s *servers) failed(one server, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures == nil {
		s.failures = map[server]error{}
	}
	s.failures[one] = err
	if one == s.current {
		all := s.candidates()
		s.current = all[(slices.Index(all, one)+1)%len(all)]
	}
}

// complaint returns an error with the failures of all servers since the last response; nil:
// some have not been tried yet. late: do not wait for those.
func (s *servers) complaint(late bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &noAnswer{}
	for _, one := range s.candidates() {
		if err := s.failures[one]; err != nil {
			out.tried = append(out.tried, fmt.Errorf("%s: %w", one, err))
		} else {
			out.untried = append(out.untried, one)
		}
	}
	if len(out.tried) == 0 || len(out.untried) > 0 && !late {
		return nil
	}
	now := s.clock.Now()
	if s.logged.IsZero() || now.Sub(s.logged) >= complaintPause {
		s.logged = now
		s.log.Error(out, "No API server answers; retrying", "whatToDo", s.sources)
	}
	return out
}

// NoAnswer reports whether an error means that no API server responds, which has been
// logged.
func NoAnswer(err error) bool {
	var none *noAnswer
	return errors.As(err, &none)
}

// noAnswer means that no API server responds.
type noAnswer struct {
	tried   []error
	untried []server
}

// Error names each server with its failure.
func (n *noAnswer) Error() string {
	var tried []string
	for _, err := range n.tried {
		tried = append(tried, err.Error())
	}
	text := "no API server answers: " + strings.Join(tried, "; ")
	if len(n.untried) > 0 {
		text += fmt.Sprintf("; not tried yet: %s", n.untried)
	}
	return text
}

// Unwrap returns the errors of the servers.
func (n *noAnswer) Unwrap() []error { return n.tried }

// roundLimit is after what time a request tries no further server, so that the caller gets
// an error in time. The next request continues with the next server.
const roundLimit = 20 * time.Second

// failover sends each request to the server that responded last, and to the next ones until
// a connection is established.
type failover struct {
	next    http.RoundTripper
	servers *servers
	clock   clock.PassiveClock
}

// RoundTrip implements http.RoundTripper. It does not repeat a request that may have
// arrived: only the caller knows whether that is safe, and then reaches the next server.
func (f *failover) RoundTrip(request *http.Request) (*http.Response, error) {
	start := f.clock.Now()
	var last error
	for i, one := range f.servers.order() {
		attempt, ok := again(request, i)
		if !ok {
			break
		}
		response, connected, err := f.ask(attempt, one)
		if err == nil {
			f.servers.answered(one)
			return response, nil
		}
		if errors.Is(request.Context().Err(), context.Canceled) {
			return nil, err // the caller has gone, which is not the server's failure
		}
		last = err
		f.servers.failed(one, err)
		if connected || request.Context().Err() != nil || f.clock.Since(start) >= roundLimit {
			break
		}
	}
	if err := f.servers.complaint(f.clock.Since(start) >= roundLimit); err != nil {
		return nil, err
	}
	return nil, last
}

// ask sends a request to a server. connected: there was a connection, so the request may
// have arrived despite an error.
func (f *failover) ask(request *http.Request, one server) (response *http.Response, connected bool, err error) {
	var got atomic.Bool
	ctx := httptrace.WithClientTrace(request.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { got.Store(true) }})
	sent := request.Clone(ctx)
	sent.URL.Scheme, sent.URL.Host = one.split()
	sent.Host = ""
	response, err = f.next.RoundTrip(sent)
	return response, got.Load(), err
}

// again returns a request for a further try: each but the first needs a new body. ok is
// false if there is none.
func again(request *http.Request, try int) (out *http.Request, ok bool) {
	if try == 0 || request.Body == nil || request.Body == http.NoBody {
		return request, true
	}
	if request.GetBody == nil {
		return nil, false
	}
	body, err := request.GetBody()
	if err != nil {
		return nil, false // the caller retries after the error of the last server
	}
	out = request.Clone(request.Context())
	out.Body = body
	return out, true
}
