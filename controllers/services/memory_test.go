package services

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/internal/controllertest"
	"github.com/nodeproxy-io/nodeproxy/controllers/metrics"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

var cart = types.NamespacedName{Namespace: "shop", Name: "cart"}

func newTestMemory(t *testing.T) (memory *Memory, changes *int) {
	t.Helper()
	m := metrics.New(prometheus.NewRegistry())
	changes = new(int)
	return NewMemory(m, func() { *changes++ }), changes
}

func TestWritesOfLargeServicesAreSpaced(t *testing.T) {
	for endpoints, interval := range map[int32]time.Duration{
		500: 0, 501: time.Second, 2000: time.Second, 2001: 5 * time.Second,
	} {
		m, _ := newTestMemory(t)
		if wait := m.wait(cart, render.Load{Endpoints: endpoints, Bytes: 1000}, true, true, controllertest.Noon); wait != 0 {
			t.Errorf("%d endpoints: the first change waits %s", endpoints, wait)
		}
		m.wrote(cart, 1000, true, controllertest.Noon)
		if wait := m.wait(cart, render.Load{Endpoints: endpoints, Bytes: 1000}, true, true, controllertest.Noon); wait != interval {
			t.Errorf("%d endpoints: the second change waits %s, want %s", endpoints, wait, interval)
		}
		if wait := m.wait(cart, render.Load{Endpoints: endpoints, Bytes: 1000}, true, true, controllertest.Noon.Add(5*time.Second)); wait != 0 {
			t.Errorf("%d endpoints: a change 5 s later waits %s", endpoints, wait)
		}
	}
}

// What takes many bytes is spaced whatever the endpoints, and so is what follows it.
func TestWritesOfManyBytesAreSpaced(t *testing.T) {
	m, _ := newTestMemory(t)
	const most = 1 << 20
	if wait := m.wait(cart, render.Load{Bytes: most}, true, true, controllertest.Noon); wait != 0 {
		t.Errorf("the first change waits %s", wait)
	}
	m.wrote(cart, most, true, controllertest.Noon)
	for bytes, want := range map[int]time.Duration{most: 8 * time.Second, 100: 8 * time.Second} {
		if wait := m.wait(cart, render.Load{Bytes: bytes}, true, true, controllertest.Noon); wait != want {
			t.Errorf("%d bytes after %d wait %s, want %s", bytes, most, wait, want)
		}
	}
	m.wrote(cart, 100, true, controllertest.Noon.Add(8*time.Second))
	if wait := m.wait(cart, render.Load{Bytes: 100}, true, true, controllertest.Noon.Add(8*time.Second)); wait != 0 {
		t.Errorf("few bytes after few wait %s", wait)
	}
}

// While a Service waits it need not be rendered.
func TestServicesThatWaitAreNotRendered(t *testing.T) {
	m, _ := newTestMemory(t)
	if wait := m.waiting(cart, true, controllertest.Noon); wait != 0 {
		t.Errorf("an unknown Service waits %s", wait)
	}
	m.wait(cart, render.Load{Endpoints: 3000}, true, true, controllertest.Noon)
	m.wrote(cart, 1<<20, true, controllertest.Noon)
	if wait := m.waiting(cart, true, controllertest.Noon); wait != 0 {
		t.Errorf("without a change it waits %s", wait)
	}
	m.wait(cart, render.Load{Endpoints: 3000}, true, true, controllertest.Noon.Add(time.Second))
	if wait := m.waiting(cart, true, controllertest.Noon.Add(2*time.Second)); wait != 6*time.Second {
		t.Errorf("after a change it waits %s, want 6 s", wait)
	}
	m.pause(cart, render.Load{Bytes: 2 << 20}, 0, controllertest.Noon.Add(8*time.Second))
	if wait := m.waiting(cart, true, controllertest.Noon.Add(8*time.Second)); wait != 16*time.Second {
		t.Errorf("too large to be written it waits %s, want 16 s", wait)
	}
	if wait := m.waiting(cart, false, controllertest.Noon.Add(8*time.Second)); wait != 0 {
		t.Errorf("what is not stored waits %s", wait)
	}
	m.notRendered(cart, "too large", "too large", 1, controllertest.Noon.Add(8*time.Second))
	if wait := m.waiting(cart, false, controllertest.Noon.Add(8*time.Second)); wait != 16*time.Second {
		t.Errorf("an unrendered Service without rules waits %s, want 16 s", wait)
	}
}

