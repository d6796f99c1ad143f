package controllers

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// What is wrong with how the agents are run comes before what follows from it,
// and after what keeps it from being mended.
func TestWithTroubles(t *testing.T) {
	condition := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: "of the nodes"}
	}
	agents := func(reason string) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.ConditionAgentsDeployed, Status: metav1.ConditionFalse, Reason: reason, Message: "of the agents"}
	}
	unreachable := finding{v1alpha1.ReasonAPIServerUnreachable, "of the API servers"}
	well, bad := condition(metav1.ConditionTrue, v1alpha1.ReasonAllProgrammed), condition(metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed)
	invalid := condition(metav1.ConditionFalse, v1alpha1.ReasonInvalidSettings)
	for name, tt := range map[string]struct {
		ready      metav1.Condition
		apiServers finding
		agents     *metav1.Condition
		want       string
	}{
		"unmanaged":                         {well, finding{}, nil, "True AllProgrammed of the nodes"},
		"updating":                          {well, finding{}, agents(v1alpha1.ReasonAgentsUpdating), "True AllProgrammed of the nodes"},
		"not ready":                         {well, finding{}, agents(v1alpha1.ReasonAgentPodsNotReady), "False AgentPodsNotReady of the agents"},
		"not ready, and what follows":       {bad, finding{}, agents(v1alpha1.ReasonAgentPodsNotReady), "False NodesNotProgrammed of the nodes"},
		"failing":                           {well, finding{}, agents(v1alpha1.ReasonAgentPodsFailing), "False AgentPodsFailing of the agents"},
		"failing, and what follows":         {bad, finding{}, agents(v1alpha1.ReasonAgentPodsFailing), "False AgentPodsFailing of the agents"},
		"no image":                          {bad, finding{}, agents(v1alpha1.ReasonNoAgentImage), "False NoAgentImage of the agents"},
		"refused":                           {bad, finding{}, agents(v1alpha1.ReasonDaemonSetRefused), "False DaemonSetRefused of the agents"},
		"no API server":                     {well, unreachable, nil, "False APIServerUnreachable of the API servers"},
		"no API server and failing":         {bad, unreachable, agents(v1alpha1.ReasonAgentPodsFailing), "False APIServerUnreachable of the API servers"},
		"invalid settings, and all at once": {invalid, unreachable, agents(v1alpha1.ReasonAgentPodsFailing), "False InvalidSettings of the nodes"},
	} {
		got := withTroubles(tt.ready, tt.apiServers, tt.agents)
		if text := fmt.Sprint(got.Status, " ", got.Reason, " ", got.Message); text != tt.want || got.Type != v1alpha1.ConditionReady {
			t.Errorf("%s: got %s, want %s", name, text, tt.want)
		}
	}
}

// A controller that has just taken over repeats what another one has found.
func TestFindings(t *testing.T) {
	changes := 0
	f := newFindings(func() { changes++ })
	status := &v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: "Found", Message: "before"}}}
	expect := func(when string, want finding, wantChanges int) {
		t.Helper()
		if got := f.of("it", status, v1alpha1.ConditionReady, "Other", "Found"); got != want || changes != wantChanges {
			t.Errorf("%s: got %+v after %d changes, want %+v after %d", when, got, changes, want, wantChanges)
		}
	}
	expect("not known yet", finding{"Found", "before"}, 0)
	f.report("it", finding{})
	expect("all is well", finding{}, 1)
	f.report("it", finding{})
	expect("still", finding{}, 1)
	f.report("it", finding{"Found", "now"})
	expect("found again", finding{"Found", "now"}, 2)
	f.newTerm()
	expect("in a new term", finding{"Found", "before"}, 2)
	status.Conditions[0].Reason = v1alpha1.ReasonAllProgrammed
	expect("of something else", finding{}, 2)
}
