// Command testreport runs go test and shows one line for each package, the
// output of failed tests, and nothing of tests that passed but lines that begin
// with a given text, as they come:
//
//	testreport [flags] -- [flags of go test] -- packages
//
// What was left out, and why, it adds to a file, and to another what failed, with
// the reason, so that both can be told at the end of all tests. With -again
// failed tests are run once more, alone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	s := session{out: os.Stdout, goTest: goTest}
	var leftOut, summary string
	flag.StringVar(&leftOut, "left-out", "", "`file` to which a line for each skipped test is added")
	flag.StringVar(&summary, "summary", "", "`file` to which is added what failed, or was run twice, and why")
	flag.StringVar(&s.show, "show", "", "lines of output that begin with this `text` are shown at once; empty: none")
	flag.BoolVar(&s.again, "again", false, "run failed tests once more, alone; those that pass then count as passed")
	flag.BoolVar(&s.subtests, "subtests", false, "with -again: where a test failed by its subtests alone, run only those again")
	flag.Parse()

	flags, packages := flag.Args(), []string(nil)
	if i := slices.Index(flags, "--"); i >= 0 {
		flags, packages = flags[:i], flags[i+1:]
	}
	passed, err := s.run(context.Background(), flags, packages)
	err = errors.Join(err, add(leftOut, s.leftOut), add(summary, s.summary))
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !passed {
		os.Exit(1)
	}
}

// goTest runs go test -json and gives its output to read.
func goTest(ctx context.Context, args []string, read func(io.Reader) error) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := read(out); err != nil {
		_ = cmd.Process.Kill()
		return errors.Join(fmt.Errorf("read what go test says: %w", err), cmd.Wait())
	}
	return cmd.Wait()
}

// add adds lines to a file.
func add(path string, lines []string) error {
	if path == "" || len(lines) == 0 {
		return nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, strings.Join(lines, "\n"))
	return errors.Join(err, file.Close())
}
