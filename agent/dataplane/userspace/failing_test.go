package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// An endpoint is reported once it has failed for a while, until it accepts, is removed, or is not tried any more.
func TestFailing(t *testing.T) {
	table, now := newTable(), time.Now()
	ports, _ := table.set(serviceID{named("web"), dataplane.IPv4}, webService(clusterIP, 0), now)
	p := ports[0]
	p.set([policies][]netip.AddrPort{addresses(3), nil}, nil, 0)
	one := p.known[addresses(1)[0]]
	p.connections.Add(100)
	p.failure(one, v1alpha1.EndpointSilent, now, &p.counters)
	p.connections.Add(7)
	p.rejected[noEndpoint].Add(1)
	p.failure(one, v1alpha1.EndpointRejects, now.Add(time.Second), &p.counters)
	at := func(after time.Duration) []v1alpha1.FailingEndpoint {
		out := table.failing(now.Add(after))
		for i := range out {
			out[i].Since = metav1.Time{}
		}
		return out
	}
	reported := []v1alpha1.FailingEndpoint{{
		Service: "default/web", Port: "80/TCP", Endpoint: "10.0.0.1:80", Reason: v1alpha1.EndpointRejects, Failed: 2, Connections: 7, Rejected: 1,
	}}
	for after, want := range map[time.Duration][]v1alpha1.FailingEndpoint{
		failingAfter - time.Millisecond: nil,
		failingAfter:                    reported,
		failingUntil:                    reported,
		failingUntil + time.Second:      nil,
	} {
		if diff := cmp.Diff(want, at(after)); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", after, diff)
		}
	}
	p.success(one)
	if got := at(failingAfter); got != nil || p.mayFail.Load() {
		t.Errorf("it has accepted: %v, may fail: %t", got, p.mayFail.Load())
	}
	p.failure(one, v1alpha1.EndpointRejects, now, &p.counters)
	p.set([policies][]netip.AddrPort{addresses(3)[1:], nil}, addresses(1), 0)
	if got := at(failingAfter); got != nil {
		t.Errorf("no policy selects it: %v", got)
	}
}

// No namespace hides the endpoints of another.
func TestReportOf(t *testing.T) {
	if got := reportOf(nil); got != nil {
		t.Errorf("%v", got)
	}
	all := []v1alpha1.FailingEndpoint{{Service: "other/web", Port: "80/TCP", Endpoint: "10.1.0.1:80"}}
	for i := range 2 * dataplane.MaxExamples {
		all = append(all, v1alpha1.FailingEndpoint{Service: "busy/web", Port: "80/TCP", Endpoint: fmt.Sprintf("10.0.0.%d:80", 10+i)})
	}
	got := reportOf(slices.Clone(all))
	if got.Failing != int32(len(all)) || len(got.Endpoints) != dataplane.MaxExamples || !slices.Contains(got.Endpoints, all[0]) {
		t.Errorf("%+v", got)
	}
	slices.Reverse(all)
	if diff := cmp.Diff(got, reportOf(all)); diff != "" {
		t.Errorf("in another order (-first +now):\n%s", diff)
	}
}

func TestFailureOf(t *testing.T) {
	for err, want := range map[error]v1alpha1.EndpointFailure{
		syscall.ECONNREFUSED: v1alpha1.EndpointRejects,
		os.NewSyscallError("connect", syscall.ECONNREFUSED): v1alpha1.EndpointRejects,
		syscall.ECONNRESET:                        v1alpha1.EndpointResets,
		syscall.ETIMEDOUT:                         v1alpha1.EndpointSilent,
		&net.OpError{Err: os.ErrDeadlineExceeded}: v1alpha1.EndpointSilent,
		syscall.EHOSTUNREACH:                      v1alpha1.EndpointUnreachable,
		syscall.ENETUNREACH:                       v1alpha1.EndpointUnreachable,
		errors.Join(context.Canceled):             v1alpha1.EndpointRejects,
	} {
		if got := failureOf(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}
