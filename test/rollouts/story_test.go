package rollouts

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// stored is a version of a node's rules, and why the node is not Programmed.
func stored(name, given, isApplied, reason string) *v1alpha1.NodeProxyRules {
	rules := &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}}
	rules.Spec.SettingsRevision, rules.Status.SettingsRevision = given, isApplied
	c := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed}
	if reason != "" {
		c.Status, c.Reason = metav1.ConditionFalse, reason
	}
	rules.Status.Conditions = []metav1.Condition{c}
	return rules
}

func TestOneByOne(t *testing.T) {
	a, b := stored("a", "1", "1", ""), stored("b", "1", "1", "")
	for name, c := range map[string]struct {
		versions []*v1alpha1.NodeProxyRules
		order    string
		want     string // in the error
	}{
		"one after the other": {[]*v1alpha1.NodeProxyRules{
			stored("b", "2", "1", ""), stored("b", "2", "2", v1alpha1.ReasonPending), stored("b", "2", "2", ""), stored("a", "2", "1", ""), stored("a", "2", "2", ""),
		}, "b a", ""},
		"the other one differs in Audit, and has compared": {[]*v1alpha1.NodeProxyRules{
			stored("a", "2", "2", v1alpha1.ReasonAuditDiffers), stored("b", "2", "1", ""),
		}, "a b", ""},
		"while the other one has not got there": {[]*v1alpha1.NodeProxyRules{
			stored("a", "2", "1", ""), stored("b", "2", "1", ""),
		}, "a b", "at the same time a and b"},
		"while the other one is not programmed": {[]*v1alpha1.NodeProxyRules{
			stored("a", "2", "2", v1alpha1.ReasonFailed), stored("b", "2", "2", ""),
		}, "a b", "b was given 2, by policies [], while not available were: a: Programmed is False, Failed"},
		"the same again before it was there": {[]*v1alpha1.NodeProxyRules{
			stored("a", "2", "1", ""), stored("a", "3", "1", ""),
		}, "a a", ""},
		"nothing": {nil, "", "no node was given anything"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Story{}
			for _, rules := range slices.Concat([]*v1alpha1.NodeProxyRules{a, b}, c.versions) {
				s.add(rules)
			}
			if got := strings.Join(s.Order(), " "); got != c.order {
				t.Errorf("the order is %q, want %q", got, c.order)
			}
			err := s.OneByOne()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("it reports %v, want %q", err, c.want)
			}
		})
	}
}

func TestNewAndDeletedNodes(t *testing.T) {
	s := &Story{}
	s.add(stored("a", "1", "1", ""))
	s.add(stored("new", "1", "", v1alpha1.ReasonPending))
	s.remove("new")
	s.add(stored("a", "2", "1", ""))
	if err := s.OneByOne(); err != nil || len(s.Given) != 1 {
		t.Errorf("%+v, %v; want that a was given 2, while no other node was there", s.Given, err)
	}
}
