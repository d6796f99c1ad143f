package uml

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// directoryVariable names the directory of the following files for what runs in the kernel.
	directoryVariable = "NODEPROXY_UML"
	orderFile         = "order"
	statusFile        = "status"
	resultFile        = "result"
	consoleFile       = "console"
	loaderFile        = "modprobe"
	modulesRoot       = "modules"
	// waitDelay is how long the kernel may take to end when it is killed, or has done its
	// work: now and then one does not power off.
	waitDelay = 5 * time.Second
	// limit is how long a kernel may run, unless the caller sets it.
	limit = 5 * time.Minute
	// lastWords is how long before its kernel a test ends that hangs, to print where.
	lastWords = 30 * time.Second
	// priority of the kernel's processes (nice): each stands in for a processor, and what runs
	// beside them must not take turns with one.
	priority = -10
	// sharedMemory is where the kernel's memory is a file that no disk keeps.
	sharedMemory = "/dev/shm"
)

// Options configure a run.
type Options struct {
	// Test is the name of a test function of the running test binary, which is run
	// alone. Without it Program is run with Args.
	Test string
	// Program is the path of a program; the running one when empty.
	Program string
	Args    []string
	// Env is added to the environment.
	Env []string
	// Directory is an empty directory for what the kernel prints and the result.
	Directory string
	// MemoryMiB is the size of the kernel's memory; 0: 512 MiB. A cluster needs
	// 4096.
	MemoryMiB int
	// Output is where the program's output goes as it is printed, besides
	// Outcome.Output; may be nil.
	Output io.Writer
}

// Outcome is how the program ended.
type Outcome struct {
	// Status is the exit status of the program: 0 if the test passed.
	Status int
	// Output is what it printed.
	Output string
	// Result is what it passed to Report.
	Result []byte
	// Took is how long the kernel ran, booting included.
	Took time.Duration
}

// order is what the first process is to run.
type order struct {
	Args []string // with the program
	Env  []string
	Dir  string
}

// Missing states what has to be installed; nil: nothing.
func Missing() error {
	if _, err := findKernel(); err != nil {
		return err
	}
	if _, err := exec.LookPath("modprobe"); err != nil {
		return errors.New("modprobe not found: apt-get install kmod")
	}
	if _, err := exec.LookPath(compiler); err != nil && hasAMX() {
		return errors.New("gcc not found, which User-mode Linux needs on this processor: apt-get install gcc libc6-dev")
	}
	return nil
}

// Run boots a kernel, runs there what the options describe, and waits until it has
// powered off. It needs root. When ctx ends, so does the kernel with everything in
// it; after five minutes if ctx has no deadline. There is an error if the program has not
// run to its end, or if Options.Test did not run or skipped something; the Outcome then
// has what there is.
func Run(ctx context.Context, o Options) (Outcome, error) {
	var out Outcome
	if err := Missing(); err != nil {
		return out, err
	}
	k, err := findKernel()
	if err != nil {
		return out, err
	}
	deadline, bounded := ctx.Deadline()
	if !bounded {
		deadline = time.Now().Add(limit)
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return out, fmt.Errorf("finding the running program: %w", err)
	}
	if err := prepare(self, k.modules, o, time.Until(deadline)-lastWords); err != nil {
		return out, err
	}
	console, err := os.Create(filepath.Join(o.Directory, consoleFile))
	if err != nil {
		return out, fmt.Errorf("keeping what the kernel prints: %w", err)
	}
	defer func() { _ = console.Close() }() // the kernel writes, not we
	printed, err := newListener(o.Output)
	if err != nil {
		return out, err
	}
	begin := time.Now()
	ended := k.run(ctx, self, o, console, printed.writer)
	out.Took = time.Since(begin)
	out.Output = printed.close()
	if err := out.read(o.Directory, ended); err != nil {
		return out, err
	}
	if o.Test != "" && out.Status == 0 {
		return out, passed(o.Test, out.Output)
	}
	return out, nil
}

// skipLine is what go test -v prints for a test, or a part of one, that was skipped.
var skipLine = regexp.MustCompile(`(?m)^\s*--- SKIP: (\S+)`)

// passed returns an error unless a test ran and skipped nothing. Go counts a test binary
// as passed if no test of it matches, or if all were skipped.
func passed(test, output string) error {
	if !strings.Contains("\n"+output, "\n--- PASS: "+test+" (") {
		return fmt.Errorf("%s did not run in User-mode Linux", test)
	}
	if skipped := skipLine.FindStringSubmatch(output); skipped != nil {
		return fmt.Errorf("%s was skipped in User-mode Linux", skipped[1])
	}
	return nil
}

