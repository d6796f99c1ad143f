package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/ownership"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// ProgrammedCondition reports whether the kernel has the desired state, and what else failed.
func ProgrammedCondition(s desired.Snapshot, f Facts) metav1.Condition {
	c := programmedRow(s, f)
	c.Type = v1alpha1.ConditionProgrammed
	if c.Status != metav1.ConditionTrue {
		return c
	}
	if all := slices.Concat(s.Warnings, f.Warnings, f.Leftovers, f.Tracking.Warnings); len(all) > 0 {
		c.Message += v1alpha1.MessageRestrictions + text.Clause(strings.Join(all, "; "))
	}
	if len(s.PendingCleanups) > 0 {
		c.Message += "; " + strings.Join(s.PendingCleanups, "; ")
	}
	if f.Drift.Message != "" {
		c.Message += "; but another program repeatedly modifies the rules: see the condition " + v1alpha1.ConditionDrifted
	}
	return c
}

// programmedRow is the first row that applies. Removed comes before ConflictingProxy: if another
// proxy is active, there is nothing to remove, and the removal need not wait for this node.
func programmedRow(s desired.Snapshot, f Facts) metav1.Condition {
	row := func(status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Status: status, Reason: reason, Message: message}
	}
	since := s.OldestPending.UTC().Format(time.RFC3339)
	switch {
	case s.Removal.Requested:
		reason, message := removal(s.Removal, f)
		return row(metav1.ConditionFalse, reason, message)
	case f.Conflict() != "":
		return row(metav1.ConditionFalse, v1alpha1.ReasonConflictingProxy, conflictMessage(f))
	case s.Rejection != nil:
		return row(metav1.ConditionFalse, v1alpha1.ReasonFailed, v1alpha1.MessageNotAccepted+s.Rejection.Message)
	case s.Err != nil && f.Audit:
		return row(metav1.ConditionFalse, v1alpha1.ReasonFailed, "The kernel cannot be compared with the desired state: "+wording.OneLine(s.Err)+". The agent retries.")
	case s.Err != nil: // after a late failure most is written
		return row(metav1.ConditionFalse, v1alpha1.ReasonFailed, "Not everything could be written: "+wording.OneLine(s.Err)+". The rest is up to date or unchanged, and the agent retries.")
	case !s.Done:
		return row(metav1.ConditionFalse, v1alpha1.ReasonPending, firstStateMessage(s, f))
	case f.Audit && pendingFor(&s, auditPatience):
		return row(metav1.ConditionFalse, v1alpha1.ReasonPending, "Changes have been waiting for a comparison since "+since+". See the agent's log on this node.")
	case f.Audit && s.Difference != nil && s.Difference.Count > 0:
		// Only status.difference has the differences: in a message, rules that come and go would
		// cause repeated writes.
		return row(metav1.ConditionFalse, v1alpha1.ReasonAuditDiffers, "The kernel differs from the desired state, see status.difference. Enforcement is Audit: "+maintainer(f))
	case f.Audit:
		return row(metav1.ConditionTrue, v1alpha1.ReasonAuditInSync, "The kernel has the desired state; enforcement is Audit: "+maintainer(f)) // one sentence: restrictions may follow
	case pendingFor(&s, patience):
		return row(metav1.ConditionFalse, v1alpha1.ReasonPending, "Changes have been pending since "+since+". See the agent's log on this node.")
	case len(s.Rejected) > 0:
		return row(metav1.ConditionTrue, v1alpha1.ReasonSomeServicesRejected,
			fmt.Sprintf("The kernel rejects the rules of %s and has those of all others; fix the cause in the Service or on the node: %s", text.Count(len(s.Rejected), "Service"), rejectedText(&s)))
	case lasting(&s, s.RetainedSince) || lasting(&s, s.UnconfirmedSince):
		return row(metav1.ConditionTrue, v1alpha1.ReasonRetained, retainedMessage(s))
	default:
		message := "The desired state is programmed"
		if s.ShownMode() == v1alpha1.ModeUserspace {
			message += "; endpoints see this node's address as their client"
		}
		return row(metav1.ConditionTrue, v1alpha1.ReasonProgrammed, message)
	}
}

// pendingFor reports whether a change has been pending for longer than that.
func pendingFor(s *desired.Snapshot, limit time.Duration) bool {
	return !s.OldestPending.IsZero() && s.Now.Sub(s.OldestPending) > limit
}

// lasting reports whether a state has lasted long enough to be reported.
func lasting(s *desired.Snapshot, since time.Time) bool {
	return !since.IsZero() && s.Now.Sub(since) >= patience
}

// removal is reason and message during a removal of the rules.
func removal(r desired.Removal, f Facts) (reason, message string) {
	const deleted = "The NodeProxy is being deleted with removalPolicy Cleanup"
	switch {
	case r.Done:
		return v1alpha1.ReasonRemoved, r.Message
	case r.Err != nil:
		return v1alpha1.ReasonFailed, fmt.Sprintf("%s, but not everything of nodeproxy could be removed from this node: %s. The agent retries.", deleted, wording.OneLine(r.Err))
	case f.OtherProxy != "":
		return v1alpha1.ReasonPending, fmt.Sprintf("%s. The rules of this node are removed once another proxy (%s) has not been detected for %s.", deleted, f.OtherProxy, f.OtherWait)
	default:
		return v1alpha1.ReasonPending, deleted + ". The rules of this node are about to be removed."
	}
}

