package output

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func on(t *testing.T, screen Screen, fill func(*Lines)) string {
	t.Helper()
	var out bytes.Buffer
	screen.Writer = &out
	l := &Lines{}
	fill(l)
	if err := l.Write(screen); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestWrapping(t *testing.T) {
	fill := func(l *Lines) {
		l.Linef("PROBLEM of many words that do not fit")
		l.Linef("  remedy: read the documentation, all of it")
		l.Linef("NAME\tADDRESSES\tTYPE")
		l.Linef("%s\t%s\t%s", "web", "10.96.0.1, 10.96.0.2, 10.96.0.3", "ClusterIP")
		l.Linef("%s\t%s\t%s", "db", "10.96.0.4", "ClusterIP")
		l.Linef("short")
	}
	const want = `PROBLEM of many words that do
  not fit
  remedy: read the
    documentation, all of it
NAME   ADDRESSES     TYPE
web    10.96.0.1,    ClusterIP
       10.96.0.2,
       10.96.0.3
db     10.96.0.4     ClusterIP
short
`
	if got := on(t, Screen{Width: 30}, fill); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := on(t, Screen{}, fill); strings.Count(got, "\n") != 6 {
		t.Errorf("without a terminal:\n%s", got)
	}
}

// TestWordsThatDoNotFit: nothing is wider than the terminal or lost, and wrapping ends.
func TestWordsThatDoNotFit(t *testing.T) {
	for width := 1; width < 60; width++ {
		got := on(t, Screen{Width: width}, func(l *Lines) {
			l.Linef("    %s", strings.Repeat("x", 50))
			l.Linef("%s\t%s", strings.Repeat("é", 40), strings.Repeat("y", 40))
		})
		for line := range strings.Lines(got) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width && width > 10 {
				t.Errorf("a line of %d at width %d: %q", n, width, line)
			}
		}
		if strings.Count(got, "x") != 50 || strings.Count(got, "é") != 40 || strings.Count(got, "y") != 40 {
			t.Errorf("at width %d something is lost: %q", width, got)
		}
	}
}

func TestColor(t *testing.T) {
	fill := func(l *Lines) {
		l.Heading("PROBLEM Failed of node node-1")
		l.Linef("  a message, PROBLEM")
		l.Linef("  remedy: fix it")
		l.Heading("NOTES")
		l.Linef("  \x1b[31mnot from here")
	}
	const want = "\x1b[1;31mPROBLEM Failed of node node-1\x1b[0m\n  a message, PROBLEM\n  \x1b[36mremedy:\x1b[0m fix it\n\n\x1b[1mNOTES\x1b[0m\n  \\x1b[31mnot from here\n"
	if got := on(t, Screen{Color: true}, fill); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := on(t, Screen{}, fill); strings.Contains(got, "\x1b") {
		t.Errorf("without color: %q", got)
	}
}
