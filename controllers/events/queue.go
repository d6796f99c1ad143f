package events

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

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/controllers/leader"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
)

const (
	// eventInterval is the time in which an object has at most one event of a reason; a policy, one
	// for each generation.
	eventInterval = 10 * time.Minute
	// eventTimeout limits how long the API server takes for an event.
	eventTimeout = 2 * time.Second
	// eventTick is how often the queue checks which events are due, and eventRetry the pause after a
	// failed write. After maxEventTries an event is dropped.
	eventTick     = 10 * time.Second
	eventRetry    = 30 * time.Second
	maxEventTries = 10
	// maxEventSeries limits the memory for events, and maxNamespaceSeries the part of one namespace,
	// so that it does not displace the events of others. Objects without a namespace have
	// maxNamespaceSeries in addition, and each namespace has ownNamespaceSeries whatever the others have.
	maxEventSeries     = 10000
	maxNamespaceSeries = 1000
	ownNamespaceSeries = 10
	// eventBatch is how many events are written before the queue checks again which are next.
	eventBatch = 100
)

// Results of events, as metric labels.
const (
	eventWritten = "written"
	eventFailed  = "failed"
	eventDropped = "dropped"
)

// Queue writes events one by one, so that reconcilers do not wait for them.
type Queue struct {
	leadership leader.Leadership
	client     client.Client
	clock      clock.WithTicker
	metrics    *metrics.Metrics
	wake       chan struct{}
	// GivenUp is called, without the lock, after an event was dropped because it cannot be written.
	// Set it before the first event is added.
	GivenUp func(Series)

	mu         sync.Mutex // guards everything below
	series     map[Series]*state
	namespaces map[string]int // number of series by the namespace of the object
	failing    bool           // the last event could not be written
	added      int            // events added so far
}

// Series are the events about one object for one reason.
type Series struct {
	About  corev1.ObjectReference // without a version
	Reason string
	// generation is that of a policy: events about a change by an administrator do not wait for
	// earlier events that others have caused.
	generation int64
	only       string // the name of the only event of the series; empty: it has one per eventInterval
}

// state is the state of a series.
type state struct {
	next    *eventsv1.Event // the newest that is not written; nil: none
	number  int             // of next, in the order in which events were added
	due     time.Time       // of next
	tries   int             // of next
	written string          // name of the newest that is written
	leftOut int             // how many others were omitted since then
	until   time.Time       // no event after the next one before then
}

// retract drops the event that waits, if any, because it no longer applies.
func (s *state) retract() {
	if s.next != nil {
		s.next = nil
		s.leftOut++
	}
}

// NewQueue returns a queue, which writes once it is started.
func NewQueue(l leader.Leadership, c client.Client, clk clock.WithTicker, m *metrics.Metrics) *Queue {
	return &Queue{
		leadership: l, client: c, clock: clk, metrics: m, wake: make(chan struct{}, 1), GivenUp: func(Series) {},
		series: map[Series]*state{}, namespaces: map[string]int{},
	}
}

// add has an event written when it is due, instead of the one that waits in its series. first: the
// series has had no event in eventInterval. taken is false if too many series wait.
func (q *Queue) add(series Series, event *eventsv1.Event, now time.Time) (first, taken bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := q.series[series]
	if s == nil {
		namespace := series.About.Namespace
		full := namespace != "" && q.namespaces[namespace] >= ownNamespaceSeries && len(q.series)-q.namespaces[""] >= maxEventSeries
		if full || q.namespaces[namespace] >= maxNamespaceSeries {
			q.metrics.Event(eventDropped)
			return false, false
		}
		s = &state{}
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
		if s.next.Name == s.written { // as before the one that waited
			s.next = nil
		}
		return false, true
	}
	if event.Name == s.written && now.Before(s.until) {
		return false, true
	}
	s.next, s.tries, s.due = event, 0, s.until
	if first = !now.Before(s.until); first {
		s.due, s.until = now, now.Add(eventInterval)
	}
	select {
	case q.wake <- struct{}{}:
	default: // it is awake already
	}
	return first, true
}

// retract drops the event that waits in a series.
func (q *Queue) retract(series Series) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if s := q.series[series]; s != nil {
		s.retract()
	}
}

