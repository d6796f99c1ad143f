package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The main function keeps the first thread, whose namespaces others enter. Only
// here is it certain which one that is.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // see above

func main() {
	hostname := flag.String("hostname", "", "the machine's host name")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: nodeinit -hostname NAME FROM:TO...\nFROM, a path of the host, appears at TO on the machine, in this order.")
		flag.PrintDefaults()
	}
	flag.Parse()
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	if err := prepare(*hostname, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "nodeinit:", err)
		os.Exit(1)
	}
	fmt.Println("ready") // the parent waits for this line
	for range children {
		reap()
	}
}

func prepare(hostname string, binds []string) error {
	if os.Getpid() != 1 {
		return errors.New("not the first process of a process namespace: start it by Machine.Boot of test/cluster only")
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	// What the host unmounts goes here, too; what is mounted here stays here.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("parting the mounts from the host's: %w", err)
	}
	if err := enterCgroups(binds); err != nil {
		return err
	}
	return mountAll(binds)
}

// enterCgroups enters those control groups that are among the sources, which are
// the roots for all processes of the machine from now on.
func enterCgroups(binds []string) error {
	for _, bind := range binds {
		group, _, _ := strings.Cut(bind, ":")
		list := filepath.Join(group, "cgroup.procs")
		if _, err := os.Stat(list); err != nil {
			continue // not a control group
		}
		if err := os.WriteFile(list, []byte("0"), 0); err != nil {
			return fmt.Errorf("entering the machine's control group: %w", err)
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making the machine's control groups roots: %w", err)
	}
	return leaveRoot(binds)
}

// leaveRoot goes to a group of its own in the hierarchy of version 2, whose
// groups cannot have both processes and controllers for the groups below.
func leaveRoot(binds []string) error {
	for _, bind := range binds {
		group, _, _ := strings.Cut(bind, ":")
		if _, err := os.Stat(filepath.Join(group, "cgroup.controllers")); err != nil {
			continue
		}
		own := filepath.Join(group, "init")
		if err := os.MkdirAll(own, 0o755); err != nil {
			return fmt.Errorf("making a control group: %w", err)
		}
		if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("entering a control group: %w", err)
		}
	}
	return nil
}

// mountAll gives the machine a /proc with its own processes, and the binds. It
// opens all sources before it mounts anything, because mounts hide sources.
func mountAll(binds []string) error {
	sources := make([]int, len(binds))
	targets := make([]string, len(binds))
	for i, bind := range binds {
		from, to, _ := strings.Cut(bind, ":")
		fd, err := unix.Open(from, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening %s: %w", from, err)
		}
		sources[i], targets[i] = fd, to
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mounting the machine's /proc: %w", err)
	}
	for i, to := range targets {
		if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", sources[i]), to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mounting %s: %w", binds[i], err)
		}
		_ = unix.Close(sources[i])
	}
	return nil
}

// reap takes note of all processes that have ended.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}
