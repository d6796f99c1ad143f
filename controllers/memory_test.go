package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

var (
	noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	cart = types.NamespacedName{Namespace: "shop", Name: "cart"}
)

func newTestMemory(t *testing.T) (memory *serviceMemory, changes *int) {
	t.Helper()
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	changes = new(int)
	return newServiceMemory(m, func() { *changes++ }), changes
}

func TestWritesOfLargeServicesAreSpaced(t *testing.T) {
	for endpoints, interval := range map[int32]time.Duration{
		500: 0, 501: time.Second, 2000: time.Second, 2001: 5 * time.Second,
	} {
		m, _ := newTestMemory(t)
		if wait := m.wait(cart, render.Load{Endpoints: endpoints, Bytes: 1000}, true, true, noon); wait != 0 {
			t.Errorf("%d endpoints: the first change waits %s", endpoints, wait)
		}
		m.wrote(cart, 1000, true, noon)
		if wait := m.wait(cart, render.Load{Endpoints: endpoints, Bytes: 1000}, true, true, noon); wait != interval {
			t.Errorf("%d endpoints: the second change waits %s, want %s", endpoints, wait, interval)
		}
		if wait := m.wait(cart, render.Load{Endpoints: endpoints, Bytes: 1000}, true, true, noon.Add(5*time.Second)); wait != 0 {
			t.Errorf("%d endpoints: a change 5 s later waits %s", endpoints, wait)
		}
	}
}

// What takes many bytes is spaced whatever the endpoints, and so is what follows it.
func TestWritesOfManyBytesAreSpaced(t *testing.T) {
	m, _ := newTestMemory(t)
	const most = 1 << 20
	if wait := m.wait(cart, render.Load{Bytes: most}, true, true, noon); wait != 0 {
		t.Errorf("the first change waits %s", wait)
	}
	m.wrote(cart, most, true, noon)
	for bytes, want := range map[int]time.Duration{most: 8 * time.Second, 100: 8 * time.Second} {
		if wait := m.wait(cart, render.Load{Bytes: bytes}, true, true, noon); wait != want {
			t.Errorf("%d bytes after %d wait %s, want %s", bytes, most, wait, want)
		}
	}
	m.wrote(cart, 100, true, noon.Add(8*time.Second))
	if wait := m.wait(cart, render.Load{Bytes: 100}, true, true, noon.Add(8*time.Second)); wait != 0 {
		t.Errorf("few bytes after few wait %s", wait)
	}
}

// While a Service waits it need not be rendered.
func TestServicesThatWaitAreNotRendered(t *testing.T) {
	m, _ := newTestMemory(t)
	if wait := m.waiting(cart, true, noon); wait != 0 {
		t.Errorf("an unknown Service waits %s", wait)
	}
	m.wait(cart, render.Load{Endpoints: 3000}, true, true, noon)
	m.wrote(cart, 1<<20, true, noon)
	if wait := m.waiting(cart, true, noon); wait != 0 {
		t.Errorf("without a change it waits %s", wait)
	}
	m.wait(cart, render.Load{Endpoints: 3000}, true, true, noon.Add(time.Second))
	if wait := m.waiting(cart, true, noon.Add(2*time.Second)); wait != 6*time.Second {
		t.Errorf("after a change it waits %s, want 6 s", wait)
	}
	m.pause(cart, render.Load{Bytes: 2 << 20}, noon.Add(8*time.Second))
	if wait := m.waiting(cart, true, noon.Add(8*time.Second)); wait != 16*time.Second {
		t.Errorf("too large to be written it waits %s, want 16 s", wait)
	}
	if wait := m.waiting(cart, false, noon.Add(8*time.Second)); wait != 0 {
		t.Errorf("what is not stored waits %s", wait)
	}
	m.refuse(cart, "too large", "too large", 1, noon.Add(8*time.Second))
	if wait := m.waiting(cart, false, noon.Add(8*time.Second)); wait != 16*time.Second {
		t.Errorf("what was refused and is not stored waits %s, want 16 s", wait)
	}
}

