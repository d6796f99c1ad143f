// Command testreport reads what go test -json prints and shows one line for
// each package, the output of failed tests, and nothing of tests that passed.
// What was left out, and why, it adds to a file, so that it can be told at the
// end of all tests.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	file := flag.String("left-out", "", "file to which a line for each skipped test is added")
	flag.Parse()
	ok, err := run(os.Stdin, os.Stdout, *file)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer, file string) (ok bool, err error) {
	r := newReport(out)
	if err := r.read(in); err != nil {
		return false, err
	}
	if file != "" && len(r.leftOut) > 0 {
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return false, err
		}
		defer f.Close()
		if _, err := fmt.Fprintln(f, strings.Join(r.leftOut, "\n")); err != nil {
			return false, err
		}
	}
	return !r.failed, nil
}

// ginkgoLeftOut finds skipped specs in the summary of a Ginkgo suite, which
// passes as a test of Go.
var ginkgoLeftOut = regexp.MustCompile(`\b([1-9][0-9]*) Skipped`)

// event is a line of go test -json, see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

// report collects events.
type report struct {
	out      io.Writer
	packages map[string]*progress
	leftOut  []string
	failed   bool
}

// progress is what is known of a package whose tests still run.
type progress struct {
	output  map[string][]string // by test that has no result yet; "" is the package's own
	passed  int
	skipped int
}

func newReport(out io.Writer) *report {
	return &report{out: out, packages: map[string]*progress{}}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			// The go command itself has something to say, such as a bad flag.
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
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &progress{output: map[string][]string{}}
		r.packages[e.Package] = p
	}
	switch {
	case e.Action == "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
	case e.Test == "":
		r.endPackage(e, p)
	default:
		r.endTest(e, p)
	}
}

func (r *report) endTest(e event, p *progress) {
	switch e.Action {
	case "pass":
		p.passed++
		if m := ginkgoLeftOut.FindStringSubmatch(strings.Join(p.output[e.Test], "")); m != nil {
			r.leftOut = append(r.leftOut, fmt.Sprintf("  %s %s: %s of its specs", short(e.Package), e.Test, m[1]))
		}
	case "skip":
		p.skipped++
		r.leftOut = append(r.leftOut, fmt.Sprintf("  %s %s: %s", short(e.Package), e.Test, reason(p.output[e.Test])))
	case "fail":
		r.failed = true
		fmt.Fprint(r.out, strings.Join(p.output[e.Test], ""))
	default:
		return // a test that starts, pauses or goes on
	}
	delete(p.output, e.Test)
}

func (r *report) endPackage(e event, p *progress) {
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.out, "ok    %-40s %6.1f s  %d passed", short(e.Package), e.Elapsed, p.passed)
		if p.skipped > 0 {
			fmt.Fprintf(r.out, ", %d left out", p.skipped)
		}
		if strings.Contains(strings.Join(p.output[""], ""), "(cached)") {
			fmt.Fprint(r.out, " (nothing changed since it was run)")
		}
		fmt.Fprintln(r.out)
	case "fail":
		r.failed = true
		// A test without a result is one that was running at a panic or when
		// the time was up.
		for _, test := range slices.Sorted(maps.Keys(p.output)) {
			fmt.Fprint(r.out, strings.Join(p.output[test], ""))
		}
		fmt.Fprintf(r.out, "FAIL  %-40s %6.1f s\n", short(e.Package), e.Elapsed)
	}
}

// reason is what a skipped test said, without the lines of the test runner.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "=== ") || strings.HasPrefix(line, "--- ") {
			continue
		}
		if place, text, found := strings.Cut(line, ": "); found && strings.Contains(place, "_test.go:") {
			line = text
		}
		said = append(said, line)
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

// short is a package's path within the repository.
func short(path string) string {
	return strings.TrimPrefix(path, "github.com/nodeproxy-io/nodeproxy/")
}
