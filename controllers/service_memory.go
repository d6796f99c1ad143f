package controllers

import (
	"cmp"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Pace of tries to write what was refused.
const (
	firstRefusedRetry = time.Minute
	maxRefusedRetry   = 10 * time.Minute
)

// serviceMemory is what is remembered of Services between reconciliations:
// only of Services that exist, so it is bounded by them.
// Nothing in it is needed for correct results.
type serviceMemory struct {
	metrics *metrics
	changed func() // called, without the lock, when what is refused changed

	mu       sync.Mutex
	services map[types.NamespacedName]*serviceState // guarded by mu
	pace     *buckets                               // guarded by mu
	refused  int                                    // guarded by mu
	term     int                                    // guarded by mu
	// older are the Services that were there when the term began, and still are. Nil: not known
	// yet; guarded by mu.
	older map[types.NamespacedName]struct{}
}

// serviceState is what is remembered of one Service.
type serviceState struct {
	settled   bool              // whether it is refused is known, or it waits for its namespace's bytes
	stored    bool              // it has had rules in this term, which were not released since
	ended     bool              // its rules were released in this term, and it has not had any since
	delayed   bool              // it has none yet, because its namespace has used up its bytes
	claim     claim             // of its namespace's bytes
	lastWrite time.Time         // last write of the rules
	lastBytes int               // what was written then
	until     time.Time         // before then nothing would be written
	itself    time.Time         // last write because the Service itself had changed
	change    change            // since the rules were up to date
	problems  map[string]string // what the last event of each reason said
	refusal   *refusal          // nil unless refused
}

// change is what is known of why rules are not up to date.
type change struct {
	slice time.Time // first event of a slice; zero: none
	// addresses and policies: nodes, API servers or service ranges have changed; or policies or
	// labels of Namespaces have. No tenant does that, so it does not wait for what tenants change.
	addresses, policies bool
}

// and adds up two changes.
func (c change) and(other change) change {
	if c.slice.IsZero() || !other.slice.IsZero() && other.slice.Before(c.slice) {
		c.slice = other.slice
	}
	c.addresses = c.addresses || other.addresses
	c.policies = c.policies || other.policies
	return c
}

// refusal is a Service that cannot be rendered or stored.
type refusal struct {
	reason      string // the message without figures that change
	message     string
	fingerprint uint64 // of what was refused
	since       time.Time
	attempts    int
	retryAt     time.Time
	unsaid      bool // the event about it was lost
}

func newServiceMemory(m *metrics, changed func()) *serviceMemory {
	return &serviceMemory{metrics: m, changed: changed, services: map[types.NamespacedName]*serviceState{}, pace: newNamespacePace()}
}

// of returns the state of a Service; mu must be held.
func (m *serviceMemory) of(key types.NamespacedName) *serviceState {
	s := m.services[key]
	if s == nil {
		s = &serviceState{}
		m.services[key] = s
	}
	return s
}

// forget drops a Service that is gone.
func (m *serviceMemory) forget(key types.NamespacedName) {
	m.accepted(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.services, key)
	delete(m.older, key)
}

// end drops what is remembered of a Service that is not eligible, but not whether it has rules, and what
// others than tenants have changed: it may be eligible again before its rules are released.
func (m *serviceMemory) end(key types.NamespacedName) {
	m.accepted(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.of(key)
	was.change.slice = time.Time{}
	m.services[key] = &serviceState{settled: true, stored: was.stored, ended: was.ended, change: was.change}
}

// released notes that a Service that is there has no rules, or only released ones.
func (m *serviceMemory) released(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.services[key]; s != nil {
		s.stored, s.ended = false, true
	}
}

// newTerm forgets what may have changed while another controller led: every
// Service has to be looked at again before it is known what is refused. Until
// then what was refused in the former term counts.
func (m *serviceMemory) newTerm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.term++
	m.older = nil
	for key, s := range m.services {
		m.giveBack(key, s)
		s.settled, s.stored, s.ended = false, false, false
	}
	m.metrics.showRefused(m.refused)
}

// begun reports whether it is known which Services are older than the term.
func (m *serviceMemory) begun() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.older != nil
}

