package load

import (
	"fmt"
	"slices"
	"time"
)

// Begun is when the first new connection was begun.
func (l *Load) Begun() time.Time { return l.begun }

// Tried counts the new connections begun between two times, the second excluded.
func (l *Load) Tried(from, to time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, begun := range l.begins {
		if !begun.Before(from) && begun.Before(to) {
			n++
		}
	}
	return n
}

// Total counts all new connections so far, also those that have not ended.
func (l *Load) Total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.begins)
}

// Answered counts the new connections over tcp or udp so far that succeeded.
func (l *Load) Answered(network string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[network]
}

// Slowest is how long the slowest answer to a new connection has taken so far.
func (l *Load) Slowest() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slowest
}

// Held counts the connections that were held open, also those that broke, and
// the questions that were asked on them.
func (l *Load) Held() (connections, questions int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held, l.asked
}

// Failures are all connections that have failed so far, in the order in which
// that was seen.
func (l *Load) Failures() []Failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failures)
}

// LastFailure is when the last connection was begun that failed; zero if none has.
func (l *Load) LastFailure() (last time.Time) {
	for _, f := range l.Failures() {
		if f.Begun.After(last) {
			last = f.Begun
		}
	}
	return last
}

// WellSince returns nil when each target has answered a connection that was
// begun after a time.
func (l *Load) WellSince(since time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, target := range l.targets {
		if !l.answered[target.String()].After(since) {
			return fmt.Errorf("%s has not answered yet", target)
		}
	}
	return nil
}
