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
	{"tell", `tells?|told|telling`, "report, show, indicate; distinguish"},
	{"for people", `for people`, "human-readable"},
	{"somebody", `somebody|someone else's`, "name the actor: user, administrator, another program"},
	{"nobody", `nobody`, "name the actor: no user, no agent, no program"},
	{"whoever", `whoever`, "name the actor"},
	{"last good set", `last good sets?`, "checkpoint"},
	{"mend", `mend(s|ed|ing)?`, "fix, repair"},
	{"holds what", `(holds?|held) what`, "has the desired state; actual state"},
	{"wanted", `wanted`, "desired, expected, intended"},
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
	{"folder", `folders?`, "directory"},
	{"keeper", `keepers?`, "by meaning: checkpoint writer, lease renewer"},
	{"foreign", `foreign`, "unmanaged, of other programs; unknown format"},
	{"rights", `rights`, "permissions"},
	{"retire", `retir(e|es|ed|ing|ement|ements)`, "clean up, cleanup pending; deprecated (by Kubernetes)"},
	{"member", `members?|memberships?`, "local endpoints; by meaning: field, element, entry"},
	{"figure", `figures?`, "metrics, counters, statistics, measurements"},
	{"the doctor", `the doctor|the tracer`, "doctor, trace"},
	{"news", `news`, "pending changes"},
	{"trouble", `troubles?`, "API errors, problems"},
	{"say", `says?|said|saying|sayings`, "report, show, state, explain, print"},
	{"refuse", `refus(e|es|ed|ing|al|als)`, "rejected (by the kernel), denied (by the API server), invalid"},
	{"sign", `signs?`, "detection, probe, evidence, indicator; heartbeat"},
	{"hand over", `(hand|hands|handed|handing) over|(go|goes|going|went) over to`, "take over, cut over"},
	{"at first", `at first`, "initially, at startup"},
	{"through", `(is|are) through`, "has finished"},
	{"stopped rollout", `rollouts? (has |have |is |are |was |were )?stop(s|ped)?|stopped rollouts?`, "halted"},
	{"look for", `look(s|ed|ing)? for (another|other) prox(y|ies)`, "check, detect, probe"},
	{"kernel holds", `(kernels?|nodes?) (holds?|held)`, "has"},
	{"absences", `absences|absent (ip )?famil(y|ies)`, "unavailable IP families"},
	{"British", `behaviours?|neighbours?|colours?|licences?|favours?`, "American spelling"},
	{"proxy shows", `prox(y|ies) (has |have |last |never )*(shows?|shown|showed)`, "is detected"},
	{"room of a rollout", `(budgets?|rollouts?) (has|have|needs?) room`, "budget"},
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
