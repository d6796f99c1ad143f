package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/findings"
)

// TestConsequences: of many consequences, a few are printed.
func TestConsequences(t *testing.T) {
	f := findings.Finding{Severity: findings.Problem, Reason: "Cause", Message: "w", Remedy: "d"}
	for i := range 9 {
		f.Consequences = append(f.Consequences, findings.Finding{Severity: findings.Problem, Reason: fmt.Sprintf("Effect%d", i)})
	}
	table := printed(t, &Report{Findings: []findings.Finding{f}})
	if !strings.Contains(table, "10 problems") || !strings.Contains(table, "Effect4") || strings.Contains(table, "Effect5") || !strings.Contains(table, "and 4 more") {
		t.Error(table)
	}
}
