package wording

import (
	"slices"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
	"github.com/nodeproxy-io/nodeproxy/api/text"
)

// MaxExample bounds one example, in bytes.
const MaxExample = 256

// Examples returns the first examples of a list, each of bounded length.
func Examples(list []string) []string {
	list = slices.Clone(list[:min(len(list), dataplane.MaxExamples)])
	for i := range list {
		list[i] = text.Truncate(list[i], MaxExample)
	}
	return list
}

// OneLine joins the lines of joined errors, which have one for each family, and their sentences.
func OneLine(err error) string { return text.Clause(err.Error()) }

// OfError returns an error's text; empty: there is no error.
func OfError(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
