package main

import (
	"regexp"
	"strings"
)

// rule is a phrase that is not used, and what to write instead.
type rule struct {
	// name identifies the phrase in allow.txt.
	name    string
	instead string
	// text matches it in prose, even over the end of a comment's line.
	text *regexp.Regexp
	// words matches it in an identifier split into lower-case words.
	words *regexp.Regexp
}

// phrases are wrong in every context: a word such as "hold" also has good uses, which no
// pattern recognizes. Each phrase is a regular expression in which a space is any white space.
var phrases = []struct{ name, phrase, instead string }{
	{"tell of", `(tells?|told|telling) of`, "report, show, indicate"},
	{"for people", `for people`, "human-readable"},
	{"somebody", `somebody|someone else's`, "name the actor: user, administrator, another program"},
	{"nobody", `nobody`, "name the actor: no user, no agent, no program"},
	{"whoever", `whoever`, "name the actor"},
	{"sign of life", `signs? of life`, "heartbeat"},
	{"last good set", `last good sets?`, "checkpoint"},
	{"mend", `mend(s|ed|ing)?`, "fix, repair"},
	{"holds what", `(holds?|held) what`, "has the desired state; actual state"},
	{"is wanted", `(is|as|are|was|were|be) wanted|wanted (state|rules)`, "desired"},
	{"go by", `goes by|go by`, "use, follow"},
	{"in force", `in force`, "applied"},
	{"at the begin", `(at|in) the begin`, "at startup, initially"},
	{"lingering", `lingering`, "cleanup pending"},
	{"lost turn", `(lost|lose|loses|take|takes|took) (the|its|one's|my) turn`, "ownership: acquire, own, lose"},
	{"good to know", `good to know`, "NOTES"},
	{"not well", `not well`, "PROBLEMS"},
	{"not looked at", `not looked at`, "SKIPPED CHECKS"},
	{"spared", `spared`, "optional, unavailable"},
	{"undone", `undone`, "reverted, modified externally"},
}

// rules compiles the phrases.
func rules() []rule {
	all := make([]rule, 0, len(phrases))
	for _, p := range phrases {
		// A continued line begins with the mark of a comment or quotation.
		gap := strings.ReplaceAll(p.phrase, " ", `[ \t]*(?:[ \t]|\r?\n[ \t]*(?://+|#+|>|\*)?)[ \t]*`)
		all = append(all, rule{
			name: p.name, instead: p.instead,
			text:  regexp.MustCompile(`(?i)\b(?:` + gap + `)\b`),
			words: regexp.MustCompile(`\b(?:` + p.phrase + `)\b`),
		})
	}
	return all
}
