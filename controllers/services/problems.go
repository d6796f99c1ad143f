package services

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

// Reasons and actions of events about Services.
const (
	eventAddressesSkipped     = "AddressesSkipped"
	eventEndpointsSkipped     = "EndpointsSkipped"
	eventSourceRangesUnusable = "SourceRangesUnusable"
	eventServiceRejected      = "ServiceNotRendered"
	actionWrite               = "Write"
)

// maxObjectBytes limits rules: etcd accepts 1.5 MiB; the rest is for metadata and growth of the format.
const maxObjectBytes = 1 << 20

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

func rangeText(problems []string) string {
	return note("Source ranges that cannot be used: ", strings.Join(problems, "; "), ". Correct spec.loadBalancerSourceRanges")
}

func problemText(problems []render.Problem) string {
	return note("Skipped endpoints that cannot be used (all others are programmed): ", text.First(problems, render.Problem.String), "")
}

func skippedText(addresses []v1alpha1.SkippedAddress) string {
	one := func(a v1alpha1.SkippedAddress) string { return a.Address + " " + a.Reason }
	return note("Skipped addresses that Services are not allowed to have (all others are programmed): ", text.First(addresses, one),
		". Remove them from spec.externalIPs, or have the load balancer controller assign others")
}

// accept notes that a Service is not rejected (any more).
func (r *Reconciler) accept(ctx context.Context, svc *corev1.Service) {
	r.Memory.accepted(client.ObjectKeyFromObject(svc))
	r.Events.Warn(ctx, svc, eventServiceRejected, actionWrite, "")
}

// reject notes and reports that a Service's rules cannot be written; the stored ones remain. It
// returns when to retry.
func (r *Reconciler) reject(ctx context.Context, svc *corev1.Service, reason, message string, fingerprint uint64) time.Duration {
	key := client.ObjectKeyFromObject(svc)
	isNew, retry := r.Memory.reject(key, reason, message, fingerprint, r.Clock.Now())
	if isNew && !r.Events.Warn(ctx, svc, eventServiceRejected, actionWrite,
		"Its rules cannot be stored, so nodes keep its former rules and miss changes: "+message) {
		r.Memory.EventLost(key, eventServiceRejected)
	}
	return retry
}

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

// accepted notes that a Service is not rejected, and does not wait to be written.
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
func (m *Memory) reject(key types.NamespacedName, reason, message string, fingerprint uint64, now time.Time) (report bool, retry time.Duration) {
	m.mu.Lock()
	s := m.of(key)
	s.settled = true
	delayed := m.giveBack(key, s)
	report = s.rejection == nil || s.rejection.reason != reason || s.rejection.eventLost
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
	if s == nil || s.rejection == nil || s.rejection.fingerprint != fingerprint {
		return 0
	}
	return max(0, s.rejection.retryAt.Sub(now))
}

// Rejected returns the rejected Services, newest first.
func (m *Memory) Rejected() []v1alpha1.UnrenderedService {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []types.NamespacedName
	for key, s := range m.services {
		if s.rejection != nil {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int {
		newest := m.services[b].rejection.since.Compare(m.services[a].rejection.since)
		return cmp.Or(newest, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	out := make([]v1alpha1.UnrenderedService, len(keys))
	for i, key := range keys {
		out[i] = v1alpha1.UnrenderedService{Namespace: key.Namespace, Name: key.Name, Message: m.services[key].rejection.message}
	}
	return out
}
