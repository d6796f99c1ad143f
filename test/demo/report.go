package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// errStopped ends the demo early, after a check without which the following
// ones prove nothing.
var errStopped = errors.New("the demo cannot go on after this failure")

// report prints checks as they are done and counts them.
type report struct {
	out    io.Writer
	over   func() bool // whether the user has interrupted the demo
	passed int
	failed int
}

func newReport(out io.Writer, over func() bool) *report { return &report{out: out, over: over} }

// section begins a group of checks.
func (r *report) section(title string) { fmt.Fprintf(r.out, "\n%s\n", title) }

// check runs one check and prints its result. The check returns what it saw, in
// a few words, or why it failed.
func (r *report) check(title string, f func() (saw string, err error)) bool {
	begin := time.Now()
	saw, err := f()
	took := duration(time.Since(begin))
	if err != nil && r.over() {
		return false // a check that is broken off proves nothing
	}
	if err != nil {
		r.failed++
		fmt.Fprintf(r.out, "  FAIL %7s  %s\n                %s\n", took, title, strings.ReplaceAll(err.Error(), "\n", "\n                "))
		return false
	}
	r.passed++
	if saw != "" {
		title = fmt.Sprintf("%-66s %s", title, saw)
	}
	fmt.Fprintf(r.out, "  OK   %7s  %s\n", took, title)
	return true
}

// need is check for what the rest depends on.
func (r *report) need(title string, f func() (saw string, err error)) error {
	if !r.check(title, f) {
		return errStopped
	}
	return nil
}

// show prints text that is not a check, such as objects.
func (r *report) show(text string) {
	fmt.Fprintln(r.out)
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		fmt.Fprint(r.out, "    ", line)
	}
	fmt.Fprintln(r.out)
}

// duration prints a time in three or four characters and a unit.
func duration(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
