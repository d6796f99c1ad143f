package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

func main() {
	ok, err := dispatch(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func dispatch(ctx context.Context, args []string) (passed bool, err error) {
	if len(args) == 0 {
		return false, errors.New("missing command: run, command or close")
	}
	command, args := args[0], args[1:]
	flags := flag.NewFlagSet(command, flag.ExitOnError)
	switch command {
	case "run":
		return runTests(ctx, flags, args)
	case "command":
		return runProgram(ctx, flags, args)
	case "close":
		return closeRun(flags, args)
	case "measure":
		return measure(args)
	default:
		return false, fmt.Errorf("unknown command %q: run, command or close", command)
	}
}

func runTests(ctx context.Context, flags *flag.FlagSet, args []string) (passed bool, err error) {
	s := session{out: os.Stdout}
	file := flags.String("records", "", "`file` to which a record of each package is appended")
	dir := flags.String("C", "", "run go test in this `directory`")
	flags.StringVar(&s.show, "show", "", "print lines of output that begin with this `text` at once; empty: none")
	flags.StringVar(&s.again, "again", "", "run failed tests of packages whose path begins with this `text` once more, alone; those that pass then count as passed; empty: none")
	flags.BoolVar(&s.subtests, "subtests", false, "with -again: if only subtests of a test failed, repeat only those")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	goFlags, packages := cut(flags.Args())
	records, err := readRecords(*file)
	if err != nil {
		return false, err
	}
	s.budget = max(0, maxRetried-records.retried())
	command, err := newGoTest(*dir, filepath.Dir(*file))
	if err != nil {
		return false, err
	}
	s.goTest = command.run
	passed, err = s.run(ctx, goFlags, packages)
	return passed, errors.Join(err, command.addCPU(s.records), s.records.appendTo(*file))
}

func runProgram(ctx context.Context, flags *flag.FlagSet, args []string) (passed bool, err error) {
	file := flags.String("records", "", "`file` to which the record is appended")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	name, program := cut(flags.Args())
	if len(name) != 1 || len(program) == 0 {
		return false, errors.New("usage: testreport command [flags] NAME -- program arguments")
	}
	r := timed(ctx, name[0], program)
	return len(r.Failed) == 0, records{r}.appendTo(*file)
}

func closeRun(flags *flag.FlagSet, args []string) (passed bool, err error) {
	c := closing{out: os.Stdout}
	file := flags.String("records", "", "`file` with the records of the run")
	list := flags.String("skips", "", "`file` with the tests that may be skipped; empty: all may be")
	flags.BoolVar(&c.complete, "complete", false, "fail if a test of -skips is not in a package that was tested, or the package is not there")
	flags.DurationVar(&c.wall, "wall", 0, "how long the whole run took")
	flags.DurationVar(&c.user, "user", 0, "the CPU time of the whole run in user mode, compiling included")
	flags.DurationVar(&c.system, "system", 0, "the CPU time of the whole run in the kernel")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	if c.records, err = readRecords(*file); err != nil {
		return false, err
	}
	if *list != "" {
		if c.skips, err = readSkips(*list); err != nil {
			return false, err
		}
	}
	return c.print(), nil
}

// cut splits arguments at the first "--", which flag.Parse leaves in place after a first
// argument that is not a flag.
func cut(args []string) (before, after []string) {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i], args[i+1:]
	}
	return args, nil
}
