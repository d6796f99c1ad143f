package services

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// reportProblems reports the problems of a Service for a reason, if they are new.
func (r *Reconciler) reportProblems(ctx context.Context, svc *corev1.Service, reason, text string) {
	key := client.ObjectKeyFromObject(svc)
	if !r.Memory.newProblems(key, reason, text) && text != "" {
		return
	}
	if !r.Events.Warn(ctx, svc, reason, events.ActionRender, text) {
		r.Memory.EventLost(key, reason)
	}
}

// rangeText describes problems of source ranges; empty if there are none.
func rangeText(problems []string) string {
	if len(problems) == 0 {
		return ""
	}
	return text.Truncate("Source ranges that cannot be used: "+strings.Join(problems, "; ")+". Correct spec.loadBalancerSourceRanges", text.MaxEventNote)
}

// problemText names the first few problems; empty if there are none.
func problemText(problems []render.Problem) string {
	if len(problems) == 0 {
		return ""
	}
	return text.Truncate("Skipped endpoints that cannot be used (all others are programmed): "+text.First(problems, render.Problem.String), text.MaxEventNote)
}

// skippedText names the first few skipped addresses; empty if there are none.
func skippedText(addresses []v1alpha1.SkippedAddress) string {
	if len(addresses) == 0 {
		return ""
	}
	one := func(a v1alpha1.SkippedAddress) string { return a.Address + " " + a.Reason }
	return text.Truncate("Skipped addresses that Services are not allowed to have (all others are programmed): "+text.First(addresses, one)+
		". Remove them from spec.externalIPs, or have the load balancer controller assign others", text.MaxEventNote)
}

// accept notes that a Service is not rejected (any more).
func (r *Reconciler) accept(ctx context.Context, svc *corev1.Service) {
	r.Memory.accepted(client.ObjectKeyFromObject(svc))
	r.Events.Warn(ctx, svc, eventServiceRejected, actionWrite, "")
}

// reject notes and reports that a Service's rules cannot be written; the stored rules stay. It
// returns when to retry.
func (r *Reconciler) reject(ctx context.Context, svc *corev1.Service, reason, message string, fingerprint uint64) time.Duration {
	key := client.ObjectKeyFromObject(svc)
	say, retry := r.Memory.reject(key, reason, message, fingerprint, r.Clock.Now())
	if say && !r.Events.Warn(ctx, svc, eventServiceRejected, actionWrite,
		"Its rules cannot be stored, so nodes keep its former rules and miss changes: "+message) {
		r.Memory.EventLost(key, eventServiceRejected)
	}
	return retry
}
