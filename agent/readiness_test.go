package agent

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/agent/agenttest"
	"github.com/nodeproxy-io/nodeproxy/agent/health"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// expectReady asks as the kubelet does. Empty: the pod is ready; else what the
// answer must contain.
func expectReady(t *testing.T, a *Agent, when, lacks string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	health.KubeletHandler(a.loop.Overdue, a.unready, http.NotFoundHandler()).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	switch body := strings.TrimSpace(recorder.Body.String()); {
	case lacks == "" && recorder.Code != http.StatusOK:
		t.Errorf("%s: not ready: %s", when, body)
	case lacks != "" && (recorder.Code != http.StatusServiceUnavailable || !strings.Contains(body, lacks)):
		t.Errorf("%s: /readyz answers %d %q, want %q", when, recorder.Code, body, lacks)
	}
}

func TestReadyOnceAFirstSetIsApplied(t *testing.T) {
	a, kernel, _ := newAgent(t, (&answers{list: []string{""}}).probe)
	expectReady(t, a, "initially", "waits for the list of ServiceProxyRules (no answer yet)")
	a.errors.Failed(t.Context(), "serviceproxyrules", errors.New("connection refused"))
	expectReady(t, a, "no answer", "connection refused")
	a.errors.Watching("serviceproxyrules")
	r := &rig{Store: a.store, t: t, Objects: agenttest.Objects{Version: 10}}
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1)})
	expectReady(t, a, "without the own object", "waits for this node's NodeProxyRules")
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 3 }))
	expectReady(t, a, "with another format", "is not accepted: spec.formatVersion 3")
	r.SetRules(r.Node())
	expectReady(t, a, "before the first write", "No complete state has been written")

	hold(t, a)
	kernel.Fail(errors.New("exec format error"))
	if err := a.sync(t.Context()); err == nil {
		t.Fatal("no error")
	}
	expectReady(t, a, "failing", "exec format error")
	kernel.Fail(nil)
	a.store.Refresh()
	mustSync(t, a)
	expectReady(t, a, "applied", "")

	kernel.Fail(errors.New("locked"))
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 3 }))
	lose(a)
	expectReady(t, a, "whatever comes later", "")
}

func TestReadyOnceCompared(t *testing.T) {
	a, kernel, _ := newAgent(t, (&answers{list: []string{""}}).probe)
	r := fill(t, a)
	r.SetRules(r.Node(inAudit))
	kernel.Fail(errors.New("no such program"))
	if err := a.sync(t.Context()); err == nil {
		t.Fatal("no error")
	}
	expectReady(t, a, "not compared", "no such program")
	kernel.Fail(nil)
	mustSync(t, a)
	expectReady(t, a, "compared", "")
}

// TestReadyOnceAConflictIsReported: in the API, not only in the log.
func TestReadyOnceAConflictIsReported(t *testing.T) {
	a, _, _ := newAgent(t, (&answers{list: []string{""}}).probe)
	r := fill(t, a)
	b := &agenttest.Board{Stored: a.store.Snapshot().Own, Err: errors.New("forbidden")}
	a.writer = status.NewWriter(a.options.Clock, b.Write, a.log, a.started)
	report := func() {
		s, f := a.refresh()
		a.writer.Write(context.Background(), s, f)
		a.noteReported(s, f)
	}
	hold(t, a)
	lose(a)
	report()
	if b.Tries != 1 {
		t.Fatalf("the status was tried %d times", b.Tries)
	}
	expectReady(t, a, "not written", "the API does not record it yet")

	b.Err, a.writer = nil, status.NewWriter(a.options.Clock, b.Write, a.log, a.started)
	r.SetRules(r.Node(func(s *v1alpha1.NodeProxyRulesSpec) { s.FormatVersion = 3 }))
	b.Stored = a.store.Snapshot().Own
	report()
	expectReady(t, a, "reported, but the object is not accepted", "is active on this node")

	r.SetRules(r.Node())
	b.Stored = a.store.Snapshot().Own
	report()
	expectReady(t, a, "reported", "")
}

// TestReadyOnlyOnceTheAPIAnswers: an agent that only uses its disk may be one
// that cannot reach the API, and must not let a rollout go on.
func TestReadyOnlyOnceTheAPIAnswers(t *testing.T) {
	a, kernel, _ := newAgent(t, (&answers{list: []string{""}}).probe)
	r := &rig{Store: a.store, t: t, Objects: agenttest.Objects{Version: 10}, kernel: kernel}
	r.mustRestore(r.Checkpoint(false))
	hold(t, a)
	mustSync(t, a)
	if len(kernel.Services()) != 3 {
		t.Fatalf("the kernel has %v", kernel.Services())
	}
	expectReady(t, a, "from the disk", "the node uses the checkpoint on its disk")
	r.SetRules(r.Node(agenttest.EndpointOfA))
	mustSync(t, a)
	expectReady(t, a, "with the own object alone", "The ServiceProxyRules could not be read")
	r.SetServices([]*v1alpha1.ServiceProxyRules{r.Service("a", 1), r.Service("b", 2), r.Service("c", 3)})
	expectReady(t, a, "before what the API shows is applied", "about to be applied")
	mustSync(t, a)
	expectReady(t, a, "once it is", "")
}
