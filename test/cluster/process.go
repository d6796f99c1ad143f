package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Command describes a program to run at a place.
type Command struct {
	// Name is for messages and the log file's name; the program's own when empty.
	Name string
	// Path is the program and Args what follows it.
	Path string
	Args []string
	// Env is added to the environment of the caller.
	Env []string
}

// Process is a program that runs at a place.
type Process struct {
	name string
	log  string
	// begin is where the process's own output begins in the file, which it may
	// share with those that had its name before.
	begin int64
	cmd   *exec.Cmd
	done  chan struct{}
	err   error // of Wait, once done is closed
}

// Start runs a program inside the place's network namespace, with its output
// going to a file. Unlike `ip netns exec` it leaves /sys as it is. The program
// ends with the cluster at the latest.
func (p *Place) Start(command Command) (*Process, error) {
	return p.launch(command, p.attributes(), p.onStarter)
}

// onStarter calls f inside the place, on the cluster's starter.
func (p *Place) onStarter(f func() error) error {
	return p.cluster.starter.do(func() error { return p.visit(f) })
}

// attributes are those of a process that ends with this one if it is to.
func (p *Place) attributes() *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{}
	if !p.cluster.options.Keep {
		attributes.Pdeathsig = syscall.SIGKILL
	}
	return attributes
}

// launch starts a program. The process belongs where inside calls the function
// it is given.
func (p *Place) launch(command Command, attributes *syscall.SysProcAttr, inside func(func() error) error) (*Process, error) {
	if command.Name == "" {
		command.Name = filepath.Base(command.Path)
	}
	logPath := filepath.Join(p.cluster.slot.dir(), p.name+"."+command.Name+".log")
	logFile, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("starting %s at %s: %w", command.Name, p.name, err)
	}
	defer logFile.Close()
	begin, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("starting %s at %s: %w", command.Name, p.name, err)
	}

	cmd := exec.Command(command.Path, command.Args...)
	cmd.Env = append(os.Environ(), append(noProxy(), command.Env...)...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	// A group of its own, so that Ctrl-C reaches only us, and we end it in order.
	attributes.Setpgid = true
	cmd.SysProcAttr = attributes
	err = p.cluster.make(func() error { return inside(cmd.Start) })
	if err != nil {
		return nil, fmt.Errorf("starting %s at %s: %w", command.Name, p.name, err)
	}
	proc := &Process{name: command.Name + " at " + p.name, log: logPath, begin: begin, cmd: cmd, done: make(chan struct{})}
	go func() {
		proc.err = cmd.Wait()
		close(proc.done)
	}()
	return proc, nil
}

// Exec runs a program inside the place's network namespace and returns what it
// writes. When the program fails, the error carries its standard error.
func (p *Place) Exec(ctx context.Context, name string, args ...string) (string, error) {
	return p.execute(exec.CommandContext(ctx, name, args...), p.Do)
}

// execute runs a program to its end, where inside calls the function it is given.
func (p *Place) execute(cmd *exec.Cmd, inside func(func() error) error) (string, error) {
	cmd.Env = append(os.Environ(), noProxy()...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := p.cluster.make(func() error { return inside(cmd.Start) }); err != nil {
		return "", fmt.Errorf("running %s at %s: %w", cmd.Path, p.name, err)
	}
	if err := cmd.Wait(); err != nil {
		return stdout.String(), fmt.Errorf("running %s at %s: %w: %s", strings.Join(cmd.Args, " "), p.name, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns the path of the file with the process's output.
func (p *Process) Log() string { return p.log }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Stop asks the process to end (SIGTERM) and waits for it, 30 s at most.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

// Kill ends the process without giving it a chance (SIGKILL) and waits for it.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL) }

// end sends a signal and waits. Only a process that neither succeeds nor dies
// of that signal is an error.
func (p *Process) end(signal syscall.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end within 30 s of signal %q; it was killed; %s", p.name, signal, p.Tail())
	}
	if exit, ok := errors.AsType[*exec.ExitError](p.err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == signal {
			return nil
		}
	}
	if p.err != nil {
		return fmt.Errorf("%s ended: %w; %s", p.name, p.err, p.Tail())
	}
	return nil
}

// Tail returns the last lines of the process's output, for messages.
func (p *Process) Tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return "its log cannot be read: " + err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return "the end of its log:\n  " + strings.Join(lines[max(0, len(lines)-10):], "\n  ")
}

// reportsReady waits until the process has written the line "ready".
func (p *Process) reportsReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if err := p.ended(); err != nil {
			return err
		}
		text, err := os.ReadFile(p.log)
		if err != nil {
			return err
		}
		if int64(len(text)) > p.begin && bytes.Contains(text[p.begin:], []byte("ready\n")) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not get ready: %w; %s", p.name, ctx.Err(), p.Tail())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// ended returns an error when the process is not running any more.
func (p *Process) ended() error {
	select {
	case <-p.done:
		if p.err == nil {
			return fmt.Errorf("%s ended by itself; %s", p.name, p.Tail())
		}
		return fmt.Errorf("%s ended by itself: %w; %s", p.name, p.err, p.Tail())
	default:
		return nil
	}
}

// noProxy keeps programs from asking a web proxy for addresses that exist only
// inside this machine.
func noProxy() []string {
	const ours = "127.0.0.1,172.20.0.0/24,198.18.0.0/16,fd00:172:20::/64," + serviceCIDR + "," + serviceCIDR6
	return []string{"NO_PROXY=" + ours, "no_proxy=" + ours}
}

// starter runs functions on one thread that lives as long as the cluster. The
// kernel ends a process with Pdeathsig when the thread that started it ends,
// and Go ends threads as it likes.
type starter struct {
	jobs chan func()
}

func newStarter() *starter {
	s := &starter{jobs: make(chan func())}
	ready := make(chan struct{})
	go s.run(ready)
	<-ready
	return s
}

// run does the jobs and closes ready when it has a thread for them.
func (s *starter) run(ready chan<- struct{}) {
	runtime.LockOSThread()
	if syscall.Gettid() == os.Getpid() {
		// Go never ends the first thread of a process. While we hold it, another
		// goroutine gets another one.
		defer runtime.UnlockOSThread()
		other := make(chan struct{})
		go s.run(other)
		<-other
		close(ready)
		return
	}
	close(ready)
	for job := range s.jobs { // the thread is never unlocked: it ends with the loop
		job()
	}
}

// do calls f on the starter's thread.
func (s *starter) do(f func() error) error {
	result := make(chan error)
	s.jobs <- func() { result <- f() }
	return <-result
}

// close ends the thread, and with it processes that are to end with it.
func (s *starter) close() { close(s.jobs) }
