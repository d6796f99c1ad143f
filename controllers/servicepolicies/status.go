package servicepolicies

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
	"github.com/nodeproxy-io/nodeproxy/controllers/text"
)

// status returns the status of a policy; only the times of its conditions depend on the stored one.
func (l *survey) status(p *v1alpha1.ServiceProxyPolicy, now time.Time) *v1alpha1.ServiceProxyPolicyStatus {
	t := l.policies[p.Name]
	status := &v1alpha1.ServiceProxyPolicyStatus{
		Conditions:         slices.Clone(p.Status.Conditions),
		ObservedGeneration: p.Generation,
		Services:           int32(t.services),
		Applied:            int32(t.applied),
		Ineffective:        int32(len(t.ineffective)),
		Examples:           t.examples(),
	}
	ready := l.ready(p.Name, t)
	reports.Set(&status.Conditions, p.Generation, now, ready, l.accepted(p.Name), l.overriddenCondition(p.Name, t), t.ineffectiveCondition())
	reports.SetStalled(&status.Conditions, ready, p.Generation, now, v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonInvalidPolicy)
	return status
}

// ready decides the condition Ready of a policy.
func (l *survey) ready(name string, t *tally) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse}
	switch why := l.invalid(name); {
	case why != "":
		c.Reason, c.Message = v1alpha1.ReasonInvalidPolicy, notUsed(why)
	case !l.on:
		c.Reason = v1alpha1.ReasonNoNodeProxy
		c.Message = `No Service is proxied because there is no NodeProxy "cluster", or it is being removed. Create it.`
	case t.halt().All:
		c.Reason, c.Message = v1alpha1.ReasonRolloutHalted, t.haltedMessage()
	case t.services == 0:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonNothingSelected
		c.Message = "spec.namespaceSelector and spec.serviceSelector select no proxied Service"
	case t.applied < t.services:
		c.Reason, c.Message = v1alpha1.ReasonProgressing, t.progress()
	default:
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonApplied
	}
	if len(t.rejected) > 0 && (c.Reason == v1alpha1.ReasonProgressing || c.Reason == v1alpha1.ReasonApplied) {
		c.Message = strings.TrimPrefix(c.Message+"; "+t.changedMessage(), "; ")
	}
	return c
}

func notUsed(why string) string {
	return "This policy is not used, and the Services that it selects or has shaped keep their overrides. Correct " + why
}

// progress describes the progress of a change.
func (t *tally) progress() string {
	texts := []string{fmt.Sprintf("%d of %d Services have the overrides of their policies", t.applied, t.services)}
	for _, why := range slices.Sorted(maps.Keys(t.kept)) {
		texts = append(texts, fmt.Sprintf("%d keep their overrides because %s", t.kept[why], why))
	}
	return strings.Join(texts, "; ")
}

// haltedMessage says what has halted a change, and what to do.
func (t *tally) haltedMessage() string {
	first := slices.MinFunc(slices.Collect(maps.Keys(t.rejected)), objects.CompareNames)
	out := fmt.Sprintf("Service %s, as shaped by this policy: %s", first, t.rejected[first])
	if more := len(t.rejected) - 1; more > 0 {
		out += fmt.Sprintf(" (and %s)", text.Count(more, "more Service"))
	}
	if left := t.services - t.applied; left > 0 {
		out += fmt.Sprintf(". The change has halted: %d of %d Services keep their overrides", left, t.services)
	}
	return out + ". Correct the policy or fix the node: the change continues with a new spec, or once no node rejects the Service"
}

// changedMessage describes rejected Services that the policy need not be the cause of.
func (t *tally) changedMessage() string {
	first := slices.MinFunc(slices.Collect(maps.Keys(t.rejected)), objects.CompareNames)
	out := fmt.Sprintf("Service %s itself has changed, and %s", first, t.rejected[first])
	if more := len(t.rejected) - 1; more > 0 {
		out += fmt.Sprintf(" (and %s)", text.Count(more, "more Service"))
	}
	return out + "; correct the Service"
}

// accepted decides the condition Accepted of a policy.
func (l *survey) accepted(name string) metav1.Condition {
	if why := l.invalid(name); why != "" {
		return metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonInvalidPolicy, Message: notUsed(why)}
	}
	return metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted}
}

// overriddenCondition names the fields that stronger policies set.
func (l *survey) overriddenCondition(name string, t *tally) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionOverridden, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotOverridden}
	if len(t.overridden) == 0 {
		return c
	}
	c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonOverridden
	c.Message = inFields(t.overridden, func(field string, f *fieldTally) string {
		return fmt.Sprintf("spec.overrides.%s is set by policy %s (%s) for %s", field, f.what, text.WinsBy(l.set.Priorities[f.what], l.set.Priorities[name]), f)
	})
	return c
}

// ineffectiveCondition names the fields that have no effect on some Service.
func (t *tally) ineffectiveCondition() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionIneffective, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonAllEffective}
	if len(t.useless) == 0 {
		return c
	}
	c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonIneffective
	c.Message = inFields(t.useless, func(_ string, f *fieldTally) string {
		return fmt.Sprintf("for %s, spec.overrides.%s", f, f.what)
	})
	return c
}

// inFields joins statements about fields, by field.
func inFields(fields map[string]*fieldTally, say func(string, *fieldTally) string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		texts = append(texts, say(name, fields[name]))
	}
	return strings.Join(texts, "; ")
}

// String names the Services.
func (f *fieldTally) String() string {
	if f.services == 1 {
		return "Service " + f.first.String()
	}
	return fmt.Sprintf("%d Services such as %s", f.services, f.first)
}

// transition returns the event for a change of a policy's condition Ready; an empty reason: none. A
// new generation alone is no event, unless it has halted like the one before: then it has continued
// in between, if only for a moment.
func transition(before, after *v1alpha1.ServiceProxyPolicyStatus) (severity, reason, note string) {
	was, is := reports.Ready(before.Conditions), reports.Ready(after.Conditions)
	haltedAnew := is.Reason == v1alpha1.ReasonRolloutHalted && was.ObservedGeneration != is.ObservedGeneration
	if was.Reason == is.Reason && !haltedAnew {
		return "", "", ""
	}
	generation := fmt.Sprintf("generation %d: ", after.ObservedGeneration)
	switch is.Reason {
	case v1alpha1.ReasonApplied:
		return events.Normal, is.Reason, fmt.Sprintf("%s%d of %d Services have the overrides of their policies", generation, after.Services, after.Services)
	case v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonNoNodeProxy:
		return events.Warning, is.Reason, generation + is.Message
	case v1alpha1.ReasonProgressing: // without the current counts
		return events.Normal, is.Reason, fmt.Sprintf("%sa change is being applied to the %s that the policy selects", generation, text.Count(int(after.Services), "Service"))
	}
	return events.Normal, is.Reason, generation + is.Message
}
