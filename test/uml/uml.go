// Package uml runs tests in a kernel of their own, User-mode Linux, for what only
// the host's network namespace can do, and what would disturb the whole machine.
//
// The kernel has this machine's files as its root file system, so what a test
// writes outside of its temporary folder stays. It has one CPU, no network but
// the loopback interface, and iptables' legacy variant only. Modules are loaded on
// demand, as on a node.
//
// A package that uses it calls Main in its TestMain. A test that Run has started
// in the kernel finds Inside true.
package uml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// program is the kernel, modules its modules.
	program = "linux.uml"
	modules = "/usr/lib/uml/modules"
	// folderVariable tells the tests in the kernel where to leave their outcome.
	folderVariable = "NODEPROXY_UML"
	// Files in that folder.
	outputFile  = "output"
	statusFile  = "status"
	resultFile  = "result"
	consoleFile = "console"
	loaderFile  = "modprobe"
	modulesRoot = "modules"
	// waitDelay is how long the kernel may take to end when it is killed.
	waitDelay = 5 * time.Second
)

// Options say what to run.
type Options struct {
	// Test is the name of the test function of the running test binary.
	Test string
	// Folder is an empty folder for the kernel's memory, output and result.
	Folder string
	// MemoryMiB is the size of the kernel's memory; 0: 512 MiB.
	MemoryMiB int
}

// Outcome is how the test ended.
type Outcome struct {
	// Status is the exit status of the test binary: 0 if the test passed.
	Status int
	// Output is what it printed.
	Output string
	// Result is what it handed over by Report.
	Result []byte
	// Took is how long the kernel ran, booting included.
	Took time.Duration
}

// Missing says what has to be installed; nil: nothing.
func Missing() error {
	if _, err := exec.LookPath(program); err != nil {
		return errors.New("linux.uml not found: apt-get install user-mode-linux")
	}
	if _, err := exec.LookPath("modprobe"); err != nil {
		return errors.New("modprobe not found: apt-get install kmod")
	}
	if _, err := os.Stat(modules); err != nil {
		return fmt.Errorf("modules of User-mode Linux not found: apt-get install user-mode-linux: %w", err)
	}
	return nil
}

// Run boots a kernel whose first process is the running test binary with the
// given test, and waits until it has powered off. It needs root. The error says
// that the test has not run to its end; the Outcome then holds what there is.
func Run(ctx context.Context, o Options) (Outcome, error) {
	if err := Missing(); err != nil {
		return Outcome{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return Outcome{}, fmt.Errorf("finding the test binary: %w", err)
	}
	if err := prepare(o.Folder); err != nil {
		return Outcome{}, err
	}
	memory := o.MemoryMiB
	if memory == 0 {
		memory = 512
	}
	console, err := os.Create(filepath.Join(o.Folder, consoleFile))
	if err != nil {
		return Outcome{}, fmt.Errorf("keeping what the kernel prints: %w", err)
	}
	defer func() { _ = console.Close() }() // the kernel writes, not we
	cmd := exec.CommandContext(ctx, program,
		fmt.Sprintf("mem=%dM", memory), "rootfstype=hostfs", "rw", "quiet", "panic=-1", "con=null", "con0=null,fd:1",
		"init="+self, folderVariable+"="+o.Folder, "--", "-test.run=^"+o.Test+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), "TMPDIR="+o.Folder) // of the file that is its memory
	cmd.Stdout, cmd.Stderr = console, console
	// It runs its processes as processes of this machine. In a namespace of which
	// it is the first, all of them end with it, however it ends, and with us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = waitDelay
	start := time.Now()
	ended := cmd.Run()
	out := Outcome{Status: -1, Took: time.Since(start)}
	return out, out.read(o.Folder, ended)
}

// prepare makes what the first process needs: a loader of modules that knows
// where they are.
func prepare(folder string) error {
	root := filepath.Join(folder, modulesRoot)
	if err := os.MkdirAll(filepath.Join(root, "lib"), 0o755); err != nil {
		return fmt.Errorf("making the folder of modules: %w", err)
	}
	if err := os.Symlink(modules, filepath.Join(root, "lib/modules")); err != nil {
		return fmt.Errorf("making the folder of modules: %w", err)
	}
	path, err := exec.LookPath("modprobe")
	if err != nil {
		return fmt.Errorf("finding the loader of modules: %w", err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s -d %s \"$@\"\n", path, root)
	if err := os.WriteFile(filepath.Join(folder, loaderFile), []byte(script), 0o755); err != nil { //nolint:gosec // it is a program
		return fmt.Errorf("making the loader of modules: %w", err)
	}
	return nil
}

// read takes what the kernel has left in the folder.
func (o *Outcome) read(folder string, ended error) error {
	output, err := os.ReadFile(filepath.Join(folder, outputFile))
	o.Output = string(output)
	status, statusErr := os.ReadFile(filepath.Join(folder, statusFile))
	if err == nil && statusErr == nil {
		o.Status, err = strconv.Atoi(strings.TrimSpace(string(status)))
	}
	if err = errors.Join(err, statusErr); err != nil {
		printed, _ := os.ReadFile(filepath.Join(folder, consoleFile)) // as much as there is
		return fmt.Errorf("the test in User-mode Linux has not ended by itself (%w, %w); the kernel printed:\n%s", err, ended, printed)
	}
	result, err := os.ReadFile(filepath.Join(folder, resultFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the result of the test in User-mode Linux: %w", err)
	}
	o.Result = result
	return nil
}
