package status

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

func TestConflictConditionEnds(t *testing.T) {
	was := []metav1.Condition{{Type: v1alpha1.ConditionConflictingProxy, Status: metav1.ConditionTrue}}
	for _, tt := range []struct {
		f    Facts
		text string
	}{
		{Facts{}, "No other proxy is active"},
		{Facts{Audit: true, OtherProxy: "x"}, "Enforcement is Audit"},
	} {
		c := conflictCondition(tt.f, was)
		if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, tt.text) {
			t.Errorf("%+v: %+v", tt.f, c)
		}
		if conflictCondition(tt.f, nil) != nil {
			t.Errorf("%+v: a node that never had a conflict has the condition", tt.f)
		}
	}
	s := Build(programmed(), Facts{OtherProxy: "x"}, nil)
	if !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionConflictingProxy) {
		t.Errorf("conditions %+v", s.Conditions)
	}
}
