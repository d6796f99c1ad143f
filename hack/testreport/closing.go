package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// closing prints the end of a whole run.
type closing struct {
	out     io.Writer
	records records
	skips   skips // nil: any test may be skipped
	// complete means that all tests of the packages in records were to run.
	complete bool
	wall     time.Duration
	// The CPU time of the whole run.
	user, system time.Duration
}

// skips are the tests that may be skipped: the reason by "package test".
type skips map[string]string

// readSkips reads lines of the form "package test: reason". Empty lines and those that
// begin with # are comments.
func readSkips(path string) (skips, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	allowed := skips{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		test, reason, _ := strings.Cut(line, ": ")
		if len(strings.Fields(test)) != 2 || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s: %q is not of the form \"package test: reason\"", path, line)
		}
		allowed[test] = reason
	}
	return allowed, lines.Err()
}

// print reports whether the run passed.
func (c *closing) print() bool {
	passed := true
	c.table()
	for _, r := range c.records {
		for _, o := range r.Skipped {
			test := r.Package + " " + o.Test
			verdict := "SKIPPED"
			if _, listed := c.skips[test]; c.skips != nil && !listed {
				verdict, passed = "FAIL    may not be skipped:", false
			}
			fmt.Fprintf(c.out, "%s %s: %s\n", verdict, test, o.Verdict)
		}
	}
	if c.complete {
		for _, test := range c.stale() {
			fmt.Fprintf(c.out, "FAIL    is in the list of skips, but not there: %s\n", test)
			passed = false
		}
	}
	for _, r := range c.records {
		c.outcomes("RETRIED", r, r.Retried)
	}
	for _, r := range c.records {
		c.outcomes("FAIL   ", r, r.Failed)
		passed = passed && len(r.Failed) == 0
	}
	if n := c.records.retried(); n > maxRetried {
		fmt.Fprintf(c.out, "FAIL    %d tests passed only when repeated; at most %d may.\n", n, maxRetried)
		passed = false
	}
	if len(c.records) == 0 {
		fmt.Fprintln(c.out, "FAIL    no test ran.")
		passed = false
	}
	return passed
}

// stale returns the listed tests that are not there: those of packages that ran without them, or that
// do not exist. Whether a listed test is skipped depends on the machine, and so does whether a
// package runs.
func (c *closing) stale() []string {
	ran, tests := map[string]bool{}, map[string]bool{}
	for _, r := range c.records {
		ran[r.Package] = true
		for _, test := range r.Passed {
			tests[r.Package+" "+test] = true
		}
		for _, o := range slices.Concat(r.Skipped, r.Retried, r.Failed) {
			tests[r.Package+" "+o.Test] = true
		}
	}
	var stale []string
	for test := range c.skips {
		name, _, _ := strings.Cut(test, " ")
		if _, err := os.Stat(name); err != nil || ran[name] && !tests[test] {
			stale = append(stale, test)
		}
	}
	slices.Sort(stale)
	return stale
}

func (c *closing) table() {
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, wall, cpu time.Duration, tests, skipped, retried int) {
		fmt.Fprintf(w, "%s\t%.1f s\t%.1f s\t%d\t%d\t%d\t\n", name, wall.Seconds(), cpu.Seconds(), tests, skipped, retried)
	}
	longest := 0
	for _, r := range c.records {
		longest = max(longest, len(r.Package))
	}
	left := func(name string) string { return fmt.Sprintf("%-*s", longest, name) }
	fmt.Fprintf(w, "%s\tWALL\tCPU\tTESTS\tSKIPPED\tRETRIED\t\n", left("PACKAGE"))
	var sum record
	skipped := 0
	for _, r := range c.records {
		row(left(r.Package), r.Wall, r.CPU, r.Tests, len(r.Skipped), len(r.Retried))
		sum.CPU += r.CPU
		sum.Tests += r.Tests
		skipped += len(r.Skipped)
	}
	cpu := c.user + c.system
	if rest := cpu - sum.CPU; rest > 0 {
		fmt.Fprintf(w, "%s\t\t%.1f s\t\t\t\t\n", left("compiling"), rest.Seconds())
	}
	row(left("all"), c.wall, max(cpu, sum.CPU), sum.Tests, skipped, c.records.retried())
	_ = w.Flush()
}

func (c *closing) outcomes(result string, r record, outcomes []outcome) {
	for _, o := range outcomes {
		name := strings.TrimSpace(r.Package + " " + o.Test)
		fmt.Fprintf(c.out, "%s %s: %s\n", result, name, o.Verdict)
		for _, line := range shorten(o.Printed) {
			fmt.Fprintln(c.out, "        "+line)
		}
	}
}

// longest is the maximum number of a test's lines that are repeated at the end of a run.
const longest = 24

// ownLine matches a line that a test itself logged, not a program that it ran.
var ownLine = regexp.MustCompile(`^\s*[\w.-]+_test\.go:\d+: `)

// shorten drops lines in the middle, because some tests print the reason of a failure first,
// others last. Lines that the test itself logged are retained and come last.
func shorten(lines []string) []string {
	if len(lines) <= longest {
		return lines
	}
	var own, others []string
	for _, line := range lines {
		if ownLine.MatchString(line) {
			own = append(own, line)
		} else {
			others = append(others, line)
		}
	}
	return slices.Concat(middleOut(others, longest/2), middleOut(own, longest))
}

// middleOut returns the first and the last lines, at most so many.
func middleOut(lines []string, most int) []string {
	if len(lines) <= most {
		return lines
	}
	return slices.Concat(lines[:most/2], []string{"…"}, lines[len(lines)-most/2:])
}
