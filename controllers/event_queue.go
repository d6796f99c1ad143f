package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// eventInterval is the time in which a Service, or a generation of a policy, has one event of
	// a reason.
	eventInterval = 10 * time.Minute
	// eventTimeout is how long the API server may take for an event.
	eventTimeout = 2 * time.Second
	// eventTick is how often it is checked which events are due, and eventRetry the pause
	// after one could not be written. After maxEventTries it is given up.
	eventTick     = 10 * time.Second
	eventRetry    = 30 * time.Second
	maxEventTries = 10
	// maxEventSeries bounds the memory for events, and maxNamespaceSeries the part of one
	// namespace, so that its events keep out those of no other. Objects without a namespace
	// have a budget of maxNamespaceSeries of their own, beside maxEventSeries.
	maxEventSeries     = 10000
	maxNamespaceSeries = 1000
	// eventBatch is how many events are written before it is checked again which come next.
	eventBatch = 100
)

// Results of events, as metric labels.
const (
	eventWritten = "written"
	eventFailed  = "failed"
	eventDropped = "dropped"
)

// eventQueue writes events, one after the other, off the path of what reconciles. What it
// remembers is not needed for correct results.
type eventQueue struct {
	leadership Leadership
	client     client.Client
	clock      clock.WithTicker
	metrics    *metrics
	wake       chan struct{}
	// givenUp is called, without the lock, after the event of a series could not be written. Set
	// it before the first event is added.
	givenUp func(eventSeries)

	mu         sync.Mutex // guards everything below
	series     map[eventSeries]*eventState
	namespaces map[string]int // number of series by the namespace of the object
	failing    bool           // the last event could not be written
	added      int            // events that have come
}

// eventSeries are the events about one object for one reason.
type eventSeries struct {
	about  corev1.ObjectReference // without a version
	reason string
	// generation is that of a policy: what an administrator changes is not held up by what others
	// have caused before.
	generation int64
	// only is the name of the only event of the series. Empty: there is one in each
	// eventInterval.
	only string
}

// eventState is how far a series is.
type eventState struct {
	next    *eventsv1.Event // the newest that is not written; nil: none
	number  int             // of next, in the order in which events came
	due     time.Time       // of next
	tries   int             // of next
	written string          // name of the newest that is written
	leftOut int             // how many others came and went since then
	until   time.Time       // no event after the next one before then
}

func newEventQueue(l Leadership, c client.Client, clk clock.WithTicker, m *metrics) *eventQueue {
	return &eventQueue{
		leadership: l, client: c, clock: clk, metrics: m, wake: make(chan struct{}, 1), givenUp: func(eventSeries) {},
		series: map[eventSeries]*eventState{}, namespaces: map[string]int{},
	}
}

// add has an event written once its time has come, in place of what waits of its series.
// first: the series has had none in eventInterval. taken is false where too many wait.
func (q *eventQueue) add(series eventSeries, event *eventsv1.Event, now time.Time) (first, taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.series[series]
	if s == nil {
		namespace := series.about.Namespace
		full := namespace != "" && len(q.series)-q.namespaces[""] >= maxEventSeries
		if full || q.namespaces[namespace] >= maxNamespaceSeries {
			q.metrics.event(eventDropped)
			return false, false
		}
		s = &eventState{}
		q.series[series] = s
		q.namespaces[namespace]++
	}
	q.added++
	s.number = q.added
	if s.next != nil {
		if s.next.Name != event.Name {
			s.leftOut++
			s.next, s.tries = event, 0
		}
		if s.next.Name == s.written { // as before what waited
			s.next = nil
		}
		return false, true
	}
	if event.Name == s.written && now.Before(s.until) {
		return false, true
	}
	first = !now.Before(s.until)
	if first {
		s.until = now.Add(eventInterval)
		s.due = now
	} else {
		s.due = s.until
	}
	s.next, s.tries = event, 0
	select {
	case q.wake <- struct{}{}:
	default: // it is awake already
	}
	return first, true
}

// retract has nothing written of what waits of a series: it holds no longer.
func (q *eventQueue) retract(series eventSeries) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.series[series]; s != nil && s.next != nil {
		s.next = nil
		s.leftOut++
	}
}

// retractOthers has nothing written of what must wait of an object's other series: it has come to
// another state.
func (q *eventQueue) retractOthers(than eventSeries, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for series, s := range q.series {
		if series.about == than.about && series != than && s.next != nil && s.due.After(now) {
			s.next = nil
			s.leftOut++
		}
	}
}

// retractAll is retract for all series of a reason. Its reconciler adds again what still holds.
func (q *eventQueue) retractAll(reason string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for series, s := range q.series {
		if series.reason == reason && s.next != nil {
			s.next = nil
			s.leftOut++
		}
	}
}

// newTerm has what waits from an earlier term wait until the reconcilers have had time to
// retract what holds no longer.
func (q *eventQueue) newTerm(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.series {
		if again := now.Add(eventRetry); s.due.Before(again) {
			s.due = again
		}
	}
}

