package output

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodeproxy-io/nodeproxy/api/text"
)

// Lines collects the human-readable form of a report. Tabs separate cells; the columns of
// consecutive lines are aligned.
type Lines struct {
	// Full: nothing is left out.
	Full bool
	text strings.Builder
}

// Linef adds a line. String arguments stay in their cell.
func (l *Lines) Linef(format string, args ...any) {
	args = slices.Clone(args)
	for i, arg := range args {
		if text, ok := arg.(string); ok {
			args[i] = endsCell.Replace(text)
		}
	}
	fmt.Fprintf(&l.text, format+"\n", args...)
}

// endsCell replaces characters that would end a cell.
var endsCell = strings.NewReplacer("\n", " ", "\t", " ")

// Heading begins a new section.
func (l *Lines) Heading(text string) {
	if l.text.Len() > 0 {
		l.text.WriteString("\n")
	}
	l.text.WriteString(text + "\n")
}

// Write prints all lines, as the Screen that w may be can show them.
func (l *Lines) Write(w io.Writer) error {
	screen, _ := w.(Screen)
	text := aligned(Printable(l.text.String()), screen.Width)
	if screen.Color {
		text = colored(text)
	}
	_, err := io.WriteString(w, text)
	return err
}

// Clip shortens a text unless the report is Full, and takes line breaks out.
func (l *Lines) Clip(text string, most int) string {
	if l.Full {
		most = len(text) + 1
	}
	return Clip(text, most)
}

// Age returns how long ago something was, as kubectl prints it.
func Age(now, then time.Time) string {
	if then.IsZero() {
		return "unknown"
	}
	return duration.HumanDuration(max(0, now.Sub(then)))
}

// Clip shortens a text to so many characters, and takes line breaks out.
func Clip(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

// Join lists values, separated by commas.
func Join[T any](list []T) string { return text.Some(list, len(list)) }
