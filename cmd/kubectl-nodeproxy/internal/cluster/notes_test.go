package cluster

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func node() *v1alpha1.NodeProxyRules {
	return &v1alpha1.NodeProxyRules{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: v1alpha1.NodeProxyRulesSpec{FormatVersion: 3}}
}

func TestTooOld(t *testing.T) {
	for want, known := range map[string][]int32{
		"they have format 3, but it supports only format 1; the node retains":         {1},
		"have format 3, but it supports only format 1;":                               nil, // from before agents named them
		"they have format 3, but it supports only the formats 1, 2; the node retains": {1, 2},
		"": {1, 2, 3},
	} {
		n := node()
		n.Status.Agent = &v1alpha1.AgentReport{Version: "v0.1.0", FormatVersions: known}
		if got := TooOld(n); !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%v: %s", known, got)
		}
	}
	if got := TooOld(node()); got != "" {
		t.Errorf("without a report: %s", got)
	}
}

func TestUnmaintained(t *testing.T) {
	for _, enforcement := range []v1alpha1.Enforcement{v1alpha1.Audit, v1alpha1.Enforce} {
		n := node()
		n.Spec.Settings.Enforcement = &enforcement
		n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Message: "enforcement is Audit: " + v1alpha1.MessageUnmaintained}}
		if got := Unmaintained(n); got != (enforcement == v1alpha1.Audit) {
			t.Errorf("%s: %t", enforcement, got)
		}
		n.Status.Conditions[0].Message = "another proxy runs on this node"
		if Unmaintained(n) {
			t.Errorf("%s, with another proxy", enforcement)
		}
	}
}
