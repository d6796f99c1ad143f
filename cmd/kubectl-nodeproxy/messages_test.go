package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestStatesHaveCurrentMessages: the messages in recorded states, which the goldens quote, are those
// that agents and controller write now. Without this, a state would show a message of an earlier
// release for good.
func TestStatesHaveCurrentMessages(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(states, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	known := phrases(t, "agent", "api", "controllers")
	checked := 0
	for _, file := range files {
		var state any
		if err := yaml.Unmarshal(read(t, file), &state); err != nil {
			t.Fatal(err)
		}
		for _, message := range messages(state) {
			checked++
			if rest := unexplained(message, known); rest != "" {
				t.Errorf("%s: no source has %q, of the message %q", file, rest, message)
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d messages", checked)
	}
	for _, message := range []string{
		"the node that this policy selects has what it should have",
		"The desired state is programmed. Restrictions: it was told to write nothing here.",
	} {
		if unexplained(message, known) == "" {
			t.Errorf("a former message counts as current: %q", message)
		}
	}
}

// messages returns all texts with the key message.
func messages(value any) (out []string) {
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			out = append(out, messages(element)...)
		}
	case map[string]any:
		if text, is := value["message"].(string); is {
			out = append(out, text)
		}
		for _, element := range value {
			out = append(out, messages(element)...)
		}
	}
	return out
}

// words are several of a text that a format, a name or a number does not separate.
var words = regexp.MustCompile(`[A-Za-z]+(?: [a-z]+){4,}`)

// unexplained returns words of a message that are not in a phrase; empty: there are none.
func unexplained(message string, known []string) string {
	for _, phrase := range known {
		message = strings.ReplaceAll(message, phrase, "|")
	}
	return words.FindString(message)
}

// phrases returns the constant texts of the source below directories, without what formats insert,
// and what others write into messages. The longest come first.
func phrases(t *testing.T, directories ...string) []string {
	t.Helper()
	out := []string{syscall.ENOENT.Error(), "these rules are not for this cluster", "containers with unready status"}
	verb := regexp.MustCompile(`%[+#0-9.]*[a-zA-Z]`)
	for _, directory := range directories {
		err := filepath.WalkDir(filepath.Join("..", "..", directory), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if literal, is := node.(*ast.BasicLit); is && literal.Kind == token.STRING {
					if text, err := strconv.Unquote(literal.Value); err == nil {
						for _, phrase := range verb.Split(strings.ReplaceAll(text, "%%", "%"), -1) {
							out = append(out, strings.Trim(phrase, " .,:;()"))
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	out = slices.DeleteFunc(out, func(phrase string) bool { return strings.Count(phrase, " ") < 2 })
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(out)
}
