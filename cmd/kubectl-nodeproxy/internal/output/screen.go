package output

import (
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Screen is where human-readable text goes.
type Screen struct {
	io.Writer
	// Width is how many columns there are; 0: lines are not wrapped, as in files and pipes.
	Width int
	// Color marks headings and remedies.
	Color bool
}

const (
	// columnGap is between two columns of a table.
	columnGap = 3
	// hanging is how much further the continuation of a line is indented.
	hanging = 2
)

// aligned returns lines whose cells, separated by tabs, are in columns, wrapped at a width.
func aligned(text string, width int) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for len(lines) > 0 {
		n := slices.IndexFunc(lines, func(line string) bool { return !strings.Contains(line, "\t") })
		switch {
		case n == 0:
			out.WriteString(wrapped(lines[0], width))
			n = 1
		case n < 0:
			n = len(lines)
			fallthrough
		default:
			out.WriteString(table(lines[:n], width))
		}
		lines = lines[n:]
	}
	return out.String()
}

// wrapped returns a line, broken between words. What follows is indented further.
func wrapped(line string, width int) string {
	line = strings.TrimRight(line, " ")
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line + "\n"
	}
	rest := strings.TrimLeft(line, " ")
	indent := line[:len(line)-len(rest)]
	return indent + strings.Join(broken(rest, width-len(indent), hanging), "\n"+indent+strings.Repeat(" ", hanging)) + "\n"
}

// table returns the rows of a table. If it is too wide, the texts of its widest columns are wrapped.
func table(rows []string, width int) string {
	var natural strings.Builder
	writer := tabwriter.NewWriter(&natural, 0, 8, columnGap, ' ', 0)
	_, _ = io.WriteString(writer, strings.Join(rows, "\n")+"\n") // a Builder never fails
	_ = writer.Flush()
	fits := true
	var out strings.Builder
	for line := range strings.Lines(natural.String()) {
		line = strings.TrimRight(line, " \n")
		fits = fits && (width <= 0 || utf8.RuneCountInString(line) <= width)
		out.WriteString(line + "\n")
	}
	if fits {
		return out.String()
	}
	var cells [][]string
	var widths, words []int // of columns, and of the longest word in each
	for _, row := range rows {
		cells = append(cells, strings.Split(row, "\t"))
		for i, cell := range cells[len(cells)-1] {
			if i == len(widths) {
				widths, words = append(widths, 0), append(words, 1)
			}
			for word := range strings.FieldsSeq(cell) {
				words[i] = max(words[i], utf8.RuneCountInString(word))
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(strings.TrimRight(cell, " ")))
		}
	}
	narrow(widths, words, width)
	out.Reset()
	for _, row := range cells {
		out.WriteString(laidOut(row, widths))
	}
	return out.String()
}

// narrow reduces the widest columns until all fit: to the longest words, and further only if that does not suffice.
func narrow(widths, words []int, width int) {
	total := columnGap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest, breaks := -1, true
		for i := range widths {
			broken := widths[i] <= words[i]
			if widest < 0 || breaks && !broken || breaks == broken && widths[i] > widths[widest] {
				widest, breaks = i, broken
			}
		}
		if widths[widest] == 1 {
			return
		}
		widths[widest]--
	}
}

// laidOut returns a row of a table, of as many lines as its longest cell needs.
func laidOut(row []string, widths []int) string {
	columns := make([][]string, len(row))
	height := 0
	for i, cell := range row {
		rest := strings.TrimLeft(cell, " ")
		indent := cell[:len(cell)-len(rest)]
		for _, part := range broken(strings.TrimRight(rest, " "), widths[i]-len(indent), 0) {
			columns[i] = append(columns[i], indent+part)
		}
		height = max(height, len(columns[i]))
	}
	var out strings.Builder
	for n := range height {
		var line strings.Builder
		for i := range columns {
			part := ""
			if n < len(columns[i]) {
				part = columns[i][n]
			}
			line.WriteString(part + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(part)+columnGap))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return out.String()
}

// broken breaks a text into parts of at most width characters, all but the first hanging characters
// shorter: after a space, else inside a word that is longer than a part.
func broken(text string, width, hanging int) []string {
	var out []string
	rest := []rune(text)
	for len(rest) > width && width > hanging {
		at := width
		for at > 0 && rest[at] != ' ' {
			at--
		}
		if at == 0 {
			at = width
			if comma := strings.LastIndexAny(string(rest[:width]), ",/"); comma > 0 {
				at = utf8.RuneCountInString(string(rest[:width])[:comma+1])
			}
		}
		out = append(out, strings.TrimRight(string(rest[:at]), " "))
		if rest = []rune(strings.TrimLeft(string(rest[at:]), " ")); len(out) == 1 {
			width -= hanging
		}
	}
	return append(out, string(rest))
}

// What is marked, and how terminals do it.
var marks = []struct {
	line  *regexp.Regexp
	begin string
}{
	{regexp.MustCompile(`(?m)^(PROBLEM.*)$`), "\x1b[1;31m"},
	{regexp.MustCompile(`(?m)^(WARNING.*)$`), "\x1b[1;33m"},
	{regexp.MustCompile(`(?m)^([A-Z][A-Z ]+)$`), "\x1b[1m"}, // other headings
	{regexp.MustCompile(`(?m)^(Everything is healthy.*)$`), "\x1b[32m"},
	{regexp.MustCompile(`(?m)^\s+(remedy:)`), "\x1b[36m"},
}

const endMark = "\x1b[0m"

// colored marks headings, remedies and the verdict.
func colored(text string) string {
	for _, m := range marks {
		text = m.line.ReplaceAllStringFunc(text, func(line string) string {
			word := strings.TrimLeft(line, " ")
			return line[:len(line)-len(word)] + m.begin + word + endMark
		})
	}
	return text
}
