package reports

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/api/v1alpha1"
)

// A controller that has just taken over repeats what another one has found.
func TestFindings(t *testing.T) {
	changes := 0
	f := NewFindings(func() { changes++ })
	status := &v1alpha1.NodeProxyStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: "Found", Message: "before"}}}
	expect := func(when string, want Finding, wantChanges int) {
		t.Helper()
		if got := f.Of("it", status, v1alpha1.ConditionReady, "Other", "Found"); got != want || changes != wantChanges {
			t.Errorf("%s: got %+v after %d changes, want %+v after %d", when, got, changes, want, wantChanges)
		}
	}
	expect("not known yet", Finding{"Found", "before"}, 0)
	f.Report("it", Finding{})
	expect("all is well", Finding{}, 1)
	f.Report("it", Finding{})
	expect("still", Finding{}, 1)
	f.Report("it", Finding{"Found", "now"})
	expect("found again", Finding{"Found", "now"}, 2)
	f.NewTerm()
	expect("in a new term", Finding{"Found", "before"}, 2)
	status.Conditions[0].Reason = v1alpha1.ReasonAllProgrammed
	expect("of something else", Finding{}, 2)
}
