package services

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/pacing"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// How many bytes of ServiceProxyRules the Services of one namespace may write, including new ones.
// A namespace that uses up its share only delays its own Services. It takes continuous changes to
// do so: the burst is enough for 10,000 small Services, or for 3,000 writes of Services with 500
// endpoints of 10 KiB each.
const (
	// namespaceShare are bytes per second, and namespaceBurst is how long unused ones remain
	// available: 32 MiB.
	namespaceShare = 512 << 10
	namespaceBurst = 64 * time.Second
	// leastRulesBytes is the minimum that each write counts for.
	leastRulesBytes = 2 << 10
)

// Memory is what is remembered of Services between reconciliations. It only contains existing
// Services, so it is bounded by them. Nothing in it is needed for correct results.
type Memory struct {
	metrics *metrics.Metrics
	changed func() // called, without the lock, when unrendered or delayed Services change

	mu         sync.Mutex
	services   map[types.NamespacedName]*state // guarded by mu
	pace       *pacing.Buckets                 // guarded by mu
	unrendered int                             // guarded by mu
	term       int                             // guarded by mu
	leading    bool                            // guarded by mu
	// older are the Services that existed when the term began, and still do. Nil: not known yet;
	// guarded by mu.
	older map[types.NamespacedName]struct{}
}

// state is what is remembered of one Service.
type state struct {
	settled   bool              // whether it is unrendered is known, or it waits for its namespace's bytes
	stored    bool              // it has had rules in this term, which were not released since
	ended     bool              // its rules were released in this term, and it has not had any since
	delayed   bool              // it has none yet, because its namespace has used up its bytes
	claim     pacing.Claim      // of its namespace's bytes
	lastWrite time.Time         // last write of the rules
	lastBytes int               // their size
	until     time.Time         // before then nothing would be written
	vain      int               // renderings since the last write, or since a longer silence
	lastVain  time.Time         // the last of them
	itself    time.Time         // last write because the Service itself had changed
	change    change            // since the rules were up to date
	problems  map[string]string // text of the last event, by reason
	failure   *failure          // nil unless unrendered
}

// change is what is known about why rules are not up to date.
type change struct {
	slice time.Time // first event of a slice; zero: none
	// addresses: nodes, API servers or service ranges have changed; policies: policies or labels of
	// Namespaces have. Tenants cannot cause these, so they do not wait for the changes of tenants.
	addresses, policies bool
}

// NewMemory returns an empty Memory; it calls changed when unrendered or delayed Services change.
func NewMemory(m *metrics.Metrics, changed func()) *Memory {
	return &Memory{
		metrics: m, changed: changed, services: map[types.NamespacedName]*state{},
		pace: pacing.NewBuckets(namespaceShare, namespaceBurst, leastRulesBytes),
	}
}

// of returns the state of a Service; mu must be held.
func (m *Memory) of(key types.NamespacedName) *state {
	s := m.services[key]
	if s == nil {
		s = &state{}
		m.services[key] = s
	}
	return s
}

// forget drops a deleted Service.
func (m *Memory) forget(key types.NamespacedName) {
	m.accepted(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.services, key)
	delete(m.older, key)
}

// switchedOff drops a Service while nothing is rendered. What follows begins anew, as a term does.
func (m *Memory) switchedOff(key types.NamespacedName) {
	m.forget(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.older = nil
}

// end drops a Service that is not eligible, except for whether it has rules, and for changes that no
// tenant has caused: it may become eligible before its rules are released.
func (m *Memory) end(key types.NamespacedName) {
	m.accepted(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.of(key)
	was.change.slice = time.Time{}
	m.services[key] = &state{settled: true, stored: was.stored, ended: was.ended, change: was.change}
}

// released notes that an existing Service has no rules, or only released ones.
func (m *Memory) released(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.services[key]; s != nil {
		s.stored, s.ended = false, true
	}
}

// NewTerm forgets what may have changed while another controller led. Failures of the former term
// count until their Services are reconciled.
func (m *Memory) NewTerm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.term++
	m.leading, m.older = true, nil
	for key, s := range m.services {
		m.giveBack(key, s)
		s.settled, s.stored, s.ended, s.change = false, false, false, change{}
	}
	m.metrics.ShowUnrendered(m.unrendered)
}

// EndTerm stops noting changes. The next term renders all Services.
func (m *Memory) EndTerm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leading = false
}

// begun reports whether it is known which Services are older than the term.
func (m *Memory) begun() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.older != nil
}

// begin records which Services are older than the term, unless that is known, and forgets those that
// were deleted before it. What has changed of the others before it may not be from a tenant.
func (m *Memory) begin(services []corev1.Service) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.older != nil { // Services may have gone since
		return
	}
	m.older = make(map[types.NamespacedName]struct{}, len(services))
	for i := range services {
		key := client.ObjectKeyFromObject(&services[i])
		m.older[key] = struct{}{}
		s := m.of(key)
		s.change.addresses, s.change.policies = true, true
	}
	for key, s := range m.services {
		if _, exists := m.older[key]; exists {
			continue
		}
		m.giveBack(key, s)
		if s.failure != nil {
			m.unrendered--
		}
		delete(m.services, key)
	}
	m.metrics.ShowUnrendered(m.unrendered)
}

// CurrentTerm identifies the term.
func (m *Memory) CurrentTerm() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term
}

// Settled reports whether it is known in this term if a Service is unrendered.
func (m *Memory) Settled(key types.NamespacedName) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	return s != nil && s.settled
}