// begin notes which Services are older than the term, unless that is known.
func (m *serviceMemory) begin(services []corev1.Service) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.older != nil { // Services may have gone since
		return
	}
	m.older = make(map[types.NamespacedName]struct{}, len(services))
	for i := range services {
		m.older[client.ObjectKeyFromObject(&services[i])] = struct{}{}
	}
}

// currentTerm tells terms apart.
func (m *serviceMemory) currentTerm() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term
}

// settled tells whether it is known since the start if a Service is refused.
func (m *serviceMemory) settled(key types.NamespacedName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	return s != nil && s.settled
}

// newProblems notes what is wrong with a Service for one reason and tells whether
// that is something that has not been said yet.
func (m *serviceMemory) newProblems(key types.NamespacedName, reason, problems string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(key)
	if s.problems[reason] == problems {
		return false
	}
	if s.problems == nil {
		s.problems = map[string]string{}
	}
	s.problems[reason] = problems
	return problems != ""
}

// unsay notes that the last event of a reason about a Service was lost: it is to be said again as soon as
// it is found again.
func (m *serviceMemory) unsay(key types.NamespacedName, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	if s == nil {
		return
	}
	delete(s.problems, reason)
	if reason == eventServiceRefused && s.refusal != nil {
		s.refusal.unsaid = true
	}
}

// wait returns how long the next write of a Service must wait, which has rules stored or not: the
// first change goes at once, while its namespace has bytes left. A change of stored rules that no
// tenant has caused does not need these.
func (m *serviceMemory) wait(key types.NamespacedName, load render.Load, stored, byTenant bool, now time.Time) time.Duration {
	m.mu.Lock()
	s := m.of(key)
	s.seen(stored)
	bytes := load.Bytes
	load.Bytes = max(load.Bytes, s.lastBytes)
	interval := render.Pace(load)
	s.until = s.lastWrite.Add(interval)
	wait := max(0, s.until.Sub(now))
	delayed := false
	if _, older := m.older[key]; wait == 0 && (stored && byTenant || s.isNew(stored, older)) {
		wait = max(0, m.pace.wait(key.Namespace, &s.claim, bytes, now))
		delayed = wait > 0 && !stored && !s.delayed
		s.settled = s.settled || wait > 0
		s.delayed = s.delayed || delayed
	}
	m.mu.Unlock()
	if delayed {
		m.changed()
	}
	return wait
}

// seen notes that a Service has rules. After it was ended they may be its former ones, in a cache
// that is behind.
func (s *serviceState) seen(stored bool) {
	s.stored = s.stored || stored && !s.ended
}

// isNew reports whether a Service has no rules and has not had any. Otherwise they have vanished, by
// no doing of a tenant: agents retain them, which a wait must not end. What is older than the
// term may have had some.
func (s *serviceState) isNew(stored, older bool) bool {
	return !stored && !s.stored && (s.ended || !older)
}

// delayedServices returns the Services that have no rules yet because their namespaces have used
// up their bytes.
func (m *serviceMemory) delayedServices() []types.NamespacedName {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []types.NamespacedName
	for key, s := range m.services {
		if s.delayed {
			out = append(out, key)
		}
	}
	return out
}

// giveBack returns what a Service has taken of its namespace's bytes, and reports whether it was
// delayed; mu must be held.
func (m *serviceMemory) giveBack(key types.NamespacedName, s *serviceState) bool {
	m.pace.giveBack(key.Namespace, &s.claim)
	was := s.delayed
	s.delayed = false
	return was
}

// pause has a Service of a load not rendered again at once though it was not written.
func (m *serviceMemory) pause(key types.NamespacedName, load render.Load, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(key).until = now.Add(render.Pace(load))
}

// waiting returns for how long a Service has been told to wait: until then it need not be
// rendered. Rules that are not stored do not wait, unless they were refused, or are new and wait for
// their namespace. For that, stored ones do not wait if it may be that no tenant has caused their change.
func (m *serviceMemory) waiting(key types.NamespacedName, stored bool, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(key)
	s.seen(stored)
	var until time.Time
	if stored || s.refusal != nil {
		until = s.until
	}
	byTenant := !s.change.addresses && !s.change.policies
	if s.claim.bytes > 0 && (stored && byTenant || !stored && !s.stored) {
		if s.claim.at.After(until) {
			until = s.claim.at
		}
	}
	return max(0, until.Sub(now))
}

