package findings

import (
	"strings"
	"testing"
)

func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		found []Finding
		want  string
	}{
		"problems come before warnings": {
			[]Finding{{Reason: "w", Severity: Warning}, {Reason: "p", Severity: Problem}}, "p w",
		},
		"what explains most comes first": {
			[]Finding{{Reason: "a", Severity: Problem, Check: CheckController}, {Reason: "b", Severity: Problem, Check: CheckNodes, Key: "b"}, {Reason: "c", Causes: []string{"b"}}}, "b(c) a",
		},
		"the best existing cause counts": {
			[]Finding{{Reason: "a", Key: "a"}, {Reason: "b", Key: "b"}, {Reason: "c", Causes: []string{"gone", "b", "a"}}}, "b(c) a",
		},
		"two that explain each other": {
			[]Finding{{Reason: "a", Key: "a", Causes: []string{"b"}}, {Reason: "b", Key: "b", Causes: []string{"a"}}}, "b(a)",
		},
		"one that explains itself": {
			[]Finding{{Reason: "a", Key: "a", Causes: []string{"a"}}}, "a",
		},
		"equal findings of several nodes are merged": {
			[]Finding{{Reason: "a", Nodes: []string{"node-2"}, Key: "2"}, {Reason: "a", Nodes: []string{"node-1"}, Key: "1"}, {Reason: "c", Causes: []string{"1"}}, {Reason: "c", Causes: []string{"2"}}}, "a(c)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := reasons(Order(c.found)); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

// reasons are those of findings, each followed by its consequences in brackets.
func reasons(found []Finding) string {
	var out []string
	for _, f := range found {
		text := f.Reason
		if len(f.Consequences) > 0 {
			text += "(" + reasons(f.Consequences) + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}
