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

// complaintPause is how often it is said that none answers.
const complaintPause = time.Minute

// servers are the API servers that may be used, and what is known of them.
type servers struct {
	clock clock.PassiveClock
	log   logr.Logger
	// pick chooses one of n servers of the file to begin at.
	pick func(n int) int
	// fixed are those of the command line. fallback comes with the credentials,
	// and is used when no other is known.
	fixed    []server
	fallback server
	// sources is what to do when none answers.
	sources string

	mu        sync.Mutex       // guards what follows
	listed    []server         // fixed and those of the file, as they last were
	current   server           // is asked first
	answering server           // answered last; empty: none has
	failures  map[server]error // since the last answer
	said      time.Time        // when it was said that none answers; zero: not since the last answer
}

// replace takes the servers of the file; nil: it tells nothing, and what was
// known stays.
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
		s.log.Info("The addresses of API servers have changed", "apiServers", listed)
	}
	s.listed = listed
	switch {
	case slices.Contains(listed, s.current): // it goes on
	case len(s.fixed) > 0:
		s.current = s.fixed[0]
	case len(listed) > 0:
		s.current = listed[s.pick(len(listed))]
	default:
		s.current = s.fallback
	}
}

// order returns the servers in the order in which to ask them.
func (s *servers) order() []server {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ordered()
}

// ordered is order for who holds mu: from the current one on, and last the one
// that is listed no more, if it is not the current one.
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

// candidates are all servers that may be asked. The one that answered last is
// among them until another has answered, also when it is listed no more: what
// is new may be wrong.
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

// unlisted reports whether the server that answered last is listed no more.
func (s *servers) unlisted() bool {
	return s.answering != "" && len(s.listed) > 0 && !slices.Contains(s.listed, s.answering)
}

// answered notes that a server has answered.
func (s *servers) answered(one server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one == s.answering && len(s.failures) == 0 {
		return
	}
	former, why := s.answering, s.failures[s.answering]
	switch {
	case !s.said.IsZero():
		s.log.Info("An API server answers again", "apiServer", one)
	case former == "":
		s.log.Info("An API server answers", "apiServer", one)
	case former != one:
		reason := "it is listed no more"
		if why != nil {
			reason = why.Error()
		}
		s.log.Info("Using another API server", "apiServer", one, "former", former, "reason", reason)
	}
	s.answering, s.current, s.failures, s.said = one, one, nil, time.Time{}
}

// failed notes that a server gave no answer. The next one is asked first from
// now on, unless somebody else has noticed already.
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

// complaint is what there is to say when a request got no answer: what each
// server said since one answered. late: it has taken long, and is to be said
// although some have not been tried. Nil: others have not been tried yet.
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
	if s.said.IsZero() || now.Sub(s.said) >= complaintPause {
		s.said = now
		s.log.Error(out, "No API server answers; trying again, and meanwhile all stays as it is", "whatToDo", s.sources)
	}
	return out
}

// NoAnswer reports whether an error is that no API server answers, which has been
// said in the log.
func NoAnswer(err error) bool {
	var none *noAnswer
	return errors.As(err, &none)
}

// noAnswer is that no API server answers.
type noAnswer struct {
	tried   []error
	untried []server
}

// Error names each server, with what became of it.
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

// Unwrap lets callers find out what kind of errors there were.
func (n *noAnswer) Unwrap() []error { return n.tried }
