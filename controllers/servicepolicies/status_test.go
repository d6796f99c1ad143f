package servicepolicies

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/overrides"
	"github.com/nodeproxy-io/nodeproxy/test/messages"
)

func TestServicePolicyTransitions(t *testing.T) {
	for _, tt := range []struct {
		was, is string // generation and reason
		want    string // severity and reason
	}{
		{"", "1 Progressing", "Normal Progressing"},
		{"", "1 NothingSelected", "Normal NothingSelected"},
		{"1 Progressing", "1 Applied", "Normal Applied"},
		{"1 Applied", "2 Progressing", "Normal Progressing"},
		{"1 Applied", "2 InvalidPolicy", "Warning InvalidPolicy"},
		{"2 Progressing", "2 RolloutHalted", "Warning RolloutHalted"},
		{"2 RolloutHalted", "3 RolloutHalted", "Warning RolloutHalted"},
		{"2 RolloutHalted", "2 Progressing", "Normal Progressing"},
		{"2 Applied", "2 NoNodeProxy", "Warning NoNodeProxy"},

		{"1 Applied", "1 Applied", ""},
		{"1 Applied", "2 Applied", ""},
		{"1 Progressing", "1 Progressing", ""},
		{"1 Progressing", "2 Progressing", ""},
		{"1 InvalidPolicy", "2 InvalidPolicy", ""},
		{"1 NothingSelected", "2 NothingSelected", ""},
		{"1 NoNodeProxy", "2 NoNodeProxy", ""},
		{"2 RolloutHalted", "2 RolloutHalted", ""},
	} {
		t.Run(tt.was+" to "+tt.is, func(t *testing.T) {
			severity, reason, note := transition(statusWith(t, tt.was, "before"), statusWith(t, tt.is, "after"))
			if got := strings.TrimSpace(severity + " " + reason); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
			if generation := "Generation " + tt.is[:1] + ": "; tt.want != "" && !strings.HasPrefix(note, generation) {
				t.Errorf("%q does not begin with %q", note, generation)
			}
		})
	}
}

// statusWith is a status with the condition Ready, of a generation and with a reason.
func statusWith(t *testing.T, ready, message string) *v1alpha1.ServiceProxyPolicyStatus {
	t.Helper()
	status := &v1alpha1.ServiceProxyPolicyStatus{}
	if ready == "" {
		return status
	}
	c := metav1.Condition{Type: v1alpha1.ConditionReady, Message: message}
	if _, err := fmt.Sscan(ready, &c.ObservedGeneration, &c.Reason); err != nil {
		t.Fatal(err)
	}
	status.ObservedGeneration, status.Conditions = c.ObservedGeneration, []metav1.Condition{c}
	return status
}

func TestOverriddenServicePolicyReportsWhy(t *testing.T) {
	survey := &survey{set: &overrides.PolicySet{Priorities: map[string]int32{"a": 3, "b": 3, "weak": -1}}}
	by := func(winner string) *tally {
		return &tally{overridden: map[string]*fieldTally{
			"nodePorts": {services: 1, first: types.NamespacedName{Namespace: "shop", Name: "cart"}, what: winner},
		}}
	}
	for name, want := range map[string]string{
		"b":    "Policy a (priority 3, as this one: the lower name wins) sets spec.overrides.nodePorts for Service shop/cart.",
		"weak": "Policy a (priority 3) sets spec.overrides.nodePorts for Service shop/cart.",
	} {
		if got := survey.overriddenCondition(name, by("a")).Message; got != want {
			t.Errorf("%s, want\n%s", got, want)
		}
	}
}

// TestMessagesAreShort: for any number of Services, and whatever the kernel reports.
func TestMessagesAreShort(t *testing.T) {
	cart := types.NamespacedName{Namespace: "shop", Name: "cart"}
	field := map[string]*fieldTally{"nodePorts": {services: 1, first: cart, what: "a"}, "sessionAffinity": {services: 2, first: cart, what: "b"}}
	for _, services := range []int{1, 4} {
		for applied := range services + 1 {
			for _, rejected := range []string{"", "changed", "shaped"} {
				survey := newSurvey(&overrides.PolicySet{Generations: map[string]int64{"p": 2}}, true)
				policy := survey.policies["p"]
				policy.services, policy.applied, policy.overridden, policy.ineffectiveFields = services, applied, field, field
				if left := services - applied; left > 0 {
					policy.retaining = map[string]int{"policy a is not valid": 1, "the change of policy p has halted": left}
				}
				if rejected != "" {
					survey.noteRejected(cart, overrides.Rejection{Node: "n1", Why: "no such device. Perhaps it must be loaded. It may help.", Nodes: 1},
						&v1alpha1.OverridesGrant{By: []v1alpha1.Cause{{Name: "p", Generation: 2}}, Changed: rejected == "changed"})
				}
				status := survey.status(&v1alpha1.ServiceProxyPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 2}}, time.Now())
				for _, c := range status.Conditions {
					messages.Check(t, c.Message)
				}
				_, _, note := transition(&v1alpha1.ServiceProxyPolicyStatus{}, status)
				messages.Check(t, note)
			}
		}
	}
}

// TestRejectedByTheirOwnChange: Services that have changed themselves are reported, but halt
// nothing, neither in the status nor in the metrics.
func TestRejectedByTheirOwnChange(t *testing.T) {
	cause := []v1alpha1.Cause{{Name: "p", Generation: 2}}
	for _, tt := range []struct {
		name     string
		applied  int
		grants   map[string]bool // Services by namespace/name: whether they have changed
		want     string
		rejected int // by the metrics
	}{
		{"nothing", 3, nil, "True Applied: ", 0},
		{"all have the change", 3, map[string]bool{"shop/cart": true, "shop/till": true},
			"True Applied: Service shop/cart itself has changed, and node n1 rejects it: no (and 1 more Service); correct the Service.", 0},
		{"some wait", 2, map[string]bool{"shop/cart": true},
			"False Progressing: 2 of 3 Services have the overrides of their policies. Service shop/cart itself has changed, and node n1 rejects it: no; correct the Service.", 0},
		{"one has not changed", 2, map[string]bool{"shop/cart": true, "shop/till": false}, "False RolloutHalted: Service shop/cart, as shaped by this policy: ", 2},
		{"of two namespaces", 3, map[string]bool{"shop/cart": true, "bank/till": true},
			"True Applied: Service bank/till itself has changed, and node n1 rejects it: no (and 1 more Service); correct the Service.", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			survey := newSurvey(&overrides.PolicySet{Generations: map[string]int64{"p": 2}}, true)
			survey.policies["p"].services, survey.policies["p"].applied = 3, tt.applied
			for service, changed := range tt.grants {
				namespace, name, _ := strings.Cut(service, "/")
				survey.noteRejected(types.NamespacedName{Namespace: namespace, Name: name}, overrides.Rejection{Node: "n1", Why: "no", Nodes: 1},
					&v1alpha1.OverridesGrant{By: cause, Changed: changed})
			}
			c := survey.ready("p", survey.policies["p"])
			if got := fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message); !strings.HasPrefix(got, tt.want) {
				t.Errorf("%s, want %s", got, tt.want)
			}
			messages.Check(t, c.Message)
			if got := survey.counts()["p"]["rejected"]; got != tt.rejected {
				t.Errorf("%d are counted as rejected, want %d", got, tt.rejected)
			}
		})
	}
}
