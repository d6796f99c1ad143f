package servicepolicies

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/events"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
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
	reports.SetAbnormal(&status.Conditions, ready, p.Generation, now, v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonInvalidPolicy)
	return status
}

func (l *survey) ready(name string, t *tally) metav1.Condition {
	const kind = v1alpha1.ConditionReady
	halted := t.halt().All
	switch why := l.invalid(name); {
	case why != "":
		return reports.False(kind, v1alpha1.ReasonInvalidPolicy, notUsed(why))
	case !l.on:
		return reports.False(kind, v1alpha1.ReasonNoNodeProxy,
			`No Service is proxied because there is no NodeProxy "cluster", or it is being removed. Create it.`)
	case t.services == 0 && !halted:
		return reports.True(kind, v1alpha1.ReasonNothingSelected,
			"No proxied Service matches spec.namespaceSelector and spec.serviceSelector. Compare them with the labels of Namespaces and Services.")
	}
	example := ""
	if len(t.rejected) > 0 {
		first := slices.MinFunc(slices.Collect(maps.Keys(t.rejected)), objects.CompareNames)
		why := text.Clause(t.rejected[first].String())
		if halted {
			example = fmt.Sprintf("Service %s, as shaped by this policy: %s", first, why)
		} else { // the policy need not be the cause
			example = fmt.Sprintf("Service %s itself has changed, and %s", first, why)
		}
		if more := len(t.rejected) - 1; more > 0 {
			example += fmt.Sprintf(" (and %s)", text.Count(more, "more Service"))
		}
		if !halted {
			example += "; correct the Service."
		}
	}
	switch left := t.services - t.applied; {
	case halted && left > 0:
		return reports.False(kind, v1alpha1.ReasonRolloutHalted,
			fmt.Sprintf("%s. Correct the policy or fix the node; until then, %s %s.", example,
				text.CountOf(left, t.services, "Service"), text.For(t.services, "retains its overrides", "retain their overrides")))
	case halted:
		return reports.False(kind, v1alpha1.ReasonRolloutHalted, example+". Correct the policy or fix the node.")
	case left > 0:
		return reports.False(kind, v1alpha1.ReasonProgressing, strings.TrimSpace(t.progress()+" "+example))
	}
	return reports.True(kind, v1alpha1.ReasonApplied, example)
}

func notUsed(why string) string {
	return text.Sentence("This policy is not used, and the Services that it selects or has shaped retain their overrides. Correct " + why)
}

func (t *tally) progress() string {
	texts := []string{appliedText(t.applied, t.services)}
	for _, why := range slices.Sorted(maps.Keys(t.retaining)) {
		texts = append(texts, fmt.Sprintf("%d %s because %s", t.retaining[why],
			text.For(t.retaining[why], "retains its overrides", "retain their overrides"), why))
	}
	return strings.Join(texts, "; ") + "."
}

// appliedText reports how many Services of a policy have their overrides.
func appliedText(applied, services int) string {
	return text.CountOf(applied, services, "Service") + " " +
		text.For(services, "has the overrides of its policies", "have the overrides of their policies")
}

func (l *survey) accepted(name string) metav1.Condition {
	if why := l.invalid(name); why != "" {
		return reports.False(v1alpha1.ConditionAccepted, v1alpha1.ReasonInvalidPolicy, notUsed(why))
	}
	return reports.True(v1alpha1.ConditionAccepted, v1alpha1.ReasonAccepted, "")
}

// overriddenCondition names the fields that stronger policies set.
func (l *survey) overriddenCondition(name string, t *tally) metav1.Condition {
	if len(t.overridden) == 0 {
		return reports.False(v1alpha1.ConditionOverridden, v1alpha1.ReasonNotOverridden, "")
	}
	return reports.True(v1alpha1.ConditionOverridden, v1alpha1.ReasonOverridden, inFields(t.overridden, func(field string, f *fieldTally) string {
		return fmt.Sprintf("policy %s (%s) sets spec.overrides.%s for %s", f.what, text.WinsBy(l.set.Priorities[f.what], l.set.Priorities[name]), field, f)
	}))
}

// ineffectiveCondition names the fields that have no effect on some Service.
func (t *tally) ineffectiveCondition() metav1.Condition {
	if len(t.ineffectiveFields) == 0 {
		return reports.False(v1alpha1.ConditionIneffective, v1alpha1.ReasonAllEffective, "")
	}
	return reports.True(v1alpha1.ConditionIneffective, v1alpha1.ReasonIneffective, inFields(t.ineffectiveFields, func(_ string, f *fieldTally) string {
		return fmt.Sprintf("%s: spec.overrides.%s", f, f.what)
	}))
}

// inFields joins statements about fields, by field.
func inFields(fields map[string]*fieldTally, statement func(string, *fieldTally) string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		texts = append(texts, statement(name, fields[name]))
	}
	return text.Capital(strings.Join(texts, "; ")) + "."
}

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
	generation := fmt.Sprintf("Generation %d: ", after.ObservedGeneration)
	switch is.Reason {
	case v1alpha1.ReasonApplied:
		return events.Normal, is.Reason, generation + appliedText(int(after.Services), int(after.Services)) + "."
	case v1alpha1.ReasonRolloutHalted, v1alpha1.ReasonInvalidPolicy, v1alpha1.ReasonNoNodeProxy:
		return events.Warning, is.Reason, generation + is.Message
	case v1alpha1.ReasonProgressing: // without the current counts
		return events.Normal, is.Reason, fmt.Sprintf("%sA change is being applied to the %s that the policy selects.", generation, text.Count(int(after.Services), "Service"))
	}
	return events.Normal, is.Reason, generation + is.Message
}
