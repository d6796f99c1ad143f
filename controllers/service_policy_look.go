package controllers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/policies"
	"github.com/nodeproxy-io/nodeproxy/controllers/render"
)

// servicePolicyLook is what policies make of all Services at one time.
type servicePolicyLook struct {
	set      *servicePolicySet
	on       bool // nodeproxy is switched on
	policies map[string]*servicePolicyTally
}

// servicePolicyTally counts the Services of a policy.
type servicePolicyTally struct {
	services, applied int
	refused           map[types.NamespacedName]refusedBy
	changes           []policies.RefusedChange          // of those refused
	ineffective       map[types.NamespacedName][]string // why
	// overridden are its fields that others set, and useless those without an effect on
	// some Service.
	overridden, useless map[string]*fieldTally
	kept                map[string]int // Services that keep what they have, by why
}

// fieldTally counts the Services of which one thing is to be said about a field.
type fieldTally struct {
	services int
	first    types.NamespacedName // the one with the lowest name
	what     string               // of the first
}

func newServicePolicyLook(set *servicePolicySet, on bool) *servicePolicyLook {
	l := &servicePolicyLook{set: set, on: on, policies: map[string]*servicePolicyTally{}}
	for name := range set.generations {
		l.policies[name] = &servicePolicyTally{
			refused: map[types.NamespacedName]refusedBy{}, ineffective: map[types.NamespacedName][]string{},
			overridden: map[string]*fieldTally{}, useless: map[string]*fieldTally{}, kept: map[string]int{},
		}
	}
	return l
}

// note counts a Service.
func (l *servicePolicyLook) note(svc *corev1.Service, out outlook) {
	if out.known == nil {
		return
	}
	key, wanted := client.ObjectKeyFromObject(svc), out.known.wanted
	for _, name := range out.known.invalid {
		l.policies[name].services++
	}
	for _, name := range wanted.Matching {
		t := l.policies[name]
		t.services++
		switch {
		case out.inForce:
			t.applied++
		case out.why != "":
			t.kept[out.why]++
		}
		for field, winner := range wanted.Overridden[name] {
			noteField(t.overridden, field, key, winner)
		}
	}
	if len(wanted.Owners) == 0 {
		return
	}
	for _, i := range render.IneffectiveOverrides(svc, &wanted.Overrides) {
		t := l.policies[wanted.Owners[i.Field]]
		t.ineffective[key] = append(t.ineffective[key], i.Why)
		noteField(t.useless, i.Field, key, i.Why)
	}
}

func noteField(fields map[string]*fieldTally, field string, key types.NamespacedName, what string) {
	t := fields[field]
	if t == nil {
		t = &fieldTally{}
		fields[field] = t
	}
	if t.services == 0 || comparedNames(key, t.first) < 0 {
		t.first, t.what = key, what
	}
	t.services++
}

// noteRefused counts a Service that nodes refuse, for those that are held to account for
// what it has of its policies.
func (l *servicePolicyLook) noteRefused(key types.NamespacedName, by refusedBy, grant *v1alpha1.OverridesGrant) {
	if grant == nil {
		return
	}
	for _, cause := range grant.By {
		if t := l.policies[cause.Name]; t != nil && l.set.generations[cause.Name] == cause.Generation {
			t.refused[key] = by
			t.changes = append(t.changes, policies.RefusedChange{Namespace: key.Namespace, Changed: grant.Changed})
		}
	}
}

// halt is for whom the change has halted.
func (t *servicePolicyTally) halt() policies.Halt { return policies.HaltOf(t.changes) }

// halted are the changes that have halted, with why Services wait.
func (l *servicePolicyLook) halted() map[v1alpha1.Cause]string {
	out := map[v1alpha1.Cause]string{}
	for name, t := range l.policies {
		if len(t.refused) > 0 {
			out[v1alpha1.Cause{Name: name, Generation: l.set.generations[name]}] = whyKept(name, t.halt())
		}
	}
	return out
}

// counts are for the metrics: by policy, then by state.
func (l *servicePolicyLook) counts() map[string]map[string]int {
	out := map[string]map[string]int{}
	for name, t := range l.policies {
		refused := 0
		if t.halt().All {
			refused = len(t.refused)
		}
		out[name] = map[string]int{
			"selected": t.services, "applied": t.applied, "ineffective": len(t.ineffective), "refused": refused,
		}
	}
	return out
}

// invalid tells what is wrong with a policy; empty when nothing is.
func (l *servicePolicyLook) invalid(name string) string {
	for i := range l.set.invalid {
		if l.set.invalid[i].Name == name {
			return l.set.invalid[i].why.ToAggregate().Error()
		}
	}
	return ""
}

// examples are the Services that nodes refuse, then those that an override has no effect
// on, each by name.
func (t *servicePolicyTally) examples() []v1alpha1.ServiceExample {
	var out []v1alpha1.ServiceExample
	add := func(key types.NamespacedName, reason, message string) {
		out = append(out, v1alpha1.ServiceExample{Namespace: key.Namespace, Name: key.Name, Reason: reason, Message: truncated(message, maxExampleMessage)})
	}
	for key, by := range t.refused {
		add(key, v1alpha1.ReasonRefused, by.String())
	}
	for key, why := range t.ineffective {
		add(key, v1alpha1.ReasonIneffective, strings.Join(why, "; "))
	}
	slices.SortFunc(out, func(a, b v1alpha1.ServiceExample) int {
		return cmp.Or(
			-cmp.Compare(a.Reason, b.Reason), // Refused comes first
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
		)
	})
	return out[:min(len(out), maxExamples)]
}

// String tells who refuses and why.
func (r refusedBy) String() string {
	nodes := "node " + r.node + " refuses it"
	if r.nodes > 1 {
		nodes = fmt.Sprintf("%d nodes refuse it, such as %s", r.nodes, r.node)
	}
	if r.why == "" {
		return nodes
	}
	return nodes + ": " + r.why
}
