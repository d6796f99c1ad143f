package userspace

import (
	"cmp"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

const (
	// failingAfter is how long an endpoint must have failed before it is reported: one that has just ended is
	// soon removed.
	failingAfter = 10 * time.Second
	// failingUntil is for how long it is reported if no connection tries it any more.
	failingUntil = 10 * time.Minute
)

// failing is how an endpoint has failed since it last accepted; zero: not at all.
type failing struct {
	why         v1alpha1.EndpointFailure // of the last attempt
	since, last time.Time                // the first and the last attempt
	attempts    int64
	// What the port had counted before.
	connections, rejected int64
}

// note notes a failed attempt.
func (f *failing) note(why v1alpha1.EndpointFailure, now time.Time, c *counters) {
	if f.attempts == 0 {
		f.since, f.connections, f.rejected = now, c.connections.Load(), c.rejected[noEndpoint].Load()
	}
	f.attempts++
	f.why, f.last = why, now
}

// reported reports whether it is worth a report.
func (f *failing) reported(now time.Time) bool {
	return f.attempts > 0 && now.Sub(f.since) >= failingAfter && now.Sub(f.last) < failingUntil
}

// failureOf returns why an endpoint did not accept, by the error of the attempt.
func failureOf(err error) v1alpha1.EndpointFailure {
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return v1alpha1.EndpointResets
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return v1alpha1.EndpointSilent
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return v1alpha1.EndpointUnreachable
	default:
		return v1alpha1.EndpointRejects
	}
}

// Failing returns the endpoints that do not accept connections; nil: all do.
func (p *Proxy) Failing() *v1alpha1.UserspaceReport {
	return reportOf(p.table.failing(p.clock.Now()))
}

// failing returns those of all ports, in no order.
func (t *table) failing(now time.Time) (out []v1alpha1.FailingEndpoint) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, p := range t.ports {
		if p.mayFail.Load() {
			out = append(out, p.failingEndpoints(now)...)
		}
	}
	return out
}

// failingEndpoints returns those among which the port chooses.
func (p *port) failingEndpoints(now time.Time) (out []v1alpha1.FailingEndpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fails := false
	for _, e := range p.known {
		f := &e.failing
		fails = fails || f.attempts > 0
		if e.listed == [policies]bool{} || !f.reported(now) {
			continue
		}
		out = append(out, v1alpha1.FailingEndpoint{
			Service: p.id.service.String(), Port: p.id.text(), Endpoint: e.address.String(), Reason: f.why,
			Since: metav1.NewTime(f.since.UTC().Truncate(time.Second)), Failed: f.attempts,
			Connections: p.connections.Load() - f.connections, Rejected: p.rejected[noEndpoint].Load() - f.rejected,
		})
	}
	p.mayFail.Store(fails)
	return out
}

// reportOf names some of the endpoints that fail. Each namespace has one before any has two, so that none can
// hide those of others.
func reportOf(all []v1alpha1.FailingEndpoint) *v1alpha1.UserspaceReport {
	if len(all) == 0 {
		return nil
	}
	slices.SortFunc(all, func(a, b v1alpha1.FailingEndpoint) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Endpoint, b.Endpoint))
	})
	byNamespace := map[string][]v1alpha1.FailingEndpoint{}
	for _, e := range all {
		namespace, _, _ := strings.Cut(e.Service, "/")
		byNamespace[namespace] = append(byNamespace[namespace], e)
	}
	namespaces := slices.Sorted(maps.Keys(byNamespace))
	out := &v1alpha1.UserspaceReport{Failing: int32(len(all))} //nolint:gosec // fits
	for i := 0; len(out.Endpoints) < min(len(all), dataplane.MaxExamples); i++ {
		for _, namespace := range namespaces {
			if own := byNamespace[namespace]; i < len(own) && len(out.Endpoints) < dataplane.MaxExamples {
				out.Endpoints = append(out.Endpoints, own[i])
			}
		}
	}
	return out
}
