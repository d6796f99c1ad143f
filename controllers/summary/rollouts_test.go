package summary

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeproxy-io/nodeproxy/controllers/reports"
)

func TestWithRollout(t *testing.T) {
	for _, tt := range []struct{ ready, change, want string }{
		{"True AllProgrammed", "", "True AllProgrammed"},
		{"True AllProgrammed", "Progressing", "False Progressing"},
		{"True AllProgrammed", "RolloutHalted", "False RolloutHalted"},
		{"False NodesNotProgrammed", "Progressing", "False NodesNotProgrammed"},
		{"False NodesNotProgrammed", "RolloutHalted", "False RolloutHalted"},
		{"False InvalidSettings", "RolloutHalted", "False InvalidSettings"},
		{"False NoNodes", "Paused", "False NoNodes"},
	} {
		status, reason, _ := strings.Cut(tt.ready, " ")
		got := withRollout(metav1.Condition{Status: metav1.ConditionStatus(status), Reason: reason}, reports.Finding{Reason: tt.change})
		if text := fmt.Sprintf("%s %s", got.Status, got.Reason); text != tt.want {
			t.Errorf("%s with %s is %s, want %s", tt.ready, tt.change, text, tt.want)
		}
	}
}

func TestTransitionsOfNodeProxy(t *testing.T) {
	for _, tt := range []struct {
		was, is string
		want    bool
	}{
		{"AllProgrammed", "Progressing", true}, {"Progressing", "AllProgrammed", true}, {"NodesNotProgrammed", "AllProgrammed", false},
		{"Progressing", "NodesNotProgrammed", false}, {"NodesNotProgrammed", "RolloutHalted", true}, {"", "NoNodes", false},
	} {
		if _, worth := transitionOfNodeProxy(tt.was, tt.is); worth != tt.want {
			t.Errorf("NodeProxy from %s to %s: %t", tt.was, tt.is, worth)
		}
	}
}
