package connect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// order returns the servers in the order in which to try them.
func (s *servers) order() []server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ordered()
}

// ordered is order with mu locked: from the current one on, and last the unlisted one, if
// it is not the current one.
func (s *servers) ordered() []server {
	listed := s.candidates()
	if s.unlisted() {
		listed = listed[:len(listed)-1]
		if s.current == s.answering {
			return slices.Concat([]server{s.answering}, listed)
		}
	}
	first := max(slices.Index(listed, s.current), 0)
	out := slices.Concat(listed[first:], listed[:first])
	if s.unlisted() {
		out = append(out, s.answering)
	}
	return out
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
	var b strings.Builder
	b.WriteString("no API server answers: ")
	for i, err := range n.tried {
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(err.Error())
	}
	if len(n.untried) > 0 {
		fmt.Fprintf(&b, "; not tried yet: %s", n.untried)
	}
	return b.String()
}

// Unwrap returns the errors of the servers.
func (n *noAnswer) Unwrap() []error { return n.tried }