// addOnly adds an event, and drops those that wait in the object's other series, because its state
// has changed.
func (q *Queue) addOnly(series Series, event *eventsv1.Event, now time.Time) {
	q.mu.Lock()
	for other, s := range q.series {
		if other.About == series.About && other != series && s.due.After(now) {
			s.retract()
		}
	}
	q.mu.Unlock()
	q.add(series, event, now)
}

// RetractAll retracts the events of all series of a reason. Its reconciler adds again those that
// still apply.
func (q *Queue) RetractAll(reason string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for series, s := range q.series {
		if series.Reason == reason {
			s.retract()
		}
	}
}

// NewTerm delays the events of an earlier term until the reconcilers have had time to retract those
// that no longer apply.
func (q *Queue) NewTerm(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.series {
		if again := now.Add(eventRetry); s.due.Before(again) {
			s.due = again
		}
	}
}

// Start implements manager.Runnable: it writes until ctx is done.
func (q *Queue) Start(ctx context.Context) error {
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
func (q *Queue) writeDue(ctx context.Context) {
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

// nextDue returns the series whose events are due: first those about objects without a namespace,
// which no tenant can cause, then the oldest. It forgets series without an event in eventInterval.
func (q *Queue) nextDue(now time.Time) []Series {
	q.mu.Lock()
	defer q.mu.Unlock()
	var due []Series
	for series, s := range q.series {
		switch {
		case s.next == nil && !now.Before(s.until):
			q.forget(series)
		case s.next != nil && !now.Before(s.due):
			due = append(due, series)
		}
	}
	slices.SortFunc(due, func(a, b Series) int {
		return cmp.Or(
			cmp.Compare(min(len(a.About.Namespace), 1), min(len(b.About.Namespace), 1)),
			q.series[a].due.Compare(q.series[b].due),
			cmp.Compare(a.About.Namespace, b.About.Namespace),
			cmp.Compare(a.About.Name, b.About.Name),
			cmp.Compare(q.series[a].number, q.series[b].number))
	})
	return due[:min(len(due), eventBatch)]
}

// forget drops a series. The caller holds mu.
func (q *Queue) forget(series Series) {
	namespace := series.About.Namespace
	if q.namespaces[namespace]--; q.namespaces[namespace] <= 0 {
		delete(q.namespaces, namespace)
	}
	delete(q.series, series)
}

// write writes the next event of a series if it is still due: meanwhile it may have been retracted
// and another one added.
func (q *Queue) write(ctx context.Context, series Series) {
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
	if !q.wrote(ctx, series, s, next, leftOut, err) {
		q.GivenUp(series)
	}
}

// wrote records the result of writing an event, and returns false if the event is dropped.
func (q *Queue) wrote(ctx context.Context, series Series, s *state, event *eventsv1.Event, leftOut int, err error) bool {
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
		q.metrics.Event(eventWritten)
	} else {
		q.metrics.Event(eventFailed)
	}
	if !now.Before(s.until) {
		s.until = now.Add(eventInterval)
	}
	newer := s.next != event
	if !newer {
		s.next = nil
	}
	s.due = s.until // of events added meanwhile
	if series.only != "" {
		q.forget(series)
	}
	return err == nil || newer
}

// note logs once when writes of events begin to fail, and when they succeed again.
func (q *Queue) note(ctx context.Context, event *eventsv1.Event, err error) {
	failing := err != nil
	if failing == q.failing {
		return
	}
	q.failing = failing
	if !failing {
		log.FromContext(ctx).Info("Events are written again")
		return
	}
	log.FromContext(ctx).Error(err, "An event could not be written; further failures are not logged", "kind", event.Regarding.Kind,
		"object", klog.KRef(event.Regarding.Namespace, event.Regarding.Name), "reason", event.Reason, "note", event.Note)
}

// hopeless reports whether the API server will never accept an event: its namespace is being
// deleted, or the event is not allowed.
func hopeless(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// counted returns an event of the same name with the number of omitted ones in its note.
func counted(event *eventsv1.Event, leftOut int) *eventsv1.Event {
	out := event.DeepCopy()
	if leftOut > 0 {
		suffix := fmt.Sprintf(" (changed %d more times since the last event)", leftOut)
		out.Note = text.Truncate(event.Note, text.MaxEventNote-len(suffix)) + suffix
	}
	return out
}