func TestRejectionsAreRetriedEverMoreSlowly(t *testing.T) {
	m, changes := newTestMemory(t)
	now := controllertest.Noon
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10, 10} {
		if wait := m.retryIn(cart, 1, now); wait != 0 {
			t.Fatalf("try %d waits %s although its time has come", i, wait)
		}
		report, retry := m.notRendered(cart, "no", "no", 1, now)
		if retry != want*time.Minute {
			t.Errorf("try %d is repeated in %s, want %d min", i, retry, want)
		}
		if report != (i == 0) {
			t.Errorf("try %d: report %v", i, report)
		}
		if wait := m.retryIn(cart, 1, now.Add(time.Second)); wait != retry-time.Second {
			t.Errorf("try %d: wait %s a second later", i, wait)
		}
		now = now.Add(retry)
	}
	if m.retryIn(cart, 2, now) != 0 {
		t.Error("other content waits too")
	}
	if _, retry := m.notRendered(cart, "no", "no", 2, now); retry != time.Minute {
		t.Errorf("other content begins at %s", retry)
	}
	if report, _ := m.notRendered(cart, "still no", "still no", 2, now); !report {
		t.Error("another message is not reported")
	}
	if report, _ := m.notRendered(cart, "still no", "still no, by 2", 2, now); report {
		t.Error("another number is reported")
	}
	if *changes != 2 {
		t.Errorf("%d changes announced, want 2", *changes)
	}
	m.accepted(cart)
	if *changes != 3 || len(m.Unrendered()) != 0 {
		t.Errorf("after acceptance: %d changes, unrendered %v", *changes, m.Unrendered())
	}
}

