package services

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// Pauses between attempts to write what was rejected.
const (
	firstRetry = time.Minute
	maxRetry   = 10 * time.Minute
)

// rejection describes a Service that cannot be rendered or stored.
type rejection struct {
	reason      string // the message without changing numbers
	message     string
	fingerprint uint64 // of the rejected content
	since       time.Time
	attempts    int
	retryAt     time.Time
	eventLost   bool // the event about it was lost
}

// accepted notes that a Service is neither rejected (any more) nor waits to be written.
func (m *Memory) accepted(key types.NamespacedName) {
	m.mu.Lock()
	s := m.of(key)
	s.settled = true
	was := m.giveBack(key, s)
	if s.rejection != nil {
		was = true
		s.rejection = nil
		m.rejected--
		m.metrics.ShowRejected(m.rejected)
	}
	m.mu.Unlock()
	if was {
		m.changed()
	}
}

// reject notes that the content with this fingerprint was rejected. It returns whether to report
// that, once for each reason, and when to retry.
func (m *Memory) reject(key types.NamespacedName, reason, message string, fingerprint uint64, now time.Time) (say bool, retry time.Duration) {
	m.mu.Lock()
	s := m.of(key)
	s.settled = true
	delayed := m.giveBack(key, s)
	say = s.rejection == nil || s.rejection.reason != reason || s.rejection.eventLost
	if s.rejection == nil {
		s.rejection = &rejection{since: now}
		m.rejected++
		m.metrics.ShowRejected(m.rejected)
	}
	r := s.rejection
	if r.fingerprint != fingerprint {
		r.attempts = 0
	}
	r.reason, r.message, r.fingerprint, r.eventLost = reason, message, fingerprint, false
	retry = min(maxRetry, firstRetry<<min(r.attempts, 4))
	r.attempts++
	r.retryAt = now.Add(retry)
	m.mu.Unlock()
	if say || delayed {
		m.changed()
	}
	return say, retry
}

// retryIn returns how long to wait before the same content is written again; 0: now.
func (m *Memory) retryIn(key types.NamespacedName, fingerprint uint64, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	if s == nil || s.rejection == nil || s.rejection.fingerprint != fingerprint {
		return 0
	}
	return max(0, s.rejection.retryAt.Sub(now))
}

// Rejected returns the rejected Services, newest first.
func (m *Memory) Rejected() []v1alpha1.UnrenderedService {
	type entry struct {
		since time.Time
		v1alpha1.UnrenderedService
	}
	m.mu.Lock()
	entries := make([]entry, 0, m.rejected)
	for key, s := range m.services {
		if s.rejection != nil {
			entries = append(entries, entry{s.rejection.since, v1alpha1.UnrenderedService{
				Namespace: key.Namespace, Name: key.Name, Message: s.rejection.message,
			}})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(b.since.Compare(a.since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out := make([]v1alpha1.UnrenderedService, len(entries))
	for i, e := range entries {
		out[i] = e.UnrenderedService
	}
	return out
}
