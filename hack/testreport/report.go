package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ginkgoSummary finds the last line of a Ginkgo suite, which go test takes for one test.
// Pending specs did not run either.
var ginkgoSummary = regexp.MustCompile(`\b([0-9]+) Passed \|.* ([0-9]+) Pending \| ([0-9]+) Skipped`)

// event is a line of go test -json, see go doc test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output, in place of Package
	Test       string
	Output     string
	Elapsed    float64
}

// report collects events.
type report struct {
	out      io.Writer
	show     string // the beginning of lines that are shown at once; empty: none
	packages map[string]*progress
	records  records
	passed   map[string]bool // by test; for a run of one package
	failed   bool
	failures []failure
}

// noSecondChance marks a failure that must never be retried, such as a lost connection:
// test/load prints it.
const noSecondChance = "lost connections are never retried"

// partRepeated begins what a test logs when it repeats a part of itself that has failed:
// test/load has it. This counts as a retried test.
const partRepeated = "failed, and is repeated: "

// failure is a package that failed.
type failure struct {
	pkg   string
	tests []failedTest // without their subtests
	// broken means that not all tests have run, for the reason in printed: the package does not
	// compile, a test panicked, or a timeout.
	broken bool
	// final means that a second attempt cannot disprove the failure, such as a data race.
	final   bool
	printed []string
}

// failedTest is a test that failed, with its failed subtests.
type failedTest struct {
	name     string
	subtests []string
	// own reports whether it printed something itself, beside its subtests.
	own     bool
	printed []string
}

// progress is the state of a package whose tests still run.
type progress struct {
	build   []string            // of the compiler
	output  map[string][]string // by test that has no result yet; "" is the package's own
	tests   int                 // that ran
	passed  []string
	skipped []outcome
	retried []outcome
	failed  []failedTest // with subtests, each by itself
	final   bool
	// others is the output of passed tests. It is shown only if a test failed without output,
	// because go test may have attributed that to another test.
	others []string
}

func newReport(out io.Writer) *report {
	return &report{out: out, packages: map[string]*progress{}, passed: map[string]bool{}}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			// A message of the go command itself, such as a bad flag.
			fmt.Fprintln(r.out, lines.Text())
			continue
		}
		r.add(e)
	}
	return lines.Err()
}

func (r *report) add(e event) {
	if e.Action == "build-output" {
		fmt.Fprint(r.out, e.Output)
		p := r.of(e.ImportPath)
		p.build = append(p.build, e.Output)
		return
	}
	p := r.of(e.Package)
	switch {
	case e.Action == "output":
		p.final = p.final || strings.Contains(e.Output, "WARNING: DATA RACE") || strings.Contains(e.Output, noSecondChance)
		if _, text, found := strings.Cut(e.Output, partRepeated); found {
			text = strings.TrimSpace(text)
			fmt.Fprintf(r.out, "RETRIED a part of %s %s: %s\n", short(e.Package), e.Test, text)
			p.retried = append(p.retried, outcome{Test: e.Test, Verdict: "a part failed, and was repeated. It first printed:", Printed: []string{text}})
		}
		if r.show != "" && strings.HasPrefix(e.Output, r.show) {
			fmt.Fprint(r.out, e.Output)
		} else {
			p.output[e.Test] = append(p.output[e.Test], e.Output)
		}
	case e.Test == "":
		r.endPackage(e, p)
	default:
		r.endTest(e, p)
	}
}

func (r *report) of(pkg string) *progress {
	// That of a test is named "path [path.test]" when it is built.
	pkg, _, _ = strings.Cut(pkg, " ")
	p := r.packages[pkg]
	if p == nil {
		p = &progress{output: map[string][]string{}}
		r.packages[pkg] = p
	}
	return p
}

func (r *report) endTest(e event, p *progress) {
	output := p.output[e.Test]
	switch e.Action {
	case "pass":
		p.tests++
		p.passed = append(p.passed, e.Test)
		r.passed[e.Test] = true
		p.others = append(p.others, output...)
		if m := ginkgoSummary.FindStringSubmatch(strings.Join(output, "")); m != nil {
			specs, _ := strconv.Atoi(m[1])
			p.tests += specs
			for i, what := range []string{"pending", "skipped"} {
				if n := m[2+i]; n != "0" {
					p.skipped = append(p.skipped, outcome{Test: e.Test, Verdict: n + " of its specs are " + what})
				}
			}
		}
	case "skip":
		p.skipped = append(p.skipped, outcome{Test: e.Test, Verdict: reason(output)})
	case "fail":
		p.tests++
		r.failed = true
		fmt.Fprint(r.out, strings.Join(output, ""))
		printed := printedLines(output)
		p.failed = append(p.failed, failedTest{name: e.Test, printed: printed, own: len(printed) > 0})
	default:
		return // a test that starts, pauses or continues
	}
	delete(p.output, e.Test)
}

