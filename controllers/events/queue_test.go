package events

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
)

// store is a client that keeps the events that it is to create, each name once.
type store struct {
	client.Client
	hold chan struct{} // not nil: what is created waits for it

	mu     sync.Mutex
	err    error
	tried  int
	events []*eventsv1.Event
}

func (s *store) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	if s.hold != nil {
		select {
		case <-s.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried++
	if s.err != nil {
		return s.err
	}
	event := o.(*eventsv1.Event)
	for _, e := range s.events {
		if e.Namespace == event.Namespace && e.Name == event.Name {
			return apierrors.NewAlreadyExists(eventsv1.Resource("events"), event.Name)
		}
	}
	s.events = append(s.events, event)
	return nil
}

func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// rig writes events when the test calls for it.
type rig struct {
	*Recorder
	t        *testing.T
	store    *store
	clock    *clocktesting.FakeClock
	registry *prometheus.Registry
	ctx      context.Context
	logged   []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, store: &store{}, clock: clocktesting.NewFakeClock(controllertest.Noon), registry: prometheus.NewRegistry()}
	m := metrics.New(r.registry)
	r.ctx = log.IntoContext(t.Context(), funcr.New(func(_, text string) { r.logged = append(r.logged, text) }, funcr.Options{}))
	r.Recorder = NewRecorder(NewQueue(leader.Always{}, r.store, r.clock, m), r.clock)
	return r
}

// pass lets time pass, and has what is due then written.
func (r *rig) pass(d time.Duration) {
	r.clock.Step(d)
	r.queue.writeDue(r.ctx)
}

func (r *rig) expect(notes ...string) {
	r.t.Helper()
	var got []string
	for _, e := range r.store.events {
		got = append(got, e.Note)
	}
	if strings.Join(got, "|") != strings.Join(notes, "|") {
		r.t.Errorf("events %q, want %q", got, notes)
	}
}