// note notes a change of what a Service is rendered from.
func (m *serviceMemory) note(key types.NamespacedName, c change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(key)
	s.change = s.change.and(c)
}

// takeChange returns what has changed since the rules were up to date, and takes it to be
// rendered: call it before anything is read. What was not written is to be noted again.
func (m *serviceMemory) takeChange(key types.NamespacedName) change {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(key)
	taken := s.change
	s.change = change{}
	return taken
}

// wrote notes that a Service's rules were written, in so many bytes, and whether because the
// Service itself had changed.
func (m *serviceMemory) wrote(key types.NamespacedName, bytes int, itself bool, now time.Time) {
	m.mu.Lock()
	s := m.of(key)
	s.lastWrite, s.lastBytes, s.stored, s.ended = now, bytes, true, false
	if itself {
		s.itself = now
	}
	if s.claim.bytes > 0 { // else no tenant has caused it
		m.pace.wrote(key.Namespace, &s.claim, bytes, now)
	}
	was := s.delayed
	s.delayed = false
	m.mu.Unlock()
	if was {
		m.changed()
	}
}

// tried notes that the API server has refused to write so many bytes, which costs it as much.
func (m *serviceMemory) tried(key types.NamespacedName, bytes int, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.of(key); s.claim.bytes > 0 {
		m.pace.wrote(key.Namespace, &s.claim, bytes, now)
	}
}

// settleTime is how long after a change of a Service nodes may come to refuse it on
// that account.
const settleTime = time.Minute

// changedLately reports whether rules were written less than settleTime ago because the
// Service itself had changed. What was written before a restart is not known.
func (m *serviceMemory) changedLately(key types.NamespacedName, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	return s != nil && !s.itself.IsZero() && now.Sub(s.itself) < settleTime
}

// accepted notes that nothing of a Service is refused (any more), nor waits to be written.
func (m *serviceMemory) accepted(key types.NamespacedName) {
	m.mu.Lock()
	s := m.of(key)
	s.settled = true
	was := m.giveBack(key, s)
	if s.refusal != nil {
		was = true
		s.refusal = nil
		m.refused--
		m.metrics.showRefused(m.refused)
	}
	m.mu.Unlock()
	if was {
		m.changed()
	}
}

// refuse notes that what has this fingerprint was refused. It tells whether
// that should be said, once for each reason, and after how long to try again.
func (m *serviceMemory) refuse(key types.NamespacedName, reason, message string, fingerprint uint64, now time.Time) (say bool, retry time.Duration) {
	m.mu.Lock()
	s := m.of(key)
	s.settled = true
	delayed := m.giveBack(key, s)
	say = s.refusal == nil || s.refusal.reason != reason || s.refusal.unsaid
	if s.refusal == nil {
		s.refusal = &refusal{since: now}
		m.refused++
		m.metrics.showRefused(m.refused)
	}
	r := s.refusal
	if r.fingerprint != fingerprint {
		r.attempts = 0
	}
	r.reason, r.message, r.fingerprint, r.unsaid = reason, message, fingerprint, false
	retry = min(maxRefusedRetry, firstRefusedRetry<<min(r.attempts, 4))
	r.attempts++
	r.retryAt = now.Add(retry)
	m.mu.Unlock()
	if say || delayed {
		m.changed()
	}
	return say, retry
}

// retryIn returns how long to wait before the same content is tried again; 0
// when it has not been refused or its time has come.
func (m *serviceMemory) retryIn(key types.NamespacedName, fingerprint uint64, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	if s == nil || s.refusal == nil || s.refusal.fingerprint != fingerprint {
		return 0
	}
	return max(0, s.refusal.retryAt.Sub(now))
}

// refusedServices returns the refused Services, newest first.
func (m *serviceMemory) refusedServices() []v1alpha1.RefusedService {
	type entry struct {
		since time.Time
		v1alpha1.RefusedService
	}
	m.mu.Lock()
	entries := make([]entry, 0, m.refused)
	for key, s := range m.services {
		if s.refusal != nil {
			entries = append(entries, entry{s.refusal.since, v1alpha1.RefusedService{
				Namespace: key.Namespace, Name: key.Name, Message: s.refusal.message,
			}})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(b.since.Compare(a.since), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out := make([]v1alpha1.RefusedService, len(entries))
	for i, e := range entries {
		out[i] = e.RefusedService
	}
	return out
}
