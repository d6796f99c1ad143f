package status

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/cluster"
)

// TestThousandNodes: whatever is wrong with however many nodes, it is a screen or two, the
// worst and the oldest come first, and none is forgotten.
func TestThousandNodes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	o := &cluster.Objects{Time: now, NodeProxy: &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{
		{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNodesNotProgrammed},
	}}}}
	for i := range 1000 {
		reason, status := v1alpha1.ReasonHeld, metav1.ConditionTrue
		if i%2 == 0 {
			reason, status = v1alpha1.ReasonFailed, metav1.ConditionFalse
		}
		name := fmt.Sprintf("node-%03d", i)
		o.NodeRules = append(o.NodeRules, v1alpha1.NodeProxyRules{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1alpha1.NodeProxyRulesStatus{
				Conntrack: &v1alpha1.ConntrackReport{UsagePercent: int32(i % 80)},
				Conditions: []metav1.Condition{{
					Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason, Message: "of its own on " + name,
					LastTransitionTime: metav1.NewTime(now.Add(-time.Duration(i+1) * time.Second)),
				}},
			},
		})
	}
	r := Of(o)
	var out strings.Builder
	if err := r.Table(&out); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines > 25 {
		t.Errorf("%d lines:\n%s", lines, out.String())
	}
	if len(r.Problems) != 2 || len(r.Problems[0].Nodes) != 500 || len(r.Problems[1].Nodes) != 500 {
		t.Fatalf("problems: %+v", r.Problems)
	}
	if p := r.Problems[0]; p.What != "Programmed False: Failed" || p.Nodes[0].Name != "node-998" || p.Since != p.Nodes[0].Since {
		t.Errorf("first: %s, %+v", p.What, p.Nodes[0])
	}
	for _, want := range []string{
		"1000: 500 Failed, 500 Held", "Programmed False: Failed, 500 nodes for 16m",
		"and 497 more: node-992, node-990, node-988, node-986, node-984 and 492 more", "fullest: node-079 79%, node-159 79%, node-239 79%",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// TestConntrack: a full table is told of, whether its agent has said so or not, as the
// doctor does.
func TestConntrack(t *testing.T) {
	t.Parallel()
	for percent, well := range map[int32]bool{79: true, 80: false, 100: false} {
		r := Of(&cluster.Objects{
			NodeProxy: &v1alpha1.NodeProxy{Status: v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{
				{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAllProgrammed},
			}}},
			NodeRules: []v1alpha1.NodeProxyRules{{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: v1alpha1.NodeProxyRulesStatus{
				Conntrack:  &v1alpha1.ConntrackReport{UsagePercent: percent, Entries: 9, Max: 10, Drop: 55},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed}},
			}}},
		})
		if r.Well != well || !well && (len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Nodes[0].Message, "55 packets dropped")) {
			t.Errorf("%d %%: well: %v, %+v", percent, r.Well, r.Problems)
		}
	}
}
