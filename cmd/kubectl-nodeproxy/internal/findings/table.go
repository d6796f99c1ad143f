package findings

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodeproxy-io/nodeproxy/api/text"
	"github.com/nodeproxy-io/nodeproxy/cmd/kubectl-nodeproxy/internal/output"
)

const (
	// maxConsequences is how many consequences of a finding are printed.
	maxConsequences = 5
	// maxMessage and maxConsequence limit the printed text of a finding and of a consequence.
	maxMessage, maxConsequence = 600, 200
)

// Where returns what the finding affects, such as " of Service shop/web, node node-1".
func (f *Finding) Where() string {
	var parts []string
	if f.Service != "" {
		parts = append(parts, "Service "+f.Service)
	}
	if f.Policy != "" {
		parts = append(parts, f.Policy)
	}
	switch {
	case len(f.Nodes) == 1:
		parts = append(parts, "node "+f.Nodes[0])
	case len(f.Nodes) > 1:
		parts = append(parts, "nodes "+Some(f.Nodes))
	}
	if len(parts) == 0 {
		return ""
	}
	return " of " + strings.Join(parts, ", ")
}

// Print prints a finding with its remedy and consequences.
func (f *Finding) Print(l *output.Lines, now time.Time) {
	heading := strings.ToUpper(string(f.Severity)) + " " + f.Reason + f.Where()
	if !f.Since.IsZero() {
		heading += fmt.Sprintf(" since %s (%s)", f.Since.UTC().Format(time.RFC3339), output.Age(now, f.Since.Time))
	}
	l.Heading(heading)
	l.Linef("  %s", l.Clip(f.Message, maxMessage))
	l.Linef("  remedy: %s", f.Remedy)
	PrintConsequences(l, f.Consequences)
}

// PrintConsequences prints the first of the consequences of a finding.
func PrintConsequences(l *output.Lines, of []Finding) {
	if len(of) == 0 {
		return
	}
	l.Linef("  consequences:")
	all := flat(of)
	for i := range all {
		if i == maxConsequences && len(all) > maxConsequences+1 && !l.Full {
			l.Linef("  - and %d more; -o wide prints all", len(all)-i)
			break
		}
		l.Linef("  - %s%s: %s", all[i].Reason, all[i].Where(), l.Clip(all[i].Message, maxConsequence))
	}
}

// PrintSkipped prints the checks that could not run. Checks with the same message share
// a line.
func PrintSkipped(l *output.Lines, skipped []SkippedCheck) {
	if len(skipped) == 0 {
		return
	}
	var messages []string
	skippedChecks := map[string][]string{}
	for _, s := range skipped {
		if !slices.Contains(messages, s.Message) {
			messages = append(messages, s.Message)
		}
		skippedChecks[s.Message] = append(skippedChecks[s.Message], string(s.Check))
	}
	l.Heading("SKIPPED CHECKS")
	for _, message := range messages {
		l.Linef("  %s: %s", strings.Join(skippedChecks[message], ", "), message)
	}
}

// PrintNotes prints notes.
func PrintNotes(l *output.Lines, notes []string) {
	if len(notes) == 0 {
		return
	}
	l.Heading("NOTES")
	for _, note := range notes {
		l.Linef("  %s", l.Clip(note, maxMessage))
	}
}

// Some names the first few of many.
func Some[T any](all []T) string { return text.Some(all, 5) }
