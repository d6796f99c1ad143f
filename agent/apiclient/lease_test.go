package apiclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
)

// renewer is a leaseRenewer whose renewals a test sees one by one.
type renewer struct {
	*LeaseRenewer
	clock  *clocktesting.FakeClock
	writes chan lease
	answer chan error
	log    chan string
	stop   func()
}

func startRenewer(t *testing.T) *renewer {
	t.Helper()
	k := &renewer{clock: clocktesting.NewFakeClock(agenttest.Epoch), writes: make(chan lease), answer: make(chan error), log: make(chan string, 100)}
	version := 100
	k.LeaseRenewer = &LeaseRenewer{
		LeaseOptions: LeaseOptions{
			Clock: k.clock, Namespace: "ns", Node: "node-1",
			Log:     funcr.New(func(_, args string) { k.log <- args }, funcr.Options{}),
			Applied: func() string { version++; return fmt.Sprint(version) },
			Metrics: NewMetrics(prometheus.NewRegistry()),
		},
		write: func(ctx context.Context, l lease) error {
			select {
			case k.writes <- l:
				return <-k.answer
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		share: func() float64 { return 0.5 },
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	k.stop = func() { cancel(); <-done }
	t.Cleanup(k.stop)
	return k
}

// renewal waits for a renewal, which ends with err, and lets the renewer come to
// rest.
func (k *renewer) renewal(t *testing.T, err error) lease {
	t.Helper()
	select {
	case l := <-k.writes:
		k.answer <- err
		for !k.clock.HasWaiters() {
			if t.Context().Err() != nil {
				t.Fatal("the renewer does not wait")
			}
		}
		return l
	case <-t.Context().Done():
	case <-time.After(20 * time.Second):
	}
	t.Fatal("no renewal")
	return lease{}
}

// after expects a renewal when exactly so much time has passed.
func (k *renewer) after(t *testing.T, d time.Duration, err error) lease {
	t.Helper()
	k.clock.Step(d - time.Millisecond)
	if !k.clock.HasWaiters() {
		t.Fatalf("renewed before %v", d)
	}
	k.clock.Step(time.Millisecond)
	return k.renewal(t, err)
}

func TestLeaseIsRenewedEvery30Seconds(t *testing.T) {
	k := startRenewer(t)
	if l := k.renewal(t, nil); l.namespace != "ns" || l.node != "node-1" || l.applied != "102" || !l.renewed.Equal(agenttest.Epoch) {
		t.Errorf("first renewal %+v", l)
	}
	k.after(t, 15*time.Second, nil) // half the pause, by share
	for range 3 {
		k.after(t, 30*time.Second, nil)
	}
	if l := k.after(t, 30*time.Second, nil); l.applied != "107" || !l.renewed.Equal(agenttest.Epoch.Add(135*time.Second)) {
		t.Errorf("sixth renewal %+v", l)
	}
}

func TestLeaseIsRetriedAndLoggedOnce(t *testing.T) {
	k := startRenewer(t)
	k.renewal(t, nil)
	k.after(t, 15*time.Second, errors.New("connection refused"))
	// 0.75 of 1, 2, 4, 8 and then 10 s, by share.
	for _, ms := range []time.Duration{750, 1500, 3000, 6000, 7500, 7500} {
		k.after(t, ms*time.Millisecond, errors.New("connection reset"))
	}
	k.after(t, 7500*time.Millisecond, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "agent.node-1", nil))
	k.after(t, 7500*time.Millisecond, nil)
	k.after(t, 15*time.Second, nil) // half the pause, by share: not all agents at a time
	k.after(t, 30*time.Second, errors.New("connection refused"))
	k.after(t, 750*time.Millisecond, nil) // the pauses begin anew
	k.stop()
	close(k.log)
	var lines []string
	for line := range k.log {
		lines = append(lines, line)
	}
	want := []string{"by its real address", "apply the agent's Role", "renewed again", "by its real address", "renewed again"}
	if len(lines) != len(want) {
		t.Fatalf("%d lines: %s", len(lines), strings.Join(lines, "\n"))
	}
	for i := range want {
		if !strings.Contains(lines[i], want[i]) {
			t.Errorf("line %d lacks %q: %s", i, want[i], lines[i])
		}
	}
}

func TestNoNamespaceNoLease(t *testing.T) {
	k := &LeaseRenewer{write: func(context.Context, lease) error { t.Error("written"); return nil }}
	k.Run(t.Context()) // returns
}

// TestFirstLeaseWaitsForAFirstSet: an agent that has been started again must not
// report that it has applied nothing while the kernel has everything.
func TestFirstLeaseWaitsForAFirstSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		for _, tt := range []struct{ set, want time.Duration }{
			{0, 0}, {time.Second, time.Second}, {time.Hour, appliedWait},
		} {
			begun := time.Now()
			k := &LeaseRenewer{LeaseOptions: LeaseOptions{Clock: clock.RealClock{}, Applied: func() string {
				if time.Since(begun) >= tt.set {
					return "7"
				}
				return ""
			}}}
			k.awaitApplied(t.Context())
			if got := time.Since(begun); got != tt.want {
				t.Errorf("a first set after %s: waited for %s, want %s", tt.set, got, tt.want)
			}
		}
		if time.Since(start) != time.Second+appliedWait {
			t.Errorf("%s in all", time.Since(start))
		}
	})
}