func (r *rig) expectCounts(written, failed, dropped float64) {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "nodeproxy_controller_events_total" {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if got[eventWritten] != written || got[eventFailed] != failed || got[eventDropped] != dropped {
		r.t.Errorf("counts %v, want %v written, %v failed, %v dropped", got, written, failed, dropped)
	}
}

func (r *rig) warned(svc *corev1.Service, note string) bool {
	return r.Warn(r.ctx, svc, "ServiceNotRendered", "Write", note)
}

func TestServiceThatAlternatesHasFewEvents(t *testing.T) {
	r := newRig(t)
	big := controllertest.ServiceNamed("shop", "big")
	const even, odd = "it has 20001 endpoints", "it has 20002 endpoints"
	for i := range 600 { // an hour of changes every 6 s
		r.warned(big, []string{even, odd}[i%2])
		r.pass(6 * time.Second)
	}
	if n := len(r.store.events); n != 2 || r.store.tried > 7 {
		t.Errorf("%d events in an hour by %d tries, want 2 and at most one in ten minutes: %v", n, r.store.tried, r.store.events)
	}
	if first := r.store.events[0].Note; first != even {
		t.Errorf("the first event is %q", first)
	}
	if len(r.logged) == 0 || len(r.logged) > 7 {
		t.Errorf("%d lines in the log of an hour: %q", len(r.logged), r.logged)
	}
	other := controllertest.ServiceNamed("shop", "small")
	r.warned(other, even)
	r.Warn(r.ctx, other, "EndpointsSkipped", ActionRender, "a port has no number")
	r.pass(0)
	if n := len(r.store.events); n != 4 {
		t.Errorf("%d events, want those of another Service and of another reason at once", n)
	}
}

func TestEventReportsHowManyWereLeftOut(t *testing.T) {
	r := newRig(t)
	svc := controllertest.ServiceNamed("shop", "cart")
	r.warned(svc, "one")
	r.pass(0)
	for _, note := range []string{"two", "three", "three", "four"} {
		r.warned(svc, note)
		r.pass(time.Second)
	}
	r.expect("one")
	r.pass(eventInterval - 5*time.Second)
	r.expect("one")
	r.pass(time.Second)
	r.expect("one", "four (changed 2 more times since the last event)")
	if len(r.logged) != 1 {
		t.Errorf("log %q, want one line", r.logged)
	}

	// After a restart, existing events are not written again.
	again := newRig(t)
	again.store = r.store
	again.queue.client = r.store
	again.warned(svc, "four")
	again.pass(0)
	r.expect("one", "four (changed 2 more times since the last event)")
}

func TestWhatHoldsNoLongerIsNotWritten(t *testing.T) {
	r := newRig(t)
	svc := controllertest.ServiceNamed("shop", "cart")
	r.warned(svc, "one")
	r.pass(0)
	r.warned(svc, "two")
	r.warned(svc, "")
	r.pass(eventInterval)
	r.expect("one")
	if n := len(r.queue.series) + len(r.queue.namespaces); n != 0 {
		t.Errorf("%d series are remembered", n)
	}
	r.warned(svc, "three") // back after a while: at once
	r.pass(0)
	r.expect("one", "three")
}

// A reconciler only adds to the queue, however long the API server takes.
func TestSlowAPIServerDelaysNoReconciler(t *testing.T) {
	r := newRig(t)
	r.store.hold = make(chan struct{})
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() { done <- r.queue.Start(ctx) }()
	for i := range 2 * maxNamespaceSeries {
		if taken := r.warned(controllertest.ServiceNamed("shop", fmt.Sprint(i)), "one"); taken != (i < maxNamespaceSeries) {
			t.Fatalf("event %d: taken %t", i, taken)
		}
	}
	if !r.warned(controllertest.ServiceNamed("bank", "a"), "one") {
		t.Error("events of one namespace keep out those of another")
	}
	if len(r.store.events) != 0 {
		t.Error("an event is written though the API server does not answer")
	}
	r.expectCounts(0, 0, maxNamespaceSeries)
	if len(r.logged) != maxNamespaceSeries+1 {
		t.Errorf("%d lines in the log", len(r.logged))
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestQueueOfEventsIsBounded(t *testing.T) {
	r := newRig(t)
	for i := range maxEventSeries + 5 {
		r.warned(controllertest.ServiceNamed(fmt.Sprint("ns", i%20), fmt.Sprint(i)), "one")
	}
	if n := len(r.queue.series); n != maxEventSeries {
		t.Errorf("%d series, want %d", n, maxEventSeries)
	}
	r.expectCounts(0, 0, 5)
	for i := range ownNamespaceSeries + 1 {
		if taken := r.warned(controllertest.ServiceNamed("quiet", fmt.Sprint(i)), "one"); taken != (i < ownNamespaceSeries) {
			t.Errorf("event %d of a namespace that had none: taken %v", i, taken)
		}
	}
}

func TestEventThatCannotBeWritten(t *testing.T) {
	r := newRig(t)
	var givenUp []string
	r.queue.GivenUp = func(series Series) { givenUp = append(givenUp, series.About.Name) }
	r.store.fail(errors.New("no route to host"))
	r.warned(controllertest.ServiceNamed("shop", "cart"), "one")
	r.logged = nil
	r.pass(0)
	r.pass(eventRetry)
	r.expectCounts(0, 0, 0)
	if len(r.logged) != 1 || !strings.Contains(r.logged[0], "could not be written") {
		t.Errorf("log %q, want one line", r.logged)
	}
	r.store.fail(nil)
	r.pass(eventRetry)
	r.expect("one")
	r.expectCounts(1, 0, 0)

	r.store.fail(apierrors.NewForbidden(eventsv1.Resource("events"), "x", errors.New("the namespace is being deleted")))
	r.warned(controllertest.ServiceNamed("gone", "cart"), "one")
	r.pass(0)
	r.expectCounts(1, 1, 0)

	r.store.fail(errors.New("no route to host"))
	r.warned(controllertest.ServiceNamed("shop", "pay"), "one")
	for range maxEventTries {
		r.pass(eventRetry)
	}
	r.expectCounts(1, 2, 0)
	if got := strings.Join(givenUp, " "); got != "cart pay" {
		t.Errorf("given up: %q", got)
	}

	// What is found again is added again, and written.
	r.store.fail(nil)
	r.warned(controllertest.ServiceNamed("shop", "pay"), "one")
	r.pass(eventInterval)
	r.expect("one", "one")
}

// No tenant causes transitions of NodeProxy: each is an event.
func TestEachTransitionOfNodeProxyIsAnEvent(t *testing.T) {
	r := newRig(t)
	for version := range 3 {
		np := &v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: "cluster", UID: "1", ResourceVersion: fmt.Sprint(version)}}
		r.Transition(np, Kind{Normal, v1alpha1.ReasonAllProgrammed, "RollOut"}, "done")
	}
	r.pass(0)
	r.expect("done", "done", "done")
	if n := len(r.queue.series) + len(r.queue.namespaces); n != 0 {
		t.Errorf("%d series are remembered", n)
	}
}

// Tenants cause transitions of policies by labels of Services: there is one event for each reason in
// ten minutes, unless an administrator changes the policy, and none of what holds no longer.
func TestTransitionsOfPoliciesAreFew(t *testing.T) {
	r := newRig(t)
	version := 0
	comes := func(generation int64, reason string) {
		version++
		p := &v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{
			Name: "edge", UID: "1", Generation: generation, ResourceVersion: fmt.Sprint(version),
		}}
		r.TransitionOfPolicy(p, "ServiceProxyPolicy", Kind{Normal, reason, ActionRender}, fmt.Sprintf("%d %s", generation, reason))
	}
	comes(1, v1alpha1.ReasonProgressing)
	comes(1, v1alpha1.ReasonApplied) // both at once, though none is written yet
	r.pass(0)
	r.expect("1 Progressing", "1 Applied")
	for range 50 {
		r.pass(time.Second)
		comes(1, v1alpha1.ReasonProgressing)
		r.pass(time.Second)
		comes(1, v1alpha1.ReasonApplied)
	}
	comes(2, v1alpha1.ReasonProgressing)
	r.pass(0)
	r.expect("1 Progressing", "1 Applied", "2 Progressing")
	comes(2, v1alpha1.ReasonApplied)
	comes(2, v1alpha1.ReasonProgressing)
	r.pass(eventInterval)
	r.expect("1 Progressing", "1 Applied", "2 Progressing", "2 Applied", "2 Progressing")
	r.pass(eventInterval)
	if n := len(r.queue.series) + len(r.queue.namespaces); n != 0 {
		t.Errorf("%d series are remembered", n)
	}
}