// maintainer returns which program maintains the rules in Audit.
func maintainer(f Facts) string {
	switch {
	case f.OtherProxy != "" && f.OtherGone.IsZero():
		message := fmt.Sprintf("this agent writes nothing; another proxy runs on this node (%s)", f.OtherProxy)
		if remaining := f.remaining(); remaining != "" {
			message += "; " + remaining
		}
		return message
	case f.OtherProxy != "":
		return fmt.Sprintf("this agent writes nothing; another proxy ran on this node (%s) and has not been detected since %s", f.OtherProxy, f.OtherGone.UTC().Format(time.RFC3339))
	case f.Unanswered:
		return "this agent writes nothing, and does not know yet whether another proxy runs on this node"
	default:
		return v1alpha1.MessageUnmaintained + ", because this agent writes nothing and no other proxy is detected on this node; start kube-proxy on it, or set spec.settings.enforcement to Enforce"
	}
}

func firstStateMessage(s desired.Snapshot, f Facts) string {
	switch {
	case f.Audit && s.Listed:
		return "Enforcement is Audit: the kernel has not been compared with the desired state yet. If this lasts, see the agent's log on this node."
	case f.Unanswered && !f.Audit:
		return fmt.Sprintf("The port where kube-proxy would answer (%s) accepts connections but has not answered yet. Nothing is written until it answers, its port is closed, or %d requests in a row get no answer; if kube-proxy runs on this node, stop it.", ownership.ProxyModeAddress, ownership.ProbeLimit)
	case !s.Listed:
		return "Since it started, the agent waits for the list of ServiceProxyRules. If this lasts, see the agent's log on this node."
	default:
		return "No complete state has been written to the kernel since the agent started or acquired ownership. If this lasts, see the agent's log on this node."
	}
}

// RestoredMessage returns that the node uses its checkpoint; empty: it does not. It has no age, which
// would cause repeated writes.
func RestoredMessage(s *desired.Snapshot) string {
	if !s.Restored.Active() {
		return ""
	}
	what := "The NodeProxyRules of this node"
	switch {
	case s.Restored.Services && s.Restored.Rules:
		what = "The ServiceProxyRules and the NodeProxyRules of this node"
	case s.Restored.Services:
		what = "The ServiceProxyRules"
	}
	how := "what the kernel lacks is repaired, nothing is changed or removed"
	if s.Restored.Rebooted {
		how = "the node has restarted since, so endpoints on this node are left out and health checks answer 503"
	}
	return fmt.Sprintf("%s could not be read from the API since the agent started (%s): until the API answers, the node uses the checkpoint on its disk, written %s: %s",
		what, text.Truncate(text.Clause(s.Restored.Why), wording.MaxExample), s.Restored.Written.UTC().Format(time.RFC3339), how)
}

// retainedMessage returns why rules are retained and what to do, in one sentence: restrictions may
// follow.
func retainedMessage(s desired.Snapshot) string {
	var parts []string
	advice := ""
	if text := RestoredMessage(&s); text != "" {
		parts = append(parts, text)
	}
	if n := len(s.Retained); n > 0 && lasting(&s, s.RetainedSince) {
		var names []string
		for _, name := range s.Retained[:min(n, 3)] {
			names = append(names, name.String())
		}
		text := strings.Join(names, ", ")
		if more := n - len(names); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		parts = append(parts, fmt.Sprintf("the ServiceProxyRules of %s have vanished although their Services have not ended: their rules are retained until the objects return or the controller confirms that the Services are gone", text))
		advice = "if this lasts, check that the controller runs"
	}
	if lasting(&s, s.UnconfirmedSince) && !s.Restored.Services {
		if s.InventoryKnown {
			parts = append(parts, "the list of ServiceProxyRules differs from status.inventory of the NodeProxy: no rules are removed until they agree")
			advice = "if this lasts, check that the controller runs"
		} else {
			parts = append(parts, `there is no NodeProxy "cluster" with a status.inventory: no rules are removed until there is`)
			advice = "create the NodeProxy, and check that the controller runs"
		}
	}
	if advice != "" {
		parts = append(parts, advice)
	}
	text := strings.Join(parts, "; ")
	return strings.ToUpper(text[:1]) + text[1:]
}

// rejectedText names some of the rejected Services, human-readable.
func rejectedText(s *desired.Snapshot) string {
	return cmp.Or(text.Clause(strings.Join(rejectedExamples(s), "; ")), "they were rejected together and are tried one by one")
}

// rejectedExamples names some of the rejected Services. Those that policies shape come first,
// because by them the controller learns that a policy's change fails. Suspected ones are left out:
// they would halt policies and be reported to their owners without a reason. Each namespace has
// one before any has two, so that none can hide those of others.
func rejectedExamples(s *desired.Snapshot) []string {
	type rank struct{ unshaped, number int }
	ranks := make(map[dataplane.ServiceName]rank, len(s.Rejected))
	before := map[string][2]int{} // of a namespace: shaped, and not
	names := slices.SortedFunc(maps.Keys(s.Rejected), dataplane.ServiceName.Compare)
	names = slices.DeleteFunc(names, func(n dataplane.ServiceName) bool { return s.Suspected[n] })
	for _, name := range names {
		r := rank{unshaped: 1}
		if s.Shaped[name] {
			r.unshaped = 0
		}
		counts := before[name.Namespace]
		r.number = counts[r.unshaped]
		counts[r.unshaped]++
		before[name.Namespace] = counts
		ranks[name] = r
	}
	slices.SortStableFunc(names, func(a, b dataplane.ServiceName) int {
		return cmp.Or(cmp.Compare(ranks[a].unshaped, ranks[b].unshaped), cmp.Compare(ranks[a].number, ranks[b].number))
	})
	var out []string
	for _, name := range names[:min(len(names), dataplane.MaxExamples)] {
		out = append(out, name.String()+": "+s.Rejected[name])
	}
	return wording.Examples(out)
}
