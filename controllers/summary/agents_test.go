package summary

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

// What is wrong with how the agents are run comes before what follows from it,
// and after what prevents its repair.
func TestWithProblems(t *testing.T) {
	condition := func(status metav1.ConditionStatus, reason string) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: "of the nodes"}
	}
	agents := func(reason string) *metav1.Condition {
		return &metav1.Condition{Type: v1alpha1.ConditionAgentsDeployed, Status: metav1.ConditionFalse, Reason: reason, Message: "of the agents"}
	}
	unreachable := reports.Finding{Reason: v1alpha1.ReasonAPIServerUnreachable, Message: "of the API servers"}
	well, bad := condition(metav1.ConditionTrue, v1alpha1.ReasonAllProgrammed), condition(metav1.ConditionFalse, v1alpha1.ReasonNodesNotProgrammed)
	invalid := condition(metav1.ConditionFalse, v1alpha1.ReasonInvalidSettings)
	for name, tt := range map[string]struct {
		ready      metav1.Condition
		apiServers reports.Finding
		agents     *metav1.Condition
		want       string
	}{
		"unmanaged":                         {well, reports.Finding{}, nil, "True AllProgrammed of the nodes"},
		"updating":                          {well, reports.Finding{}, agents(v1alpha1.ReasonAgentsUpdating), "True AllProgrammed of the nodes"},
		"not ready":                         {well, reports.Finding{}, agents(v1alpha1.ReasonAgentPodsNotReady), "False AgentPodsNotReady of the agents"},
		"not ready, and what follows":       {bad, reports.Finding{}, agents(v1alpha1.ReasonAgentPodsNotReady), "False NodesNotProgrammed of the nodes"},
		"failing":                           {well, reports.Finding{}, agents(v1alpha1.ReasonAgentPodsFailing), "False AgentPodsFailing of the agents"},
		"failing, and what follows":         {bad, reports.Finding{}, agents(v1alpha1.ReasonAgentPodsFailing), "False AgentPodsFailing of the agents"},
		"no image":                          {bad, reports.Finding{}, agents(v1alpha1.ReasonNoAgentImage), "False NoAgentImage of the agents"},
		"denied":                            {bad, reports.Finding{}, agents(v1alpha1.ReasonDaemonSetDenied), "False DaemonSetDenied of the agents"},
		"no API server":                     {well, unreachable, nil, "False APIServerUnreachable of the API servers"},
		"no API server and failing":         {bad, unreachable, agents(v1alpha1.ReasonAgentPodsFailing), "False APIServerUnreachable of the API servers"},
		"invalid settings, and all at once": {invalid, unreachable, agents(v1alpha1.ReasonAgentPodsFailing), "False InvalidSettings of the nodes"},
	} {
		got := withProblems(tt.ready, tt.apiServers, tt.agents)
		if text := fmt.Sprint(got.Status, " ", got.Reason, " ", got.Message); text != tt.want || got.Type != v1alpha1.ConditionReady {
			t.Errorf("%s: got %s, want %s", name, text, tt.want)
		}
	}
}