// run runs the kernel to its end. What the program prints goes to output.
func (k kernel) run(ctx context.Context, self string, o Options, console, output *os.File) error {
	memory := o.MemoryMiB
	if memory == 0 {
		memory = 512
	}
	// The first serial line is what is open as file 3.
	cmd := exec.CommandContext(ctx, k.program, append(k.args,
		fmt.Sprintf("mem=%dM", memory), "rootfstype=hostfs", "rw", "quiet", "panic=-1", "con=null", "con0=null,fd:1",
		"ssl=null", "ssl0=null,fd:3", "init="+self, directoryVariable+"="+o.Directory)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+memoryDirectory(o.Directory, memory))
	library, err := registersLibrary(ctx, o.Directory)
	if err != nil {
		return err
	}
	if library != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+library)
	}
	cmd.Stdout, cmd.Stderr = console, console
	cmd.ExtraFiles = []*os.File{output}
	// It runs its processes as processes of this machine. In a namespace of which
	// it is the first, all of them end with it, however it ends, and with us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = waitDelay
	processor, release, err := ownProcessor()
	if err != nil {
		return err
	}
	defer release()
	if err := cmd.Start(); err != nil {
		return err
	}
	// What it starts later inherits both. Without them everything is right, but slow.
	if err := unix.Setpriority(unix.PRIO_PROCESS, cmd.Process.Pid, priority); err != nil && !errors.Is(err, unix.ESRCH) {
		return errors.Join(fmt.Errorf("choosing the kernel's priority: %w", err), cmd.Process.Kill(), cmd.Wait())
	}
	if processor != nil {
		if err := unix.SchedSetaffinity(cmd.Process.Pid, processor); err != nil && !errors.Is(err, unix.ESRCH) {
			return errors.Join(fmt.Errorf("choosing the kernel's processor: %w", err), cmd.Process.Kill(), cmd.Wait())
		}
	}
	ended := make(chan struct{})
	defer close(ended)
	go endWhenDone(filepath.Join(o.Directory, statusFile), cmd.Process, ended)
	return cmd.Wait()
}

// endWhenDone kills a kernel that has written the status and not ended in time.
func endWhenDone(status string, kernel *os.Process, ended <-chan struct{}) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		select {
		case <-ended:
			return
		case <-look.C:
		}
		if _, err := os.Stat(status); err != nil {
			continue
		}
		select {
		case <-ended:
		case <-time.After(waitDelay):
			_ = kernel.Kill() // it has ended if that fails
		}
		return
	}
}

// memoryDirectory is where the kernel makes the file that is its memory, whose name it
// removes at once.
func memoryDirectory(directory string, mib int) string {
	var fs unix.Statfs_t
	if err := unix.Statfs(sharedMemory, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return directory
	}
	if fs.Bavail*uint64(fs.Bsize)>>20 < uint64(mib) { //nolint:gosec // sizes are positive
		return directory
	}
	return sharedMemory
}

// listener takes what the program prints.
type listener struct {
	writer *os.File // the kernel's end
	reader *os.File
	all    bytes.Buffer
	done   chan struct{}
}

func newListener(also io.Writer) (*listener, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("taking what the program prints: %w", err)
	}
	l := &listener{writer: writer, reader: reader, done: make(chan struct{})}
	to := io.Writer(&l.all)
	if also != nil {
		to = io.MultiWriter(&l.all, also)
	}
	go func() {
		defer close(l.done)
		if _, err := io.Copy(to, reader); err != nil {
			_, _ = io.Copy(&l.all, reader) // the reader of the live output is gone; the kernel must not wait
		}
	}()
	return l, nil
}

// close returns all that was printed, once the kernel has ended.
func (l *listener) close() string {
	_ = l.writer.Close() // ours; the kernel's are closed
	<-l.done
	_ = l.reader.Close() // it has been read to its end
	return l.all.String()
}

// prepare makes what the first process needs: its order, and a loader of modules
// that knows where they are.
func prepare(self, modules string, o Options, testTimeout time.Duration) error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("finding the working directory: %w", err)
	}
	todo := order{Dir: dir, Env: append(environment(), o.Env...), Args: append([]string{o.Program}, o.Args...)}
	if o.Program == "" {
		todo.Args[0] = self
	}
	if o.Test != "" {
		todo.Args = []string{self, "-test.run=^" + o.Test + "$", "-test.v", "-test.count=1",
			"-test.timeout=" + max(testTimeout, time.Second).String()}
	}
	text, err := json.Marshal(todo)
	if err != nil {
		return fmt.Errorf("passing the command to the kernel: %w", err)
	}
	if err := os.WriteFile(filepath.Join(o.Directory, orderFile), text, 0o600); err != nil {
		return fmt.Errorf("passing the command to the kernel: %w", err)
	}
	root := filepath.Join(o.Directory, modulesRoot)
	if err := os.MkdirAll(filepath.Join(root, "lib"), 0o755); err != nil {
		return fmt.Errorf("making the directory of modules: %w", err)
	}
	if err := os.Symlink(modules, filepath.Join(root, "lib/modules")); err != nil {
		return fmt.Errorf("making the directory of modules: %w", err)
	}
	path, err := exec.LookPath("modprobe")
	if err != nil {
		return fmt.Errorf("finding the loader of modules: %w", err)
	}
	script := fmt.Sprintf("#!/bin/sh\nexec %s -d %s \"$@\"\n", path, root)
	if err := os.WriteFile(filepath.Join(o.Directory, loaderFile), []byte(script), 0o755); err != nil { //nolint:gosec // it is a program
		return fmt.Errorf("making the loader of modules: %w", err)
	}
	return nil
}

// environment is that of the caller; what is kept in the user's cache is found
// there though the home directory is another.
func environment() []string {
	env := os.Environ()
	if cache, err := os.UserCacheDir(); err == nil {
		env = append(env, "XDG_CACHE_HOME="+cache)
	}
	return env
}

// read takes what the kernel has left in the directory.
func (o *Outcome) read(directory string, ended error) error {
	status, err := os.ReadFile(filepath.Join(directory, statusFile))
	if err == nil {
		o.Status, err = strconv.Atoi(strings.TrimSpace(string(status)))
	}
	if err != nil {
		printed, _ := os.ReadFile(filepath.Join(directory, consoleFile)) // as much as there is
		return fmt.Errorf("the program in User-mode Linux has not ended by itself (%w, %w); the kernel printed:\n%s", err, ended, printed)
	}
	result, err := os.ReadFile(filepath.Join(directory, resultFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reading the result of the program in User-mode Linux: %w", err)
	}
	o.Result = result
	return nil
}
