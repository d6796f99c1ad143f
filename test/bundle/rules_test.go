package bundle

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// repository is where the bundle is that make bundle writes.
var repository = filepath.Join("..", "..")

// directory is what holds bundle and bundle.Dockerfile: this repository, or what a
// release has written elsewhere.
var directory = flag.String("bundle", repository, "the `directory` that holds bundle and bundle.Dockerfile")

func parse(t *testing.T, directory string) *Bundle {
	t.Helper()
	files, err := Files(os.DirFS(directory))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Parse(files)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBundleKeepsEveryRule(t *testing.T) {
	b := parse(t, *directory)
	for _, rule := range Rules() {
		t.Run(rule.Name, func(t *testing.T) {
			for _, text := range rule.Check(b) {
				t.Error(text)
			}
		})
	}
}

// Every rule is broken by a bundle that differs in one place, and reports it.
func TestEveryRuleCanBeBroken(t *testing.T) {
	whole := parse(t, repository)
	tried := map[string]bool{}
	for _, e := range edits() {
		tried[e.rule] = true
		t.Run(e.rule+"/"+e.name, func(t *testing.T) {
			b, err := Parse(e.apply(t, whole))
			if err != nil {
				t.Fatal(err)
			}
			rules := Rules()
			at := slices.IndexFunc(rules, func(r Rule) bool { return r.Name == e.rule })
			if at < 0 {
				t.Fatalf("there is no rule %s", e.rule)
			}
			for _, rule := range rules { // the others can be asked, too
				rule.Check(b)
			}
			got := strings.Join(rules[at].Check(b), "\n")
			if !strings.Contains(got, e.want) || got == "" {
				t.Errorf("it reports %q, want %q", got, e.want)
			}
		})
	}
	for _, rule := range Rules() {
		if !tried[rule.Name] {
			t.Errorf("nothing here breaks the rule %s", rule.Name)
		}
	}
}

// The list in the documentation is that of the rules.
func TestRulesAreDocumented(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(repository, "docs", "olm.md"))
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 4 && strings.HasPrefix(cells[1], " `") {
			documented = append(documented, strings.Trim(cells[1], " `"))
		}
	}
	var rules []string
	for _, rule := range Rules() {
		rules = append(rules, rule.Name)
	}
	if !slices.Equal(documented, rules) {
		t.Errorf("docs/olm.md lists\n%s\nand there are\n%s", strings.Join(documented, "\n"), strings.Join(rules, "\n"))
	}
}
