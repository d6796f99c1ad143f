package agent

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/agent/desired"
	"github.com/nodeproxy-io/nodeproxy/agent/wording"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// audit compares the kernel to what is wanted and writes nothing. The sync loop
// calls it in place of sync and verify while enforcement is Audit.
func (a *Agent) audit(ctx context.Context) error {
	if !a.store.Ready() {
		return nil
	}
	start := a.options.Clock.Now()
	b, ok := a.store.PrepareAudit(start)
	if !ok {
		return nil // Enforce, since we have asked: the settings have triggered what follows
	}
	outcomes := a.fanout.Audit(ctx, b.Rulesets)
	if a.auditMode(ctx, b, outcomes) {
		if b, ok = a.store.PrepareAudit(start); !ok {
			return nil
		}
		outcomes = a.fanout.Audit(ctx, b.Rulesets)
	}
	end := a.options.Clock.Now()
	if ctx.Err() != nil {
		return nil
	}
	if a.store.CurrentEpoch() != b.Epoch { // it tells of a kernel as it was
		a.loop.Trigger()
		return nil
	}
	a.noteVersion()
	a.excuseAudit(outcomes)
	first, waiting := a.store.Audited(b, outcomes, end)
	a.pace(end.Sub(start))
	if waiting { // to see whether it lasts
		a.loop.Trigger()
	}
	err := dataplane.JoinErrors(outcomes)
	a.log.V(2).Info("Compared the kernel to what is wanted", "duration", end.Sub(start))
	a.logAudit(err)
	a.logAbsent(a.store.Absences())
	a.logWarnings(a.store.Warnings())
	if first {
		a.log.Info("The kernel is compared to what is wanted for the first time; enforcement is Audit, nothing is written", "duration", end.Sub(start))
	}
	a.noteReady()
	a.pokeStatus()
	return err
}

// excuseAudit takes the families out of the outcomes that the node lacks and
// nothing needs, as after an Apply.
func (a *Agent) excuseAudit(outcomes map[dataplane.Family]dataplane.Outcome[dataplane.Audit]) {
	results := map[dataplane.Family]dataplane.Outcome[dataplane.Result]{}
	for family, outcome := range outcomes {
		results[family] = dataplane.Outcome[dataplane.Result]{Err: outcome.Err}
	}
	a.store.Excuse(results)
	maps.DeleteFunc(outcomes, func(family dataplane.Family, _ dataplane.Outcome[dataplane.Audit]) bool {
		_, kept := results[family]
		return !kept
	})
}

// pace sets the time to the next comparison, given how long the last one took.
func (a *Agent) pace(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.settings == nil || *a.settings.Enforcement != v1alpha1.Audit {
		return // noteObject has set what is to be from now on
	}
	minimum, verify := intervals(a.settings)
	a.loop.SetIntervals(max(minimum, desired.AuditInterval, min(desired.AuditRest*took, desired.LongestAuditRest)), verify)
}

func (a *Agent) logAudit(err error) {
	switch former, changed := a.news(failures, wording.OfError(err)); {
	case err != nil && changed:
		a.log.Error(err, "Could not compare the kernel to what is wanted; trying again with growing pauses")
	case err == nil && former != "":
		a.log.Info("Comparing the kernel to what is wanted works again")
	}
	d := a.store.Snapshot().Difference
	if d == nil {
		return
	}
	text := ""
	if d.Count > 0 {
		text = strings.Join(wording.Examples(d.Examples), "; ")
	}
	switch former, changed := a.news(differences, text); {
	case text != "" && changed:
		a.log.Info("The kernel differs from what is wanted; enforcement is Audit, so it stays", "differences", d.Count, "examples", wording.Examples(d.Examples))
	case text == "" && former != "":
		a.log.Info("The kernel holds what is wanted again")
	}
}

// auditCondition is the condition Programmed with Audit, once the kernel has
// been compared. What differs is in status.difference alone: where rules come and
// go, a message that told it would have the status written time and again.
func auditCondition(s desired.Snapshot, f facts) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAuditInSync,
		Message: "the kernel holds what is wanted; enforcement is Audit: " + maintainer(f)}
	if d := s.Difference; d != nil && d.Count > 0 {
		c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonAuditDiffers
		c.Message = "the kernel differs from what is wanted: status.difference says where; enforcement is Audit: " + maintainer(f)
	}
	return c
}

// maintainer says who maintains the rules with Audit.
func maintainer(f facts) string {
	switch {
	case f.otherProxy != "" && f.otherGone.IsZero():
		return fmt.Sprintf("this agent writes nothing; another proxy runs on this node (%s)", f.otherProxy)
	case f.otherProxy != "":
		return fmt.Sprintf("this agent writes nothing; another proxy ran on this node (%s) and has shown no sign since %s", f.otherProxy, f.otherGone.UTC().Format(time.RFC3339))
	case f.unanswered:
		return "this agent writes nothing, and it cannot be told yet whether another proxy runs on this node"
	default:
		return "nobody maintains the rules, because this agent writes nothing and no other proxy shows on this node; start kube-proxy on it, or set spec.settings.enforcement to Enforce"
	}
}
