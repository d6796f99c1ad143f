package parity

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocumentedDifferences holds the list in docs/parity.md against the one
// that is in effect.
func TestDocumentedDifferences(t *testing.T) {
	text, err := os.ReadFile("../../docs/parity.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Wanted differences of the rules\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented, inEffect []string
	for _, m := range regexp.MustCompile(`(?m)^- \*\*(.+)\*\*:`).FindAllStringSubmatch(section, -1) {
		documented = append(documented, m[1])
	}
	for _, w := range wantedDifferences() {
		inEffect = append(inEffect, w.name)
		if w.reason == "" {
			t.Errorf("%s has no reason", w.name)
		}
	}
	slices.Sort(documented)
	slices.Sort(inEffect)
	if diff := cmp.Diff(inEffect, documented); diff != "" {
		t.Errorf("differences.go and docs/parity.md (-in effect +documented):\n%s", diff)
	}
}