func TestRefusalsAreRetriedEverMoreSlowly(t *testing.T) {
	m, changes := newTestMemory(t)
	now := noon
	for i, want := range []time.Duration{1, 2, 4, 8, 10, 10, 10} {
		if wait := m.retryIn(cart, 1, now); wait != 0 {
			t.Fatalf("try %d waits %s although its time has come", i, wait)
		}
		say, retry := m.refuse(cart, "no", "no", 1, now)
		if retry != want*time.Minute {
			t.Errorf("try %d is repeated in %s, want %d min", i, retry, want)
		}
		if say != (i == 0) {
			t.Errorf("try %d: say %v", i, say)
		}
		if wait := m.retryIn(cart, 1, now.Add(time.Second)); wait != retry-time.Second {
			t.Errorf("try %d: wait %s a second later", i, wait)
		}
		now = now.Add(retry)
	}
	if m.retryIn(cart, 2, now) != 0 {
		t.Error("other content waits too")
	}
	if _, retry := m.refuse(cart, "no", "no", 2, now); retry != time.Minute {
		t.Errorf("other content begins at %s", retry)
	}
	if say, _ := m.refuse(cart, "still no", "still no", 2, now); !say {
		t.Error("another message is not said")
	}
	if say, _ := m.refuse(cart, "still no", "still no, by 2", 2, now); say {
		t.Error("another figure is said")
	}
	if *changes != 2 {
		t.Errorf("%d changes announced, want 2", *changes)
	}
	m.accepted(cart)
	if *changes != 3 || len(m.refusedServices()) != 0 {
		t.Errorf("after acceptance: %d changes, refused %v", *changes, m.refusedServices())
	}
}

