package events

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// ofEvent is a reason that only events have, ofCondition one of a condition, which events about its
	// transitions have too, and usedReason where the controllers use it.
	ofEvent     = regexp.MustCompile(`(?m)^\s*(?:const )?[eE]vent[A-Z]\w*\s*= "([A-Z]\w+)"`)
	ofCondition = regexp.MustCompile(`(?m)^\s*(Reason\w+)\s*= "(\w+)"`)
	usedReason  = regexp.MustCompile(`\bv1alpha1\.(Reason\w+)`)
)

// TestReasonsAreDocumented: docs/troubleshooting.md has every reason of an event that has no condition
// to explain it, and some page the others.
func TestReasonsAreDocumented(t *testing.T) {
	read := func(elements ...string) string {
		text, err := os.ReadFile(filepath.Join(elements...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	docs := filepath.Join("..", "..", "docs")
	pages, err := filepath.Glob(filepath.Join(docs, "*.md"))
	if err != nil || len(pages) == 0 {
		t.Fatalf("pages %q, %v", pages, err)
	}
	all := ""
	for _, page := range pages {
		all += read(page)
	}
	has := func(text, reason string) bool { return regexp.MustCompile(`\b` + reason + `\b`).MatchString(text) }
	reasons := map[string]string{}
	for _, found := range ofCondition.FindAllStringSubmatch(read("..", "..", "api", "v1alpha1", "names.go"), -1) {
		reasons[found[1]] = found[2]
	}
	// Of conditions whose transitions have no events.
	delete(reasons, "ReasonNotOverridden")
	delete(reasons, "ReasonAllEffective")
	troubleshooting := read(docs, "troubleshooting.md")
	events, conditions := 0, 0
	err = filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source := read(path)
		for _, found := range ofEvent.FindAllStringSubmatch(source, -1) {
			if events++; !has(troubleshooting, found[1]) {
				t.Errorf("%s: docs/troubleshooting.md does not have the reason %s", path, found[1])
			}
		}
		for _, found := range usedReason.FindAllStringSubmatch(source, -1) {
			if reason := reasons[found[1]]; reason != "" {
				if conditions++; !has(all, reason) {
					t.Errorf("%s: no page has the reason %s", path, reason)
				}
			}
		}
		return nil
	})
	if err != nil || events < 8 || conditions < 20 {
		t.Errorf("%d reasons of events, %d of conditions, %v", events, conditions, err)
	}
}
