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

// session is one call of go test, and the calls that repeat its failed tests.
type session struct {
	out      io.Writer
	goTest   func(ctx context.Context, args []string, read func(io.Reader) error) error
	show     string
	again    string // the packages whose failed tests are repeated, by the beginning of their path; empty: none
	subtests bool
	budget   int // how many tests may be repeated

	records records
}

// run reports whether all tests passed, the repeated ones included.
func (s *session) run(ctx context.Context, flags, packages []string) (passed bool, err error) {
	first, err := s.once(ctx, append(slices.Clone(flags), packages...))
	s.records = first.records
	if err != nil {
		return false, err
	}
	passed = s.allRan(flags)
	if !first.failed {
		return passed, nil
	}
	if len(first.failures) == 0 {
		s.records = append(s.records, record{
			Package: "go test " + strings.Join(flags, " "),
			Failed:  []outcome{{Verdict: "see above"}},
		})
		return false, nil
	}
	failed := first.records.retried() // parts, by the tests themselves
	for _, f := range first.failures {
		failed += len(f.names())
	}
	for _, f := range first.failures {
		r := s.recordOf(f.pkg)
		switch {
		case s.again == "" || !strings.HasPrefix(short(f.pkg), s.again) || f.final:
			r.fail(f, "failed. It printed:")
		case f.broken:
			r.fail(f, "")
		case failed > s.budget:
			// A repetition could no longer make the run pass.
			r.fail(f, fmt.Sprintf("failed, and is not repeated, because more than %d tests failed. It printed:", maxRetried))
		default:
			if err := s.repeat(ctx, flags, f, r); err != nil {
				return false, err
			}
		}
		passed = passed && len(r.Failed) == 0
	}
	return passed, nil
}

// allRan reports whether at least one test ran in each package. Flags that choose tests may
// leave a package without.
func (s *session) allRan(flags []string) bool {
	for _, flag := range flags {
		if name := strings.TrimLeft(flag, "-"); strings.HasPrefix(name, "run") || strings.HasPrefix(name, "fuzz") {
			return true
		}
	}
	all := true
	for i := range s.records {
		if r := &s.records[i]; r.Tests == 0 && len(r.Skipped) == 0 && r.passed {
			r.Failed = append(r.Failed, outcome{Verdict: "passed, but no test ran"})
			all = false
		}
	}
	return all
}

// repeat runs the failed tests of a package once more.
func (s *session) repeat(ctx context.Context, flags []string, f failure, r *record) error {
	for _, name := range f.names() {
		fmt.Fprintf(s.out, "AGAIN %s %s failed; running it once more\n", short(f.pkg), name)
	}
	// If a flag is given twice, the last one counts.
	second, err := s.once(ctx, append(slices.Clone(flags), "-count", "1", "-run", pattern(f.tests, s.subtests), f.pkg))
	if err != nil {
		return err
	}
	for _, again := range second.records {
		r.Wall += again.Wall
		r.Retried = append(r.Retried, again.Retried...)
	}
	switch {
	case second.failed:
		r.fail(f, "failed twice. The first time it printed:")
	case slices.ContainsFunc(f.names(), func(name string) bool { return !second.passed[name] }):
		r.fail(f, "failed, and did not run when it was repeated. It printed:")
	default:
		r.Retried = append(r.Retried, f.outcomes("failed, then passed. The first time it printed:")...)
		for _, name := range f.names() {
			fmt.Fprintf(s.out, "RETRIED %s %s: failed, then passed\n", short(f.pkg), name)
		}
	}
	return nil
}

// once runs go test and collects its results.
func (s *session) once(ctx context.Context, args []string) (*report, error) {
	r := newReport(s.out)
	r.show = s.show
	err := s.goTest(ctx, args, r.read)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		r.failed, err = true, nil // go test has printed why
	}
	return r, err
}

func (s *session) recordOf(pkg string) *record {
	return &s.records[slices.IndexFunc(s.records, func(r record) bool { return r.Package == short(pkg) })]
}

func (r *record) fail(f failure, verdict string) {
	r.Failed = append(r.Failed, f.outcomes(verdict)...)
}

func (f failure) outcomes(verdict string) []outcome {
	if f.broken {
		return []outcome{{Verdict: "not all of its tests ran. It printed:", Printed: f.printed}}
	}
	var out []outcome
	for _, test := range f.tests {
		printed := test.printed
		for _, name := range test.leaves() {
			out = append(out, outcome{Test: name, Verdict: verdict, Printed: printed})
			printed = nil // the first failure has the whole output
		}
	}
	return out
}

// names returns the failed tests, without the parents of failed subtests.
func (f failure) names() []string {
	var out []string
	for _, test := range f.tests {
		out = append(out, test.leaves()...)
	}
	return out
}