func TestRejectedServicesNewestFirst(t *testing.T) {
	m, _ := newTestMemory(t)
	for i, name := range []string{"old", "b", "a"} {
		m.notRendered(types.NamespacedName{Namespace: "x", Name: name}, "no", "no", 1, controllertest.Noon.Add(time.Duration(min(i, 1))*time.Second))
	}
	want := []v1alpha1.UnrenderedService{
		{Namespace: "x", Name: "a", Message: "no"}, {Namespace: "x", Name: "b", Message: "no"}, {Namespace: "x", Name: "old", Message: "no"},
	}
	if diff := cmp.Diff(want, m.Unrendered()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMemoryIsBoundedByServices(t *testing.T) {
	m, _ := newTestMemory(t)
	for i := range 100 {
		key := types.NamespacedName{Namespace: "x", Name: fmt.Sprint(i)}
		m.newProblems(key, "Bad", "bad")
		m.wrote(key, 1000, true, controllertest.Noon)
		m.notRendered(key, "no", "no", 1, controllertest.Noon)
		m.forget(key)
	}
	m.forget(cart) // never seen
	if len(m.services) != 0 || m.unrendered != 0 {
		t.Errorf("%d Services remembered, %d unrendered", len(m.services), m.unrendered)
	}
}

func TestProblemsAreReportedOnce(t *testing.T) {
	m, _ := newTestMemory(t)
	for i, c := range []struct {
		problems string
		report   bool
	}{{"", false}, {"a", true}, {"a", false}, {"b", true}, {"", false}, {"b", true}} {
		if report := m.newProblems(cart, "Bad", c.problems); report != c.report {
			t.Errorf("step %d (%q): report %v", i, c.problems, report)
		}
		if report := m.newProblems(cart, "Worse", "a"); report != (i == 0) {
			t.Errorf("step %d: another reason: report %v", i, report)
		}
	}
}

// A problem whose event was lost is reported again when it is found again, and only then.
func TestLostEventIsReportedAgain(t *testing.T) {
	m, _ := newTestMemory(t)
	m.EventLost(cart, "Bad") // unknown
	m.newProblems(cart, "Bad", "a")
	m.newProblems(cart, "Worse", "a")
	m.notRendered(cart, "no", "no", 1, controllertest.Noon)
	m.EventLost(cart, "Bad")
	m.EventLost(cart, eventServiceNotRendered)
	for i, want := range []bool{true, false} {
		if report := m.newProblems(cart, "Bad", "a"); report != want {
			t.Errorf("problem, time %d: report %v", i, report)
		}
		if report, _ := m.notRendered(cart, "no", "no", 1, controllertest.Noon); report != want {
			t.Errorf("failure, time %d: report %v", i, report)
		}
		if m.newProblems(cart, "Worse", "a") {
			t.Errorf("another reason, time %d, is reported again", i)
		}
	}
}

func TestProblemText(t *testing.T) {
	var problems []render.Problem
	for i := range 5 {
		problems = append(problems, render.Problem{Slice: fmt.Sprintf("s%d", i), Detail: "wrong"})
	}
	want := "Skipped endpoints that cannot be used (all others are programmed): " +
		"EndpointSlice s0: wrong; EndpointSlice s1: wrong; EndpointSlice s2: wrong; and 2 more"
	if diff := cmp.Diff(want, problemText(problems)); diff != "" {
		t.Error(diff)
	}
	all := slices.Repeat(problems, render.MaxProblems/len(problems))
	if got, want := problemText(all), strings.Replace(want, "and 2 more", "and others", 1); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	problems[0].Detail = strings.Repeat("ö", 1000)
	if got := problemText(problems); len(got) > text.MaxEventNote || !utf8.ValidString(got) || !strings.HasSuffix(got, "...") {
		t.Errorf("%d bytes, valid %v: %s", len(got), utf8.ValidString(got), got)
	}
}

func TestSliceChangeIsTakenOnceAndKeptUntilWritten(t *testing.T) {
	m, _ := newTestMemory(t)
	m.NewTerm()
	key := types.NamespacedName{Namespace: "shop", Name: "cart"}
	at := func(seconds int) change { return change{slice: time.Unix(int64(seconds), 0)} }
	take := func(want change) {
		t.Helper()
		if got := m.takeChange(key); got != want {
			t.Errorf("changed %+v, want %+v", got, want)
		}
	}
	take(change{})
	m.note(key, at(10))
	m.note(key, at(11)) // the first counts
	take(at(10))
	take(change{})
	m.note(key, at(12))
	m.note(key, at(10)) // not written, and another one has come meanwhile
	take(at(10))
	m.note(key, change{})
	take(change{})
	m.note(key, change{policies: true})
	m.note(key, at(10))
	m.note(key, change{addresses: true})
	take(change{slice: at(10).slice, addresses: true, policies: true})
}

// A standby remembers none of the Services that tenants create and delete, however many.
func TestStandbyRemembersNoServices(t *testing.T) {
	m, _ := newTestMemory(t)
	events := func() {
		for i := range 100 {
			m.note(service("attacker", i), change{slice: controllertest.Noon})
		}
	}
	events()
	if len(m.services) != 0 {
		t.Errorf("before its first term it remembers %d Services", len(m.services))
	}
	m.NewTerm()
	events()
	existing := service("attacker", 7)
	m.notRendered(service("attacker", 8), "reason", "message", 1, controllertest.Noon)
	m.EndTerm()
	m.note(service("other", 1), change{policies: true})
	m.NewTerm()
	m.begin([]corev1.Service{{ObjectMeta: metav1.ObjectMeta{Namespace: existing.Namespace, Name: existing.Name}}})
	if len(m.services) != 1 || len(m.Unrendered()) != 0 || m.unrendered != 0 {
		t.Errorf("the next term begins with %d Services, %d unrendered, want the existing one", len(m.services), m.unrendered)
	}
	if got, want := m.takeChange(existing), (change{addresses: true, policies: true}); got != want {
		t.Errorf("the next term begins with %+v, want %+v: whatever came is of a former term, and not known", got, want)
	}
}