// Events about NodeProxy and policies have a budget of their own and go first, also where tenants
// have Services in the namespace of these events.
func TestTenantsKeepOutNoOtherEvents(t *testing.T) {
	r := newRig(t)
	for i := range maxEventSeries + maxNamespaceSeries {
		r.warned(controllertest.ServiceNamed([]string{"default", fmt.Sprint("ns", i%20)}[i%2], fmt.Sprint(i)), "one")
	}
	r.clock.Step(time.Second)
	r.WarnNodeProxy(&v1alpha1.NodeProxy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NodeProxyName}}, "Reason", "RollOut", "about NodeProxy")
	r.pass(0)
	if first := r.store.events[0].Note; first != "about NodeProxy" {
		t.Errorf("the first event is %q", first)
	}
}

// changingStore has something happen while the first event is written.
type changingStore struct {
	*store
	during func()
}

func (s *changingStore) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if during := s.during; during != nil {
		s.during = nil
		during()
	}
	return s.store.Create(ctx, o, opts...)
}

// What is due when the queue begins to write need not be when its place comes.
func TestEventIsWrittenOnlyIfStillDue(t *testing.T) {
	r := newRig(t)
	store := &changingStore{store: r.store}
	r.queue.client = store
	late := controllertest.ServiceNamed("shop", "late")
	r.warned(late, "one")
	r.pass(0)
	r.warned(late, "two")
	r.clock.Step(eventInterval - time.Second)
	r.warned(controllertest.ServiceNamed("shop", "early"), "early")
	store.during = func() {
		r.warned(late, "")
		r.clock.Step(-time.Minute) // so that what is added now is not due yet
		r.warned(late, "three")
	}
	r.pass(time.Second)
	r.expect("one", "early")
}

func TestRetractAll(t *testing.T) {
	r := newRig(t)
	r.warned(controllertest.ServiceNamed("shop", "a"), "one")
	r.Warn(r.ctx, controllertest.ServiceNamed("shop", "b"), "LocalEndpointsLeftOut", ActionRender, "left out")
	r.queue.RetractAll("LocalEndpointsLeftOut")
	r.pass(0)
	r.expect("one")
}
