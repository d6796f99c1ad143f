package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFind(t *testing.T) {
	for name, c := range map[string]struct {
		file, content string
		want          []string // line: phrase
	}{
		"a comment over two lines": {
			file:    "a.go",
			content: "package a\n\n// F is what tells\n// of a change.\nfunc F() {}\n",
			want:    []string{"3: tell"},
		},
		"an indented comment over two lines": {
			file:    "a.go",
			content: "package a\n\nfunc f() {\n\t// the last good\n\t// set\n}\n",
			want:    []string{"4: last good set"},
		},
		"a string": {
			file:    "a.go",
			content: "package a\n\nvar s = `one\nNobody answers`\n",
			want:    []string{"4: nobody"},
		},
		"identifiers": {
			file:    "a.go",
			content: "package a\n\nfunc lastGoodSet(forPeople bool) {}\n\ntype XMend int\n",
			want:    []string{"3: for people", "3: last good set", "5: mend"},
		},
		"words that only contain a phrase": {
			file:    "a.go",
			content: "package a\n\n// recommended, amend; foretells ofal\nvar amendment, recommend int\n",
		},
		"the text of a system error": {
			file:    "a.go",
			content: "package a\n\nvar s, t = \"connection refused\", \"refused\"\nvar u = \"refused\"\n",
			want:    []string{"3: refuse", "4: refuse"},
		},
		"an import": {
			file:    "a.go",
			content: "package a\n\nimport _ \"example.com/nobody\"\n",
		},
		"Markdown": {
			file:    "a.md",
			content: "# T\n\n> tells\n> of it\n\nfor\npeople\n",
			want:    []string{"3: tell", "6: for people"},
		},
		"separate paragraphs": {
			file:    "a.md",
			content: "this is for\n\npeople\n",
		},
		"YAML": {
			file:    "a.yaml",
			content: "a: 1\n# goes\n# by it\nb: what is wanted\n",
			want:    []string{"2: go by", "4: wanted"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			found, err := find(c.file, c.content, rules())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range found {
				got = append(got, fmt.Sprintf("%d: %s", f.line, f.rule.name))
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
	if _, err := find("a.go", "no Go", rules()); err == nil {
		t.Error("a file that is no Go is accepted")
	}
}

func TestExceptions(t *testing.T) {
	for line, wrong := range map[string]string{
		"a/":                    "path | phrase | reason",
		"a/ | nobody | ":        "lacks a path or a reason",
		"a/ | no such | reason": "unknown phrase",
		"* | * | reason":        "allows everything",
	} {
		if _, err := exceptions("# comment\n\n"+line, rules()); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%q: error %v, want %q", line, err, wrong)
		}
	}
}

// TestRun checks a repository of its own: what is reported, and that an exception which
// nothing needs is too.
func TestRun(t *testing.T) {
	root := t.TempDir()
	write := func(file, content string) {
		t.Helper()
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string, wantClean bool, below ...string) {
		t.Helper()
		var out strings.Builder
		clean, err := run(&out, root, false, below)
		if err != nil {
			t.Fatal(err)
		}
		if clean != wantClean || !strings.Contains(out.String(), want) {
			t.Errorf("clean: %t, printed:\n%s\nwant clean: %t, and %q", clean, out.String(), wantClean, want)
		}
	}
	if out, err := exec.Command("git", "-C", root, "init", "-q").CombinedOutput(); err != nil {
		t.Fatalf("git init: %v\n%s", err, out)
	}
	write("old/a.md", "nobody\n")
	write("new/b.md", "x\nnobody and somebody\n")
	write("new/c.txt", "nobody\n")
	write(allowFile, "old/ | * | not yet cleaned\nnew/b.md | nobody | a user's name\n")
	check(`new/b.md:2: "somebody"`, false)
	check("", true, "old")
	write("new/b.md", "x\n")
	check(allowFile+`:2: new/b.md has no "nobody": delete this line`, false)
	write(allowFile, "old/ | * | not yet cleaned\n")
	check("", true)
	if err := os.Remove(filepath.Join(root, "old/a.md")); err != nil {
		t.Fatal(err)
	}
	check(allowFile+`:1: old/ has no "*": delete this line`, false)
}
