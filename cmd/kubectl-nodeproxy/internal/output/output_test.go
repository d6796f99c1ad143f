package output

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode"
)

// hostile is what an attacker may write into an object: colors, the terminal's title, a
// second column and line, an 8-bit escape, and text from right to left.
const hostile = "\x1b[31mred\x1b]0;title\a \r\u009b2J\x7f\u202eleft"

// textReport is a report with one text.
type textReport struct{ Text string }

// Table prints it in human-readable form.
func (s textReport) Table(w io.Writer) error {
	l := &Lines{}
	l.Heading(s.Text)
	l.Linef("first\t%s", s.Text+"\n\tforged")
	l.Linef("a longer one\tend")
	return l.Write(w)
}

// TestHostile: texts of objects cannot control the terminal, and are shown completely.
func TestHostile(t *testing.T) {
	t.Parallel()
	const quoted = `\x1b[31mred\x1b]0;title\a \r\u009b2J\x7f\u202eleft`
	for format, want := range map[Format]string{
		Table: quoted + "\nfirst          " + quoted + "  forged\na longer one   end\n",
		JSON:  `"\u001b[31mred\u001b]0;title\u0007 \r\u009b2J\u007f` + "\u202eleft\"",
		YAML:  `"\e[31mred\e]0;title\a \r\x9B2J\x7F` + "\u202eleft\"",
	} {
		var out strings.Builder
		if err := Print(&out, format, textReport{hostile}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s: printed %q, want %q", format, out.String(), want)
		}
		for _, r := range out.String() {
			if unicode.IsControl(r) && r != '\n' {
				t.Errorf("%s: %U is printed", format, r)
			}
		}
	}
}

// TestPlain: texts without control characters are not changed.
func TestPlain(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "plain", "é 日本 😀 \u00a0", "a\tb\nc"} {
		if got := Printable(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
		if got := string(escaped([]byte(fmt.Sprintf("%q", text)))); got != fmt.Sprintf("%q", text) {
			t.Errorf("%q became %s", text, got)
		}
	}
}
