package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// session is one call of go test, and the calls that repeat what failed in it.
type session struct {
	out      io.Writer
	goTest   func(ctx context.Context, args []string, read func(io.Reader) error) error
	show     string
	again    bool
	subtests bool

	leftOut []string
	summary []string
}

// run reports whether all tests have passed, be it at the second time.
func (s *session) run(ctx context.Context, flags, packages []string) (passed bool, err error) {
	first, err := s.once(ctx, append(slices.Clone(flags), packages...))
	if err != nil || !first.failed {
		return err == nil, err
	}
	if len(first.failures) == 0 {
		s.summary = append(s.summary, fmt.Sprintf("FAIL    go test %s: see above", strings.Join(flags, " ")))
		return false, nil
	}
	passed = true
	for _, f := range first.failures {
		if !s.again || f.broken || f.final {
			passed = false
			s.summary = append(s.summary, tell("FAIL   ", f, "It said:")...)
			continue
		}
		ok, err := s.repeat(ctx, flags, f)
		if err != nil {
			return false, err
		}
		passed = passed && ok
	}
	return passed, nil
}

// repeat runs the failed tests of a package once more.
func (s *session) repeat(ctx context.Context, flags []string, f failure) (passed bool, err error) {
	for _, test := range f.tests {
		fmt.Fprintf(s.out, "AGAIN %s %s has failed; it is run once more, alone\n", short(f.pkg), test.name)
	}
	// Of a flag that is given twice the last one counts.
	second, err := s.once(ctx, append(slices.Clone(flags), "-count", "1", "-run", pattern(f.tests, s.subtests), f.pkg))
	if err != nil {
		return false, err
	}
	if second.failed {
		s.summary = append(s.summary, tell("FAIL   ", f, "It failed twice. The first time it said:")...)
		return false, nil
	}
	s.summary = append(s.summary, tell("RETRIED", f, "failed, then passed. The first time it said:")...)
	for _, test := range f.tests {
		fmt.Fprintf(s.out, "RETRIED %s %s: failed, then passed\n", short(f.pkg), test.name)
	}
	return true, nil
}

// once runs go test and collects what it says.
func (s *session) once(ctx context.Context, args []string) (*report, error) {
	r := newReport(s.out)
	r.show = s.show
	err := s.goTest(ctx, args, r.read)
	s.leftOut = append(s.leftOut, r.leftOut...)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		r.failed, err = true, nil // go test has said why
	}
	return r, err
}

// tell is for the end of all tests: each test with what it said.
func tell(result string, f failure, verdict string) []string {
	if f.broken {
		return append([]string{fmt.Sprintf("%s %s, not all of its tests have run. It said:", result, short(f.pkg))}, indent(f.said)...)
	}
	var lines []string
	for _, test := range f.tests {
		lines = append(lines, fmt.Sprintf("%s %s %s: %s", result, short(f.pkg), test.name, verdict))
		lines = append(lines, indent(test.said)...)
	}
	return lines
}

// longest is how many lines of a test are told at the end: the first and the last
// ones, as some say why they failed and then what else there is to know.
const longest = 24

func indent(lines []string) []string {
	var out []string
	for i, line := range lines {
		switch {
		case len(lines) <= longest || i < longest/2 || i >= len(lines)-longest/2:
			out = append(out, "        "+line)
		case i == longest/2:
			out = append(out, "        …")
		}
	}
	return out
}
