package agent

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/status"
)

// The agent's pod is ready once its object is accepted and a first set has been
// applied, or compared with Audit, or the API holds the reason why neither will
// be: another proxy is active, or the rules were removed. It is a set that the
// API has shown since the start: one from the node's disk alone says nothing of
// whether this agent, with its image, its rights and its addresses, can follow
// the API. So a DaemonSet does not go on to the next node with one that cannot.
// Once ready, the pod stays so: what happens later is no reason to undo a
// rollout.

// noteReady has the pod be ready from now on if what the kernel holds makes it so.
func (a *Agent) noteReady() {
	if a.store.Served() {
		a.becomeReady()
	}
}

// noteReported does the same by what the API holds.
func (a *Agent) noteReported(s desired.Snapshot, f status.Facts) {
	if (f.Conflict() != "" || s.Removal.Done) && s.Own != nil && status.SaysWhyNot(a.writer.Newest(s.Own).Status.Conditions) {
		a.becomeReady()
	}
}

func (a *Agent) becomeReady() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.readyForGood = true
}

// unready says what is missing for the pod to be ready, and what to do; empty: it
// is ready.
func (a *Agent) unready() string {
	a.mu.Lock()
	ready := a.readyForGood
	a.mu.Unlock()
	if ready {
		return ""
	}
	s, f := a.known()
	switch {
	case s.Restored.Active():
		return fmt.Sprintf("%s; that alone does not make the agent ready (%s): see that the API server can be reached from this node", status.RestoredMessage(&s), a.whyUnread())
	case !s.Listed || s.Own == nil:
		return a.unlisted(s)
	case !s.Exists:
		return "this node has no NodeProxyRules: see that the NodeProxy \"cluster\" exists, that the controller runs, and that --node-name (NODE_NAME) is the Node's name"
	case f.Conflict() != "":
		return "another proxy is active on this node, and the API does not say so yet: see in the agent's log why the status of the NodeProxyRules cannot be written"
	}
	accepted, programmed := status.AcceptedCondition(s), status.ProgrammedCondition(s, f)
	if accepted.Status != metav1.ConditionTrue {
		return "the NodeProxyRules of this node is not accepted: " + accepted.Message
	}
	if programmed.Status != metav1.ConditionTrue {
		return programmed.Message
	}
	return "a first complete set of rules is about to be applied"
}

// unlisted says what the API has not shown, and why.
func (a *Agent) unlisted(s desired.Snapshot) string {
	what := "the list of ServiceProxyRules"
	if s.Listed {
		what = "this node's NodeProxyRules"
	}
	return fmt.Sprintf("the agent waits for %s (%s): see that the API server can be reached from this node, and that the agent may read the kinds of nodeproxy.io", what, a.whyUnread())
}

// whyUnread says why the API cannot be read, as far as is known.
func (a *Agent) whyUnread() string {
	if why := a.apiError(); why != "" {
		return why
	}
	return "no answer yet"
}
