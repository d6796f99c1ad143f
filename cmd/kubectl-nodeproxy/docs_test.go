package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// quoted is a golden file in the documentation: a comment that names it, and its text.
var quoted = regexp.MustCompile("<!-- golden: (\\S+) -->\n(?:\n```\n(?s:.*?)```\n)?")

// TestDocumentation: docs/kubectl-plugin.md shows the program's output.
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
		t.Errorf("%s differs from the program's output: go test ./cmd/kubectl-nodeproxy -update writes it; run it twice if goldens have changed, too", page)
		return
	}
	if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
		t.Error(err)
	}
}

// page is a link to the documentation in the program's source, such as
// removal.md#with-retain.
var page = regexp.MustCompile(`"([a-z-]+\.md)(?:#([a-z0-9-]+))?"`)

// TestPages: every page and section to which the program refers exists.
func TestPages(t *testing.T) {
	t.Parallel()
	found := 0
	err := filepath.WalkDir("internal", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, link := range page.FindAllStringSubmatch(string(source), -1) {
			found++
			text, err := os.ReadFile(filepath.Join("..", "..", "docs", link[1]))
			if err != nil {
				t.Errorf("%s: %v", path, err)
			} else if link[2] != "" && !slices.Contains(sections(string(text)), link[2]) {
				t.Errorf("%s: docs/%s has no section %s", path, link[1], link[2])
			}
		}
		return nil
	})
	if err != nil || found < 20 {
		t.Errorf("%d links, %v", found, err)
	}
}

// sections are the anchors of a page's headings.
func sections(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if heading := strings.TrimLeft(line, "#"); heading != line {
			out = append(out, strings.ReplaceAll(regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), ""), " ", "-"))
		}
	}
	return out
}