// Start implements manager.Runnable: it writes until ctx is done.
func (q *eventQueue) Start(ctx context.Context) error {
	ticker := q.clock.NewTicker(eventTick)
	defer ticker.Stop()
	for ctx.Err() == nil {
		q.writeDue(ctx)
		select {
		case <-ctx.Done():
		case <-q.wake:
		case <-ticker.C():
		}
	}
	return nil
}

// writeDue writes all that is due.
func (q *eventQueue) writeDue(ctx context.Context) {
	for {
		due := q.nextDue(q.clock.Now())
		if len(due) == 0 {
			return
		}
		for _, series := range due {
			term, leave, err := q.leadership.Enter(ctx)
			if err != nil {
				return // it ends
			}
			q.write(term, series)
			leave()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// nextDue returns the next series of which an event is due: those about objects without a
// namespace first, which no tenant causes, then the oldest. It forgets those that have had none
// for eventInterval.
func (q *eventQueue) nextDue(now time.Time) []eventSeries {
	q.mu.Lock()
	defer q.mu.Unlock()
	type entry struct {
		series eventSeries
		due    time.Time
		number int
	}
	var entries []entry
	for series, s := range q.series {
		switch {
		case s.next == nil && !now.Before(s.until):
			q.forget(series)
		case s.next != nil && !now.Before(s.due):
			entries = append(entries, entry{series, s.due, s.number})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(
			cmp.Compare(min(len(a.series.about.Namespace), 1), min(len(b.series.about.Namespace), 1)),
			a.due.Compare(b.due), cmp.Compare(a.series.about.Namespace, b.series.about.Namespace),
			cmp.Compare(a.series.about.Name, b.series.about.Name), cmp.Compare(a.number, b.number))
	})
	entries = entries[:min(len(entries), eventBatch)]
	out := make([]eventSeries, len(entries))
	for i, e := range entries {
		out[i] = e.series
	}
	return out
}

// forget drops a series. The caller holds mu.
func (q *eventQueue) forget(series eventSeries) {
	namespace := series.about.Namespace
	if q.namespaces[namespace]--; q.namespaces[namespace] <= 0 {
		delete(q.namespaces, namespace)
	}
	delete(q.series, series)
}

// write writes the next event of a series, if it is still due: while others were written, the
// event may have been retracted, and another one added.
func (q *eventQueue) write(ctx context.Context, series eventSeries) {
	q.mu.Lock()
	s := q.series[series]
	if s == nil || s.next == nil || q.clock.Now().Before(s.due) {
		q.mu.Unlock()
		return
	}
	next, leftOut := s.next, s.leftOut
	q.mu.Unlock()

	limited, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	err := client.IgnoreAlreadyExists(q.client.Create(limited, counted(next, leftOut)))
	if err != nil && ctx.Err() != nil {
		return // this process does not lead any more
	}

	if q.wrote(ctx, series, s, next, leftOut, err) {
		return
	}
	q.givenUp(series)
}

// wrote notes what became of an event of a series, and reports false if it is given up.
func (q *eventQueue) wrote(ctx context.Context, series eventSeries, s *eventState, event *eventsv1.Event, leftOut int, err error) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.note(ctx, event, err)
	if q.series[series] != s {
		return true // forgotten meanwhile
	}
	now := q.clock.Now()
	if err != nil && s.next == event && !hopeless(err) && s.tries+1 < maxEventTries {
		s.tries++
		s.due = now.Add(eventRetry)
		return true
	}
	if err == nil {
		s.written = event.Name
		s.leftOut -= leftOut
		q.metrics.event(eventWritten)
	} else {
		q.metrics.event(eventFailed)
	}
	if !now.Before(s.until) {
		s.until = now.Add(eventInterval)
	}
	newer := s.next != event
	if !newer {
		s.next = nil
	}
	s.due = s.until // of what came meanwhile
	if series.only != "" {
		q.forget(series)
	}
	return err == nil || newer
}

// note logs that events cannot be written, once, and that they can again.
func (q *eventQueue) note(ctx context.Context, event *eventsv1.Event, err error) {
	failing := err != nil
	if failing == q.failing {
		return
	}
	q.failing = failing
	if !failing {
		log.FromContext(ctx).Info("Events are written again")
		return
	}
	log.FromContext(ctx).Error(err, "An event could not be written; further ones that cannot be are not logged", "kind", event.Regarding.Kind,
		"object", klog.KRef(event.Regarding.Namespace, event.Regarding.Name), "reason", event.Reason, "note", event.Note)
}

// hopeless reports whether the API server will not take an event later either: one of a
// namespace that is being deleted, or that it does not allow.
func hopeless(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// counted returns an event that says, too, how many others were left out. Its name is that
// of what it says without.
func counted(event *eventsv1.Event, leftOut int) *eventsv1.Event {
	out := event.DeepCopy()
	if leftOut > 0 {
		suffix := fmt.Sprintf(" (this changed %d times more since the last event)", leftOut)
		out.Note = truncated(event.Note, maxEventNote-len(suffix)) + suffix
	}
	return out
}
