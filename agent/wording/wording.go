package wording

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// MaxExample bounds one example, in bytes.
const MaxExample = 256

// Clip shortens text to n bytes and replaces invalid UTF-8, which JSON cannot represent.
func Clip(text string, n int) string {
	if len(text) > n {
		text = text[:n-3] + "..."
	}
	return strings.ToValidUTF8(text, "?")
}

// Examples returns the first examples of a list, each of bounded length.
func Examples(list []string) []string {
	list = slices.Clone(list[:min(len(list), dataplane.MaxExamples)])
	for i := range list {
		list[i] = Clip(list[i], MaxExample)
	}
	return list
}

// Count counts something, as in "1 Service" or "2 Services".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

var (
	lineEnd = regexp.MustCompile(`\.?\n`)
	// sentenceEnd is the end of a sentence that another follows.
	sentenceEnd = regexp.MustCompile(`\.\s+([A-Z])`)
)

// Clause joins the lines and sentences of a text by others, so that it can be part of a sentence.
func Clause(text string) string {
	text = lineEnd.ReplaceAllString(strings.TrimSuffix(strings.TrimSpace(text), "."), "; ")
	return sentenceEnd.ReplaceAllString(text, "; $1")
}

// OneLine joins the lines of joined errors, which have one for each family, and their sentences.
func OneLine(err error) string { return Clause(err.Error()) }

// OfError returns an error's text; empty: there is no error.
func OfError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
