package doctor

import (
	"fmt"
	"strings"
	"testing"
)

func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		found []Finding
		want  string
	}{
		"problems come before warnings": {
			[]Finding{{Name: "w", Severity: Warning}, {Name: "p", Severity: Problem}}, "p w",
		},
		"what explains most comes first": {
			[]Finding{{Name: "a", Severity: Problem, Check: CheckController}, {Name: "b", Severity: Problem, Check: CheckNodes, key: "b"}, {Name: "c", causes: []string{"b"}}}, "b(c) a",
		},
		"the best cause that is there counts": {
			[]Finding{{Name: "a", key: "a"}, {Name: "b", key: "b"}, {Name: "c", causes: []string{"gone", "b", "a"}}}, "b(c) a",
		},
		"two that explain each other": {
			[]Finding{{Name: "a", key: "a", causes: []string{"b"}}, {Name: "b", key: "b", causes: []string{"a"}}}, "b(a)",
		},
		"one that explains itself": {
			[]Finding{{Name: "a", key: "a", causes: []string{"a"}}}, "a",
		},
		"those alike on several nodes are one": {
			[]Finding{{Name: "a", Nodes: []string{"node-2"}, key: "2"}, {Name: "a", Nodes: []string{"node-1"}, key: "1"}, {Name: "c", causes: []string{"1"}}, {Name: "c", causes: []string{"2"}}}, "a(c)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := names(order(c.found)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// TestFolded: of many that follow from one, a few are printed.
func TestFolded(t *testing.T) {
	f := Finding{Severity: Problem, Name: "Cause", What: "w", Do: "d"}
	for i := range 9 {
		f.Therefore = append(f.Therefore, Finding{Severity: Problem, Name: fmt.Sprintf("Effect%d", i)})
	}
	said := text(t, &Report{Findings: []Finding{f}})
	if !strings.Contains(said, "10 problems") || !strings.Contains(said, "Effect4") || strings.Contains(said, "Effect5") || !strings.Contains(said, "and 4 more") {
		t.Error(said)
	}
}
