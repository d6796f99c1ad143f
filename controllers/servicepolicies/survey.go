package servicepolicies

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/objects"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// survey is what policies result in for all Services at one time.
type survey struct {
	set      *overrides.PolicySet
	on       bool // nodeproxy is enabled
	policies map[string]*tally
}

// tally counts the Services of a policy.
type tally struct {
	services, applied int
	rejected          map[types.NamespacedName]overrides.Rejection
	changes           []policies.RejectedChange         // of those rejected
	ineffective       map[types.NamespacedName][]string // why
	// overridden are its fields that others set, and ineffectiveFields those without effect on some
	// Service.
	overridden, ineffectiveFields map[string]*fieldTally
	retaining                     map[string]int // Services that retain their overrides, by reason
}

// fieldTally counts the Services that one statement about a field applies to.
type fieldTally struct {
	services int
	first    types.NamespacedName // the one with the lowest name
	what     string               // of the first
}

func newSurvey(set *overrides.PolicySet, on bool) *survey {
	l := &survey{set: set, on: on, policies: map[string]*tally{}}
	for name := range set.Generations {
		l.policies[name] = &tally{
			rejected: map[types.NamespacedName]overrides.Rejection{}, ineffective: map[types.NamespacedName][]string{},
			overridden: map[string]*fieldTally{}, ineffectiveFields: map[string]*fieldTally{}, retaining: map[string]int{},
		}
	}
	return l
}

func (l *survey) note(svc *corev1.Service, out overrides.Decision) {
	if out.Known == nil {
		return
	}
	key, desired := client.ObjectKeyFromObject(svc), out.Known.Desired
	for _, name := range out.Known.Invalid {
		l.policies[name].services++
	}
	for _, name := range desired.Matching {
		t := l.policies[name]
		t.services++
		switch {
		case out.Applied:
			t.applied++
		case out.Why != "":
			t.retaining[out.Why]++
		}
		for field, winner := range desired.Overridden[name] {
			noteField(t.overridden, field, key, winner)
		}
	}
	if len(desired.Owners) == 0 {
		return
	}
	for _, i := range render.IneffectiveOverrides(svc, &desired.Overrides) {
		t := l.policies[desired.Owners[i.Field]]
		t.ineffective[key] = append(t.ineffective[key], i.Why)
		noteField(t.ineffectiveFields, i.Field, key, i.Why)
	}
}

func noteField(fields map[string]*fieldTally, field string, key types.NamespacedName, what string) {
	t := fields[field]
	if t == nil {
		t = &fieldTally{}
		fields[field] = t
	}
	if t.services == 0 || objects.CompareNames(key, t.first) < 0 {
		t.first, t.what = key, what
	}
	t.services++
}

// noteRejected counts a rejected Service for the policies that its overrides are from.
func (l *survey) noteRejected(key types.NamespacedName, by overrides.Rejection, grant *v1alpha1.OverridesGrant) {
	if grant == nil {
		return
	}
	for _, cause := range grant.By {
		if t := l.policies[cause.Name]; t != nil && l.set.Generations[cause.Name] == cause.Generation {
			t.rejected[key] = by
			t.changes = append(t.changes, policies.RejectedChange{Namespace: key.Namespace, Changed: grant.Changed})
		}
	}
}

// halt returns for which Services the change has halted.
func (t *tally) halt() policies.Halt { return policies.HaltOf(t.changes) }

// halted returns the halted changes, with why Services wait.
func (l *survey) halted() map[v1alpha1.Cause]string {
	out := map[v1alpha1.Cause]string{}
	for name, t := range l.policies {
		if len(t.rejected) > 0 {
			out[v1alpha1.Cause{Name: name, Generation: l.set.Generations[name]}] = overrides.WhyRetained(name, t.halt())
		}
	}
	return out
}

// counts returns the metrics: by policy, then by state.
func (l *survey) counts() map[string]map[string]int {
	out := map[string]map[string]int{}
	for name, t := range l.policies {
		rejected := 0
		if t.halt().All {
			rejected = len(t.rejected)
		}
		out[name] = map[string]int{
			"selected": t.services, "applied": t.applied, "ineffective": len(t.ineffective), "rejected": rejected,
		}
	}
	return out
}

// invalid returns what is wrong with a policy; empty: nothing.
func (l *survey) invalid(name string) string {
	for i := range l.set.Invalid {
		if l.set.Invalid[i].Name == name {
			return l.set.Invalid[i].Why.ToAggregate().Error()
		}
	}
	return ""
}

// examples returns the rejected Services, then those that an override has no effect on, each by
// name.
func (t *tally) examples() []v1alpha1.ServiceExample {
	var out []v1alpha1.ServiceExample
	add := func(key types.NamespacedName, reason, message string) {
		out = append(out, v1alpha1.ServiceExample{Namespace: key.Namespace, Name: key.Name, Reason: reason, Message: text.Truncate(message, text.MaxExampleMessage)})
	}
	for key, by := range t.rejected {
		add(key, v1alpha1.ReasonRejected, by.String())
	}
	for key, why := range t.ineffective {
		add(key, v1alpha1.ReasonIneffective, strings.Join(why, "; "))
	}
	slices.SortFunc(out, func(a, b v1alpha1.ServiceExample) int {
		return cmp.Or(
			-cmp.Compare(a.Reason, b.Reason), // Rejected comes first
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		)
	})
	return out[:min(len(out), text.MaxExamples)]
}
