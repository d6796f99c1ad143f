package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// statusTick is how often the status is checked, besides after every event.
const statusTick = time.Second

// reportLoop writes the status whenever it is due.
func (a *Agent) reportLoop(ctx context.Context) {
	for ctx.Err() == nil {
		s, f := a.refresh()
		a.showMetrics(s, f)
		a.logStuck(a.loop.Overdue())
		a.writer.Write(ctx, s, f)
		a.noteReported(s, f)
		a.poke.For(ctx, a.options.Clock, statusTick)
	}
}

// pokeStatus has the status be checked now.
func (a *Agent) pokeStatus() { a.poke.Up() }

// showMetrics updates the gauges. Only one goroutine calls it.
func (a *Agent) showMetrics(s desired.Snapshot, f status.Facts) {
	a.metrics.Show(s)
	if s.Own != nil {
		a.metrics.ShowConditions(status.Build(s, f, nil).Conditions)
	}
}

// refresh updates what changes with time alone, and returns what the status is computed from.
func (a *Agent) refresh() (desired.Snapshot, status.Facts) {
	a.store.ExpireAgreement()
	a.tracking.Refresh()
	s := a.store.Snapshot()
	return s, a.facts(&s)
}

// facts returns the facts for a snapshot, whose Audit and Removal decide what it means.
func (a *Agent) facts(s *desired.Snapshot) status.Facts {
	other := a.owner.Facts()
	f := status.Facts{
		Audit: s.Audit, Removing: s.Removal.Requested,
		Version: a.options.Version, Started: a.started, Kernel: a.options.Kernel,
		Formats: a.store.Formats, Families: a.fanout.Families(),
		OtherProxy: other.Other, OtherGone: other.Gone, OtherWait: other.Wait, Unanswered: other.Unanswered, Leftovers: other.Leftovers,
		Tracking: a.tracking.Facts(a.owner.MayWrite()), Drift: a.drift.Facts(), Warnings: a.portWarnings(),
	}
	if a.options.Userspace != nil {
		f.Userspace = a.options.Userspace.Failing()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f.Iptables, f.Modes, f.Remaining = a.iptables, a.modes, joined(a.remain)
	return f
}

// noteReady makes the pod ready, from now on, once a set that the API has shown was applied or
// compared. A set of the checkpoint does not show that this agent, with its image, permissions
// and addresses, can follow the API; a rollout of the DaemonSet must not continue with one that
// cannot. Later failures are no reason to revert a rollout.
func (a *Agent) noteReady() {
	if a.store.Served() {
		a.becomeReady()
	}
}

// noteReported does the same once the API records why nothing will be applied: another proxy
// is active, or the rules were removed.
func (a *Agent) noteReported(s desired.Snapshot, f status.Facts) {
	if (f.Conflict() != "" || s.Removal.Done) && s.Own != nil && status.ExplainsIdle(a.writer.Newest(s.Own).Status.Conditions) {
		a.becomeReady()
	}
}

func (a *Agent) becomeReady() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ready = true
}

// unready is what the pod needs to become ready, and what to do; empty: it is ready.
func (a *Agent) unready() string {
	a.mu.Lock()
	ready := a.ready
	a.mu.Unlock()
	if ready {
		return ""
	}
	s, f := a.refresh()
	switch {
	case s.Restored.Active():
		return fmt.Sprintf("%s; the agent becomes ready only with the API's objects (%s): check that the API server can be reached from this node", status.RestoredMessage(&s), a.whyUnread())
	case !s.Listed || s.Own == nil:
		return a.unlisted(s)
	case !s.Exists:
		return "this node has no NodeProxyRules: check that the NodeProxy \"cluster\" exists, that the controller runs, and that --node-name (NODE_NAME) is the Node's name"
	case f.Conflict() != "":
		return "another proxy is active on this node, and the API does not record it yet: the agent's log shows why the status of the NodeProxyRules cannot be written"
	}
	accepted, programmed := status.AcceptedCondition(s), status.ProgrammedCondition(s, f)
	if accepted.Status != metav1.ConditionTrue {
		return "the NodeProxyRules of this node is not accepted: " + strings.TrimPrefix(accepted.Message, v1alpha1.MessageNotAccepted)
	}
	if programmed.Status != metav1.ConditionTrue {
		return programmed.Message
	}
	return "a first complete set of rules is about to be applied"
}

// unlisted is what the API has not delivered, and why.
func (a *Agent) unlisted(s desired.Snapshot) string {
	what := "the list of ServiceProxyRules"
	if s.Listed {
		what = "this node's NodeProxyRules"
	}
	return fmt.Sprintf("the agent waits for %s (%s): check that the API server can be reached from this node, and that the agent is allowed to read the kinds of nodeproxy.io", what, a.whyUnread())
}

// whyUnread is why the API cannot be read, as far as known.
func (a *Agent) whyUnread() string {
	if why := a.errors.First(); why != "" {
		return why
	}
	return "no answer yet"
}
