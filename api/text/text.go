package text

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of messages.
const (
	MaxEventNote     = 1000 // bytes; the API accepts 1024
	MaxStatusMessage = 1024 // bytes
	// MaxExamples is how many nodes or Services the status of a policy names, and MaxExampleMessage
	// the bytes of the message of each.
	MaxExamples       = 10
	MaxExampleMessage = 400
)

// Truncate shortens a text to a number of bytes without breaking a character, and replaces invalid UTF-8, which
// JSON cannot represent.
func Truncate(s string, bytes int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= bytes {
		return s
	}
	const mark = "..."
	cut := bytes - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}

// Sentence ends a text, which may quote another program, with one full stop.
func Sentence(s string) string { return strings.TrimSuffix(s, ".") + "." }

var (
	lineEnd = regexp.MustCompile(`\.?\n`)
	// sentenceEnd is the end of a sentence that another follows.
	sentenceEnd = regexp.MustCompile(`\.\s+([A-Z])`)
)

// Clause joins the lines and sentences of a text by another program, so that it can be part of a sentence.
func Clause(s string) string {
	s = lineEnd.ReplaceAllString(strings.TrimSuffix(strings.TrimSpace(s), "."), "; ")
	return sentenceEnd.ReplaceAllString(s, "; $1")
}

// FirstSentence returns that of a message, without its full stop: what is wrong, without what to do.
func FirstSentence(s string) string {
	if end := sentenceEnd.FindStringIndex(s); end != nil {
		return s[:end[0]]
	}
	return strings.TrimSuffix(s, ".")
}

// Capital begins an ASCII text with a capital letter.
func Capital(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// Some lists the first few of many, and counts the others.
func Some[T any](all []T, most int) string {
	var texts []string
	for _, one := range all[:min(len(all), most)] {
		texts = append(texts, fmt.Sprint(one))
	}
	text := strings.Join(texts, ", ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// Count counts something, as in "1 Service" or "2 Services".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// CountOf counts some of all, as in "0 of 1 Service" or "2 of 3 Services".
func CountOf(n, all int, what string) string {
	return fmt.Sprintf("%d of %s", n, Count(all, what))
}

// For returns the words about one thing, or about several.
func For(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// WinsBy returns the reason why a policy of one priority wins over one of another.
func WinsBy(priority, loser int32) string {
	text := fmt.Sprintf("priority %d", priority)
	if priority == loser {
		text += ", as this one: the lower name wins"
	}
	return text
}

// First lists the first three, and counts the others.
func First[T any](all []T, text func(T) string) string {
	const named = 3
	var texts []string
	for _, one := range all[:min(len(all), named)] {
		texts = append(texts, text(one))
	}
	if more := len(all) - named; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// Age prints a duration without units that are zero.
func Age(d time.Duration) string {
	const day = 24 * time.Hour
	if d >= 2*day && d%day == 0 {
		return fmt.Sprintf("%dd", d/day)
	}
	if d%time.Hour == 0 {
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return d.String()
}
