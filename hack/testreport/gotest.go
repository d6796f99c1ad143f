package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// goTestCommand runs go test with each test binary started by "testreport measure".
type goTestCommand struct {
	dir  string // of the module
	self string // this program
	file string // to which measure appends the CPU time of each test binary
}

// usage is a record of measure: the directory of a package and the CPU time of its tests.
type usage struct {
	Dir string
	CPU time.Duration
}

// newGoTest creates a file for the CPU times in the directory temp.
func newGoTest(dir, temp string) (*goTestCommand, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(temp, "testreport-cpu-")
	if err != nil {
		return nil, err
	}
	return &goTestCommand{dir: dir, self: self, file: file.Name()}, file.Close()
}

// run runs go test -json and passes its output to read.
func (c *goTestCommand) run(ctx context.Context, args []string, read func(io.Reader) error) error {
	wrapped := []string{"test", "-json", "-exec", fmt.Sprintf("%q measure %q", c.self, c.file)}
	cmd := exec.CommandContext(ctx, "go", append(wrapped, args...)...)
	cmd.Dir = c.dir
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
		return errors.Join(fmt.Errorf("read the output of go test: %w", err), cmd.Wait())
	}
	return cmd.Wait()
}

// addCPU adds the CPU times of measure to the records, and removes the file.
func (c *goTestCommand) addCPU(rs records) error {
	file, err := os.Open(c.file)
	if err != nil {
		return err
	}
	defer os.Remove(c.file)
	defer file.Close()
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	for decoder := json.NewDecoder(bufio.NewReader(file)); ; {
		var u usage
		if err := decoder.Decode(&u); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the CPU times of tests: %w", err)
		}
		name, err := filepath.Rel(root, u.Dir)
		if err != nil {
			return err
		}
		for i := range rs {
			if rs[i].Package == name {
				rs[i].CPU += u.CPU
			}
		}
	}
}

// measure runs a test binary and appends its CPU time, and that of the processes it waited
// for, to a file. It passes on signals, because go test ends a binary by them.
func measure(args []string) (passed bool, err error) {
	file, program := args[0], args[1:]
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Without this wrapper, go test could kill the binary itself.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return false, err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return false, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return false, err
	}
	line, err := json.Marshal(usage{Dir: dir, CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()})
	if err != nil {
		return false, err
	}
	return cmd.ProcessState.Success(), appendTo(file, append(line, '\n'))
}

// timed runs a program other than go test, and prints its output at once.
func timed(ctx context.Context, name string, program []string) record {
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	start := time.Now()
	err := cmd.Run()
	r := record{Package: name, Wall: time.Since(start)}
	if cmd.ProcessState != nil {
		r.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if err != nil {
		r.Failed = []outcome{{Verdict: err.Error() + "; its output is above"}}
	}
	return r
}

// appendTo writes with one call, so that records of parallel stages do not mix.
func appendTo(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}
