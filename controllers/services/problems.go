package services

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// Reasons and actions of events about Services.
const (
	eventAddressesSkipped     = "AddressesSkipped"
	eventEndpointsSkipped     = "EndpointsSkipped"
	eventSourceRangesUnusable = "SourceRangesUnusable"
	eventServiceNotRendered   = "ServiceNotRendered"
	actionWrite               = "Write"
)

const tooLargeMessage = "its ServiceProxyRules would be larger than 1 MiB; split the Service or let it select fewer pods"

// reportProblems reports the problems of a Service for a reason if they are new, or their end.
func (r *Reconciler) reportProblems(ctx context.Context, svc *corev1.Service, reason, text string) {
	key := client.ObjectKeyFromObject(svc)
	if !r.Memory.newProblems(key, reason, text) && text != "" {
		return
	}
	if !r.Events.Warn(ctx, svc, reason, events.ActionRender, text) {
		r.Memory.EventLost(key, reason)
	}
}

// note returns the note of an event about problems; empty if there are none.
func note(before, problems, after string) string {
	if problems == "" {
		return ""
	}
	return text.Truncate(before+problems+after, text.MaxEventNote)
}

func problemText(problems []render.Problem) string {
	after := ""
	if len(problems) == render.MaxProblems { // there may be more
		problems, after = problems[:3], "; and others"
	}
	return note("Skipped endpoints that cannot be used (all others are programmed): ", text.First(problems, render.Problem.String), after)
}

func skippedText(addresses []v1alpha1.SkippedAddress) string {
	one := func(a v1alpha1.SkippedAddress) string { return a.Address + " " + a.Reason }
	return note("Skipped addresses that Services are not allowed to have (all others are programmed): ", text.First(addresses, one),
		". Remove them from spec.externalIPs, or have the load balancer controller assign others")
}

// accept notes that a Service is rendered.
func (r *Reconciler) accept(ctx context.Context, svc *corev1.Service) {
	r.Memory.accepted(client.ObjectKeyFromObject(svc))
	r.Events.Warn(ctx, svc, eventServiceNotRendered, actionWrite, "")
}

// notRendered notes and reports that a Service's rules cannot be written; the stored ones remain. It
// returns when to retry.
func (r *Reconciler) notRendered(ctx context.Context, svc *corev1.Service, reason, message string, fingerprint uint64) time.Duration {
	key := client.ObjectKeyFromObject(svc)
	isNew, retry := r.Memory.notRendered(key, reason, message, fingerprint, r.Clock.Now())
	if isNew && !r.Events.Warn(ctx, svc, eventServiceNotRendered, actionWrite,
		"Its rules cannot be stored, so nodes retain its previous rules and miss changes: "+message) {
		r.Memory.EventLost(key, eventServiceNotRendered)
	}
	return retry
}

// Pauses between attempts to write what could not be stored.
const (
	firstRetry = time.Minute
	maxRetry   = 10 * time.Minute
)

// failure describes a Service that cannot be rendered or stored.
type failure struct {
	reason      string // the message without changing numbers
	message     string
	fingerprint uint64 // of what could not be stored
	since       time.Time
	attempts    int
	retryAt     time.Time
	eventLost   bool // the event about it was lost
}

// accepted notes that a Service is rendered, and does not wait to be written.
func (m *Memory) accepted(key types.NamespacedName) {
	m.mu.Lock()
	s := m.of(key)
	s.settled = true
	was := m.giveBack(key, s)
	if s.failure != nil {
		was = true
		s.failure = nil
		m.unrendered--
		m.metrics.ShowUnrendered(m.unrendered)
	}
	m.mu.Unlock()
	if was {
		m.changed()
	}
}

// notRendered notes that the content with this fingerprint could not be stored. It returns whether to
// report that, once for each reason, and when to retry.
func (m *Memory) notRendered(key types.NamespacedName, reason, message string, fingerprint uint64, now time.Time) (report bool, retry time.Duration) {
	m.mu.Lock()
	s := m.of(key)
	s.settled = true
	delayed := m.giveBack(key, s)
	report = s.failure == nil || s.failure.reason != reason || s.failure.eventLost
	if s.failure == nil {
		s.failure = &failure{since: now}
		m.unrendered++
		m.metrics.ShowUnrendered(m.unrendered)
	}
	r := s.failure
	if r.fingerprint != fingerprint {
		r.attempts = 0
	}
	r.reason, r.message, r.fingerprint, r.eventLost = reason, message, fingerprint, false
	retry = min(maxRetry, firstRetry<<min(r.attempts, 4))
	r.attempts++
	r.retryAt = now.Add(retry)
	m.mu.Unlock()
	if report || delayed {
		m.changed()
	}
	return report, retry
}

// retryIn returns how long to wait before the same content is written again; 0: now.
func (m *Memory) retryIn(key types.NamespacedName, fingerprint uint64, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.services[key]
	if s == nil || s.failure == nil || s.failure.fingerprint != fingerprint {
		return 0
	}
	return max(0, s.failure.retryAt.Sub(now))
}

// Unrendered returns the unrendered Services, newest first.
func (m *Memory) Unrendered() []v1alpha1.UnrenderedService {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []types.NamespacedName
	for key, s := range m.services {
		if s.failure != nil {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int {
		newest := m.services[b].failure.since.Compare(m.services[a].failure.since)
		return cmp.Or(newest, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out := make([]v1alpha1.UnrenderedService, len(keys))
	for i, key := range keys {
		out[i] = v1alpha1.UnrenderedService{Namespace: key.Namespace, Name: key.Name, Message: m.services[key].failure.message}
	}
	return out
}
