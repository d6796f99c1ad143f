package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// quoted is a golden file in the documentation: a comment that names it, and what it says.
var quoted = regexp.MustCompile("<!-- golden: (\\S+) -->\n(?:\n```\n(?s:.*?)```\n)?")

// TestDocumentation: docs/kubectl-plugin.md shows what the program prints.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	page := filepath.Join("..", "..", "docs", "kubectl-plugin.md")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	got := quoted.ReplaceAllStringFunc(string(text), func(block string) string {
		found++
		name := quoted.FindStringSubmatch(block)[1]
		golden, err := os.ReadFile(filepath.Join(goldens, filepath.FromSlash(name)))
		if err != nil {
			t.Error(err)
			return block
		}
		return "<!-- golden: " + name + " -->\n\n```\n" + string(golden) + "```\n"
	})
	if found == 0 {
		t.Error("no golden file is quoted")
	}
	if got == string(text) {
		return
	}
	if !*update {
		t.Errorf("%s shows something else than the program: go test ./cmd/kubectl-nodeproxy -update writes it, twice if goldens have changed, too", page)
		return
	}
	if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
		t.Error(err)
	}
}