// newProblems records the problems of a Service for one reason, and reports whether they have not
// been reported yet.
func (m *Memory) newProblems(key types.NamespacedName, reason, problems string) bool {
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

// EventLost notes that the last event of a reason about a Service was lost, so that the problem is
// reported again when it is found again.
func (m *Memory) EventLost(key types.NamespacedName, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	if s == nil {
		return
	}
	delete(s.problems, reason)
	if reason == eventServiceNotRendered && s.failure != nil {
		s.failure.eventLost = true
	}
}

// wait returns how long the next write of a Service must wait. The first change is written at once
// while its namespace has bytes left. A change of stored rules that no tenant has caused does not
// need them.
func (m *Memory) wait(key types.NamespacedName, load render.Load, stored, byTenant bool, now time.Time) time.Duration {
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
		wait = max(0, m.pace.Wait(key.Namespace, &s.claim, bytes, now))
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

// seen notes whether a Service has rules. After its end, the cache may still have its former ones.
func (s *state) seen(stored bool) {
	s.stored = s.stored || stored && !s.ended
}

// isNew reports whether a Service has no rules and never had any. Rules that have vanished, which no
// tenant can cause, are retained by agents, so their Service must not become a delayed one. Services
// older than the term may have had rules.
func (s *state) isNew(stored, older bool) bool {
	return !stored && !s.stored && (s.ended || !older)
}

// Delayed returns the Services without rules whose namespaces have used up their bytes.
func (m *Memory) Delayed() []types.NamespacedName {
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
func (m *Memory) giveBack(key types.NamespacedName, s *state) bool {
	m.pace.GiveBack(key.Namespace, &s.claim)
	was := s.delayed
	s.delayed = false
	return was
}

// pause delays the next rendering of a Service that was not written, but not beyond its turn, which is
// again from now; 0: it has none.
func (m *Memory) pause(key types.NamespacedName, load render.Load, again time.Duration, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(key).pause(render.Pace(load), again, now)
}

func (s *state) pause(interval, again time.Duration, now time.Time) {
	if again > 0 {
		interval = min(interval, again)
	}
	s.until = now.Add(interval)
}

// maxVain is how many renderings in a row may write nothing without a pause.
const maxVain = 10

// inVain notes that a rendering has written nothing. Further ones in a row are paced as writes are,
// because they cost as much; few must not delay the next change.
func (m *Memory) inVain(key types.NamespacedName, load render.Load, again time.Duration, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, interval := m.of(key), render.Pace(load)
	if now.Sub(s.lastVain) >= 2*interval {
		s.vain = 0
	}
	if s.vain, s.lastVain = s.vain+1, now; s.vain >= maxVain {
		s.pause(interval, again, now)
	}
}

// waiting notes whether a Service has rules, and returns how long it need not be rendered. Without
// stored rules it does not wait, unless they were unrendered, or are new and wait for the namespace.
// Stored ones do not wait for it if their change may not be from a tenant.
func (m *Memory) waiting(key types.NamespacedName, stored bool, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(key)
	s.seen(stored)
	var until time.Time
	if stored || s.failure != nil {
		until = s.until
	}
	byTenant := !s.change.addresses && !s.change.policies
	if s.claim.Bytes > 0 && (stored && byTenant || !stored && !s.stored) && s.claim.At.After(until) {
		until = s.claim.At
	}
	return max(0, until.Sub(now))
}

// note records a change of what a Service is rendered from. A standby would never forget the names of
// Services that tenants create and delete.
func (m *Memory) note(key types.NamespacedName, c change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.leading {
		return
	}
	known := &m.of(key).change
	if known.slice.IsZero() || !c.slice.IsZero() && c.slice.Before(known.slice) {
		known.slice = c.slice
	}
	known.addresses = known.addresses || c.addresses
	known.policies = known.policies || c.policies
}

// takeChange returns and clears what has changed since the rules were up to date: call it before
// anything is read. What is not written must be noted again.
func (m *Memory) takeChange(key types.NamespacedName) change {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.of(key)
	taken := s.change
	s.change = change{}
	return taken
}

// wrote notes a write of a Service's rules, and whether the Service itself had changed.
func (m *Memory) wrote(key types.NamespacedName, bytes int, itself bool, now time.Time) {
	m.mu.Lock()
	s := m.of(key)
	s.lastWrite, s.lastBytes, s.stored, s.ended, s.vain = now, bytes, true, false, 0
	if itself {
		s.itself = now
	}
	if s.claim.Bytes > 0 { // else no tenant has caused it
		m.pace.Wrote(key.Namespace, &s.claim, bytes, now)
	}
	was := s.delayed
	s.delayed = false
	m.mu.Unlock()
	if was {
		m.changed()
	}
}

// tried notes a write that the API server denied, which costs as many bytes as any other.
func (m *Memory) tried(key types.NamespacedName, bytes int, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.of(key); s.claim.Bytes > 0 {
		m.pace.Wrote(key.Namespace, &s.claim, bytes, now)
	}
}

// settleTime is how long after a change of a Service nodes may reject it because of the change.
const settleTime = time.Minute

// changedLately reports whether rules were written less than settleTime ago because the Service
// itself had changed. Writes before a restart are not known.
func (m *Memory) changedLately(key types.NamespacedName, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	return s != nil && !s.itself.IsZero() && now.Sub(s.itself) < settleTime
}
