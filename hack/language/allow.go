package main

import (
	"fmt"
	"strings"
)

// exception is a line of allow.txt.
type exception struct {
	line int
	// path is a file, a directory that ends with a slash, or * for all.
	path string
	// phrase is the name of a rule, or * for all.
	phrase string
	reason string
	used   bool
}

func (e *exception) covers(f finding) bool {
	return (e.path == "*" || e.path == f.file || strings.HasSuffix(e.path, "/") && strings.HasPrefix(f.file, e.path)) &&
		(e.phrase == "*" || e.phrase == f.rule.name)
}

// exceptions reads lines of the form "path | phrase | reason". Lines that begin with # are
// comments.
func exceptions(content string, all []rule) ([]*exception, error) {
	known := map[string]bool{"*": true}
	for _, r := range all {
		known[r.name] = true
	}
	var list []*exception
	for i, line := range strings.Split(content, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Split(line, "|")
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d is not \"path | phrase | reason\": %q", i+1, line)
		}
		e := &exception{
			line: i + 1, path: strings.TrimSpace(fields[0]),
			phrase: strings.TrimSpace(fields[1]), reason: strings.TrimSpace(fields[2]),
		}
		switch {
		case e.path == "" || e.reason == "":
			return nil, fmt.Errorf("line %d lacks a path or a reason: %q", e.line, line)
		case !known[e.phrase]:
			return nil, fmt.Errorf("line %d names the unknown phrase %q", e.line, e.phrase)
		case e.path == "*" && e.phrase == "*":
			return nil, fmt.Errorf("line %d allows everything", e.line)
		}
		list = append(list, e)
	}
	return list, nil
}

// remaining returns the findings that no exception covers, and marks the exceptions that
// cover one.
func remaining(found []finding, list []*exception) []finding {
	var left []finding
	for _, f := range found {
		covered := false
		for _, e := range list {
			if e.covers(f) {
				covered, e.used = true, true
			}
		}
		if !covered {
			left = append(left, f)
		}
	}
	return left
}
