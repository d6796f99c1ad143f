package messages

import (
	"regexp"
	"testing"
)

// MaxSentences is how many sentences a message has at most: what is wrong, and what to do.
const MaxSentences = 2

var (
	sentenceEnd = regexp.MustCompile(`\.( [A-Z]|$)`)
	capital     = regexp.MustCompile(`^[A-Z0-9]`)
	// faults are what no message contains.
	faults = map[string]*regexp.Regexp{
		"a plural after 1":     regexp.MustCompile(`(^|[^.\d])1 (more |other )?(Services|Nodes|nodes|pods|objects|policies|endpoints)\b`),
		"a verb in the plural": regexp.MustCompile(`\b1 (Service|Node|node|pod|object|policy|endpoint) (have|are|retain|wait)\b`),
		"several lines":        regexp.MustCompile(`\n`),
		"an empty clause":      regexp.MustCompile(`; *[;.]`),
		"a space before %":     regexp.MustCompile(`\d %`),
	}
)

// Check fails the test if a message has more than two sentences, does not begin with a capital
// letter or a number, does not end with a full stop or has a mistake in a number. An empty one
// is fine.
func Check(t testing.TB, message string) {
	t.Helper()
	if message == "" {
		return
	}
	if !capital.MatchString(message) {
		t.Errorf("the message does not begin with a capital letter or a number: %s", message)
	}
	if message[len(message)-1] != '.' {
		t.Errorf("the message does not end with a full stop: %s", message)
	}
	if n := len(sentenceEnd.FindAllString(message, -1)); n > MaxSentences {
		t.Errorf("the message has %d sentences, more than %d: %s", n, MaxSentences, message)
	}
	for what, fault := range faults {
		if fault.MatchString(message) {
			t.Errorf("the message has %s: %s", what, message)
		}
	}
}
