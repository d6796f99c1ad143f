package status

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestAble(t *testing.T) {
	t.Parallel()
	node := func(name string, runs v1alpha1.ProxyMode, lacks string) *v1alpha1.NodeProxyRules {
		return &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1alpha1.NodeProxyRulesStatus{
			Mode: runs, Agent: &v1alpha1.AgentReport{Modes: []v1alpha1.ModeSupport{{Mode: v1alpha1.ModeIPTables}, {Mode: v1alpha1.ModeNFTables, Lacks: lacks}}},
		}}
	}
	old := &v1alpha1.NodeProxyRules{Status: v1alpha1.NodeProxyRulesStatus{Mode: v1alpha1.ModeIPTables, Agent: &v1alpha1.AgentReport{}}}
	for _, tt := range []struct {
		nodes []*v1alpha1.NodeProxyRules
		want  string
	}{
		{nil, "[]"},
		{[]*v1alpha1.NodeProxyRules{old, {}}, "[]"},
		{[]*v1alpha1.NodeProxyRules{node("a", v1alpha1.ModeNFTables, ""), old}, "[]"},
		{[]*v1alpha1.NodeProxyRules{node("a", v1alpha1.ModeNFTables, ""), node("b", v1alpha1.ModeIPVS, "")}, "[all could run NFTables]"},
		{
			[]*v1alpha1.NodeProxyRules{node("a", v1alpha1.ModeIPTables, ""), node("b", v1alpha1.ModeIPTables, "no module nft_fib"), node("c", v1alpha1.ModeIPVS, "")},
			"[2 of 3 could run NFTables (b: no module nft_fib)]",
		},
	} {
		if got := fmt.Sprint(able(tt.nodes)); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}