func TestRefusedServicesNewestFirst(t *testing.T) {
	m, _ := newTestMemory(t)
	for i, name := range []string{"old", "b", "a"} {
		m.refuse(types.NamespacedName{Namespace: "x", Name: name}, "no", "no", 1, noon.Add(time.Duration(min(i, 1))*time.Second))
	}
	want := []v1alpha1.RefusedService{
		{Namespace: "x", Name: "a", Message: "no"}, {Namespace: "x", Name: "b", Message: "no"}, {Namespace: "x", Name: "old", Message: "no"},
	}
	if diff := cmp.Diff(want, m.refusedServices()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMemoryIsBoundedByServices(t *testing.T) {
	m, _ := newTestMemory(t)
	for i := range 100 {
		key := types.NamespacedName{Namespace: "x", Name: fmt.Sprint(i)}
		m.newProblems(key, "Bad", "bad")
		m.wrote(key, 1000, true, noon)
		m.refuse(key, "no", "no", 1, noon)
		m.forget(key)
	}
	m.forget(cart) // never seen
	if len(m.services) != 0 || m.refused != 0 {
		t.Errorf("%d Services remembered, %d refused", len(m.services), m.refused)
	}
}

func TestProblemsAreSaidOnce(t *testing.T) {
	m, _ := newTestMemory(t)
	for i, c := range []struct {
		problems string
		say      bool
	}{{"", false}, {"a", true}, {"a", false}, {"b", true}, {"", false}, {"b", true}} {
		if say := m.newProblems(cart, "Bad", c.problems); say != c.say {
			t.Errorf("step %d (%q): say %v", i, c.problems, say)
		}
		if say := m.newProblems(cart, "Worse", "a"); say != (i == 0) {
			t.Errorf("step %d: another reason: say %v", i, say)
		}
	}
}

// What an event was lost of is said again as soon as it is found again, and only then.
func TestWhatWasLostIsSaidAgain(t *testing.T) {
	m, _ := newTestMemory(t)
	m.unsay(cart, "Bad") // unknown
	m.newProblems(cart, "Bad", "a")
	m.newProblems(cart, "Worse", "a")
	m.refuse(cart, "no", "no", 1, noon)
	m.unsay(cart, "Bad")
	m.unsay(cart, eventServiceRefused)
	for i, want := range []bool{true, false} {
		if say := m.newProblems(cart, "Bad", "a"); say != want {
			t.Errorf("problem, time %d: say %v", i, say)
		}
		if say, _ := m.refuse(cart, "no", "no", 1, noon); say != want {
			t.Errorf("refusal, time %d: say %v", i, say)
		}
		if m.newProblems(cart, "Worse", "a") {
			t.Errorf("another reason, time %d, is said again", i)
		}
	}
}

func TestProblemText(t *testing.T) {
	var problems []render.Problem
	for i := range 5 {
		problems = append(problems, render.Problem{Slice: fmt.Sprintf("s%d", i), Detail: "wrong"})
	}
	want := "Left out because they cannot be used (all other endpoints are programmed): " +
		"EndpointSlice s0: wrong; EndpointSlice s1: wrong; EndpointSlice s2: wrong; and 2 more"
	if diff := cmp.Diff(want, problemText(problems)); diff != "" {
		t.Error(diff)
	}
	problems[0].Detail = strings.Repeat("ö", 1000)
	if text := problemText(problems); len(text) > maxEventNote || !utf8.ValidString(text) || !strings.HasSuffix(text, "...") {
		t.Errorf("%d bytes, valid %v: %s", len(text), utf8.ValidString(text), text)
	}
}

func TestRefusedByAPI(t *testing.T) {
	kind := schema.GroupResource{Group: "nodeproxy.io", Resource: "serviceproxyrules"}
	for name, c := range map[string]struct {
		err  error
		want bool
	}{
		"policy":    {apierrors.NewForbidden(kind, "x", errors.New("ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")), true},
		"webhook":   {apierrors.NewBadRequest(`admission webhook "w" denied the request: no`), true},
		"quota":     {apierrors.NewForbidden(kind, "x", errors.New("exceeded quota: q")), true},
		"invalid":   {apierrors.NewInvalid(schema.GroupKind{Kind: "x"}, "x", nil), true},
		"too large": {apierrors.NewRequestEntityTooLargeError("limit is 3145728"), true},

		"no rights":         {apierrors.NewForbidden(kind, "x", errors.New(`User "u" cannot create resource "serviceproxyrules" in API group "nodeproxy.io" at the cluster scope`)), false},
		"our own policy":    {apierrors.NewForbidden(kind, "x", errors.New("ValidatingAdmissionPolicy 'nodeproxy-rendered-objects' with binding 'nodeproxy-rendered-objects' denied request: no")), false},
		"CRD being deleted": {apierrors.NewForbidden(kind, "x", errors.New("create not allowed while custom resource definition is terminating")), false},
		"webhook down":      {apierrors.NewInternalError(errors.New(`failed calling webhook "w"`)), false},
		"conflict":          {apierrors.NewConflict(kind, "x", errors.New("modified")), false},
		"down":              {errors.New("connection refused"), false},
	} {
		if got := refusedByAPI(fmt.Errorf("create: %w", c.err)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	err := fmt.Errorf("create ServiceProxyRules x: %w", apierrors.NewForbidden(kind, "x", errors.New("denied request: not here")))
	if got := refusalMessage(err); got != `serviceproxyrules.nodeproxy.io "x" is forbidden: denied request: not here` {
		t.Errorf("message %q", got)
	}
}

func TestIgnoreRace(t *testing.T) {
	kind := schema.GroupResource{Resource: "serviceproxyrules"}
	for name, c := range map[string]struct {
		err   error
		after time.Duration
		fails bool
	}{
		"nothing":             {err: nil},
		"conflict":            {err: apierrors.NewConflict(kind, "x", nil), after: retrySoon},
		"exists":              {err: apierrors.NewAlreadyExists(kind, "x"), after: retrySoon},
		"gone":                {err: apierrors.NewNotFound(kind, "x")},
		"the kind is missing": {err: fmt.Errorf("%w x: %w", errCreate, apierrors.NewNotFound(kind, "x")), fails: true},
		"down":                {err: errors.New("connection refused"), fails: true},
	} {
		result, err := ignoreRace(c.err)
		if result.RequeueAfter != c.after || (err != nil) != c.fails {
			t.Errorf("%s: %v, %v", name, result, err)
		}
	}
}

func TestSummary(t *testing.T) {
	now := time.Date(2026, 11, 20, 6, 0, 0, 0, time.UTC)
	audit := v1alpha1.Audit
	rules := func(name string, conditions ...metav1.Condition) v1alpha1.NodeProxyRules {
		return v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.NodeProxyRulesStatus{Conditions: conditions}}
	}
	programmed := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: message}
	}
	fallback := metav1.Condition{Type: v1alpha1.ConditionModeFallback, Status: metav1.ConditionTrue}
	auditing := rules("d", programmed("True", v1alpha1.ReasonAuditInSync, ""))
	auditing.Spec.Settings.Enforcement = &audit
	all := []v1alpha1.NodeProxyRules{
		rules("c", programmed("Unknown", v1alpha1.ReasonAgentNotResponding, "")),
		rules("b", programmed("False", v1alpha1.ReasonPending, "")),
		rules("a", programmed("True", v1alpha1.ReasonProgrammed, ""), fallback),
		auditing,
		rules("e"),
	}
	all[0].Status.Agent = &v1alpha1.AgentReport{}
	all[0].Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-40 * time.Second))
	never := rules("f", all[0].Status.Conditions[0])
	absentee := rules("a-gone", programmed("Unknown", v1alpha1.ReasonAgentNotResponding, ""))
	absentee.Annotations = map[string]string{v1alpha1.AnnotationNodeAbsentSince: "2026-11-20T06:00:00Z"}
	all = append(all, absentee)
	counts := countNodes(all)
	if diff := cmp.Diff(v1alpha1.NodeCounts{Total: 5, Programmed: 2, NotProgrammed: 1, Stale: 1, Audit: 1, Fallback: 1}, counts); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct {
		rules   []v1alpha1.NodeProxyRules
		invalid error
		want    string
	}{
		"several":  {rules: all, want: "False NodesNotProgrammed b: Pending (and 2 more)"},
		"stale":    {rules: []v1alpha1.NodeProxyRules{all[0], all[4], absentee}, want: "False NodesNotProgrammed c: no sign of life for 1m30s (and 1 more)"},
		"never":    {rules: []v1alpha1.NodeProxyRules{never}, want: "False NodesNotProgrammed f: no agent has ever reported; is nodeproxy-agent running there?"},
		"silent":   {rules: all[4:5], want: "False NodesNotProgrammed e: no report of its agent yet; is nodeproxy-agent running there?"},
		"all well": {rules: []v1alpha1.NodeProxyRules{all[2], all[3], absentee}, want: "True AllProgrammed "},
		"no nodes": {want: "False NoNodes there is no Linux Node"},
		"invalid":  {rules: all, invalid: errors.New("spec.settings.mode: wrong"), want: "False InvalidSettings nodes keep the settings they have, because: spec.settings.mode: wrong"},
	} {
		got, _ := readiness(c.rules, countNodes(c.rules), c.invalid, now)
		if text := fmt.Sprintf("%s %s %s", got.Status, got.Reason, got.Message); text != c.want {
			t.Errorf("%s: %q, want %q", name, text, c.want)
		}
	}
}

func TestSliceChangeIsTakenOnceAndKeptUntilWritten(t *testing.T) {
	m, key := newServiceMemory(nil, nil), types.NamespacedName{Namespace: "shop", Name: "cart"}
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
