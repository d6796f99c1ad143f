package iptables

import (
	"bytes"
	"slices"
	"strings"
)

// chain is a planned chain of a Service, which is written as a whole.
type chain struct {
	name  string
	hash  uint64 // of its rules in order; 0 for an empty chain
	rules int
	text  string      // "-A NAME …" lines for iptables-restore; empty unless it is to be written
	port  int         // its index in the Service
	later *laterTexts // plans the text; nil: text is it
	inner bool        // has a part of what another chain of the Service leads to
}

// chainWriter collects the rules of one chain. All chains of a Service share one buffer.
type chainWriter struct {
	chain
	buffer *bytes.Buffer
}

// rule adds a rule of options, each with its values in one part.
func (w *chainWriter) rule(parts ...string) {
	w.buffer.WriteString("-A ")
	w.buffer.WriteString(w.name)
	var sum uint64
	for _, p := range parts {
		if p != "" {
			w.buffer.WriteByte(' ')
			w.buffer.WriteString(p)
			sum += optionsHash(p)
		}
	}
	w.buffer.WriteByte('\n')
	w.hash = chainRule(w.hash, mix(sum))
	w.rules++
}

func join(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), " ")
}

func commentMatch(text string) string {
	if strings.Contains(text, " ") {
		return `-m comment --comment "` + text + `"`
	}
	return "-m comment --comment " + text
}