func (r *report) endPackage(e event, p *progress) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.out, "ok    %-40s %6.1f s  %d passed", short(e.Package), e.Elapsed, p.tests)
		if len(p.skipped) > 0 {
			fmt.Fprintf(r.out, ", %d skipped", len(p.skipped))
		}
		fmt.Fprintln(r.out)
	case "fail":
		r.failed = true
		r.failures = append(r.failures, r.failPackage(e.Package, p))
		fmt.Fprintf(r.out, "FAIL  %-40s %6.1f s\n", short(e.Package), e.Elapsed)
	default:
		return // skip: it has no tests
	}
	r.records = append(r.records, record{
		Package: short(e.Package),
		Wall:    time.Duration(e.Elapsed * float64(time.Second)),
		Tests:   p.tests,
		Passed:  p.passed,
		Skipped: p.skipped,
		Retried: p.retried,
		passed:  e.Action == "pass",
	})
	p.output, p.others = map[string][]string{}, nil
}

// failPackage prints the rest of the output.
func (r *report) failPackage(pkg string, p *progress) failure {
	f := failure{pkg: pkg, tests: join(p.failed), final: p.final, printed: printedLines(p.build)}
	// A test without a result was running at a panic or timeout. The package prints FAIL once
	// it has run all tests.
	f.broken = len(f.tests) == 0 || !slices.Contains(p.output[""], "FAIL\n") || len(p.output) > 1
	for _, test := range slices.Sorted(maps.Keys(p.output)) {
		fmt.Fprint(r.out, strings.Join(p.output[test], ""))
		f.printed = append(f.printed, printedLines(p.output[test])...)
	}
	if f.broken {
		for _, test := range f.tests {
			f.printed = append(append([]string{test.name + ":"}, test.printed...), f.printed...)
		}
		return f
	}
	silent := slices.ContainsFunc(f.tests, func(t failedTest) bool { return len(t.printed) == 0 })
	if silent && len(p.others) > 0 {
		fmt.Fprintf(r.out, "A test failed without output; this is the output of the passed tests:\n%s", strings.Join(p.others, ""))
	}
	return f
}

// join adds subtests and their output to their tests.
func join(failed []failedTest) []failedTest {
	var out []failedTest
	for _, test := range failed {
		if !strings.Contains(test.name, "/") {
			out = append(out, test)
		}
	}
	for i := range out {
		var printed []string
		for _, sub := range failed {
			if !strings.HasPrefix(sub.name, out[i].name+"/") {
				continue
			}
			out[i].subtests = append(out[i].subtests, sub.name)
			if sub.own {
				printed = append(append(printed, strings.TrimPrefix(sub.name, out[i].name+"/")+":"), sub.printed...)
			}
		}
		out[i].printed = append(printed, out[i].printed...)
	}
	return out
}

// pattern is the -run of go test for failed tests. If subtests failed, it selects only these,
// unless the test itself has output, for example because it ended before its last subtest.
func pattern(tests []failedTest, subtests bool) string {
	var out []string
	for _, test := range tests {
		names := []string{test.name}
		if subtests && !test.own && len(test.subtests) > 0 {
			names = test.leaves()
		}
		for _, name := range names {
			parts := strings.Split(name, "/")
			for i, part := range parts {
				parts[i] = "^" + regexp.QuoteMeta(part) + "$"
			}
			out = append(out, strings.Join(parts, "/"))
		}
	}
	return strings.Join(out, "|")
}

// leaves returns the innermost failed subtests, or the test itself.
func (t failedTest) leaves() []string {
	if len(t.subtests) == 0 {
		return []string{t.name}
	}
	return slices.DeleteFunc(slices.Clone(t.subtests), func(name string) bool {
		return slices.ContainsFunc(t.subtests, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
}

// printedLines returns the lines of a test without those of the test runner.
func printedLines(output []string) []string {
	var printed []string
	for line := range strings.Lines(strings.Join(output, "")) {
		line = strings.TrimRight(line, "\n")
		bare := strings.TrimSpace(line)
		if bare == "" || bare == "FAIL" || strings.HasPrefix(bare, "FAIL\t") ||
			strings.HasPrefix(bare, "=== ") || strings.HasPrefix(bare, "--- ") {
			continue
		}
		printed = append(printed, strings.TrimPrefix(line, "    "))
	}
	return printed
}

// reason is the output of a skipped test, in one line.
func reason(output []string) string {
	var printed []string
	for _, line := range printedLines(output) {
		line = strings.TrimSpace(line)
		if place, text, found := strings.Cut(line, ": "); found && strings.Contains(place, "_test.go:") {
			line = text
		}
		printed = append(printed, line)
	}
	if len(printed) == 0 {
		return "no reason given"
	}
	return strings.Join(printed, " ")
}

// short is a package's path within the repository.
func short(path string) string {
	return strings.TrimPrefix(path, "github.com/nodeproxy-io/nodeproxy/")
}
