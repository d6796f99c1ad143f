package binaries

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// buildRevision is raised when the flags of the build below change, so that
// results of older flags are not taken for the new ones.
const buildRevision = 1

// progressInterval is how often a running build states how far it is.
const progressInterval = 15 * time.Second

type builder struct {
	root     string
	dir      string
	tools    []tool
	versions map[string]string
	out      io.Writer

	begin       time.Time
	done, total int // programs
}

// buildAll compiles programs of whatever tool modules.
func (b builder) buildAll(ctx context.Context, programs []Program) error {
	if len(programs) == 0 {
		return nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("go not found: install Go 1.26 or newer and put it on PATH")
	}
	b.begin, b.total = time.Now(), len(programs)
	var minutes int
	for _, t := range b.tools {
		if len(t.of(programs)) > 0 {
			minutes += t.minutes
		}
	}
	fmt.Fprintf(b.out, "Building %d programs from Go modules. With an empty build cache this takes up to %d minutes on two cores. Kept in %s for next time.\n",
		b.total, minutes, b.dir)
	for _, t := range b.tools {
		want := t.of(programs)
		if len(want) == 0 {
			continue
		}
		if err := b.build(ctx, t, want); err != nil {
			return err
		}
		b.done += len(want)
	}
	fmt.Fprintf(b.out, "Built %d programs in %s.\n", b.total, time.Since(b.begin).Round(time.Second))
	return nil
}

// build compiles programs of one tool module and moves them into b.dir.
func (b builder) build(ctx context.Context, t tool, programs []Program) error {
	version := b.versions[t.module]
	var names, packages []string
	for _, p := range programs {
		names = append(names, string(p))
		packages = append(packages, t.packages[p])
	}
	slices.Sort(packages)
	fmt.Fprintf(b.out, "  %s %s: downloading modules; %s\n", strings.Join(names, ", "), version, b.elapsed())
	total, err := b.countPackages(ctx, t, packages)
	if err != nil {
		return fmt.Errorf("downloading the modules of %s: %w", strings.Join(names, ", "), err)
	}
	temp, err := os.MkdirTemp(b.dir, ".build-")
	if err != nil {
		return fmt.Errorf("building %s: %w", strings.Join(names, ", "), err)
	}
	defer os.RemoveAll(temp)

	for i, pkg := range packages {
		// One program at a time: linking two at once needs twice the memory,
		// and what they share is compiled once anyhow.
		name := string(programOf(t, pkg))
		args := []string{"build", "-v", "-trimpath", "-ldflags", ldflags(version), "-o", filepath.Join(temp, name), pkg}
		note := func(lines int64) {
			fmt.Fprintf(b.out, "  %s (%d of %d): %d packages compiled, at most %d; %s\n",
				name, b.done+i+1, b.total, lines, total, b.elapsed())
		}
		note(0)
		if _, err := b.run(ctx, t, args, note); err != nil {
			return fmt.Errorf("building %s %s: %w", name, version, err)
		}
		if err := os.Rename(filepath.Join(temp, name), filepath.Join(b.dir, name)); err != nil {
			return fmt.Errorf("keeping %s: %w", name, err)
		}
	}
	return nil
}

func (b builder) elapsed() time.Duration { return time.Since(b.begin).Round(time.Second) }

func programOf(t tool, pkg string) Program {
	for p, path := range t.packages {
		if path == pkg {
			return p
		}
	}
	return ""
}

// ldflags give the programs the version that they would have in a release: a
// bare build calls itself v0.0.0-master, which version checks stumble over.
func ldflags(version string) string {
	flags := []string{"-s", "-w"}
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	for _, pkg := range []string{"k8s.io/client-go/pkg/version", "k8s.io/component-base/version"} {
		flags = append(flags,
			"-X", pkg+".gitVersion="+version,
			"-X", pkg+".gitMajor="+parts[0],
			"-X", pkg+".gitMinor="+parts[1],
			"-X", pkg+".gitTreeState=archive")
	}
	return strings.Join(flags, " ")
}

// countPackages returns the number of packages of the programs. It is also
// what downloads their modules.
func (b builder) countPackages(ctx context.Context, t tool, packages []string) (int, error) {
	note := func(lines int64) {
		if lines > 0 {
			fmt.Fprintf(b.out, "  %d modules downloaded\n", lines)
		}
	}
	stdout, err := b.run(ctx, t, append([]string{"list", "-deps"}, packages...), note)
	return bytes.Count(stdout, []byte("\n")), err
}

// run calls the go command in a tool module and reports its progress, which is
// the number of lines on its standard error.
func (b builder) run(ctx context.Context, t tool, args []string, note func(lines int64)) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(b.root, t.directory)
	// GOWORK and GOFLAGS of the caller are about the product, not this module;
	// without cgo no C compiler is needed.
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}

	var lines atomic.Int64
	var tail []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(stderr); s.Scan(); {
			lines.Add(1)
			if tail = append(tail, s.Text()); len(tail) > 20 {
				tail = tail[1:]
			}
		}
	}()
	tick := time.NewTicker(progressInterval)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-tick.C:
			note(lines.Load())
		case <-read:
			done = true
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("go %s: %w\n%s", args[0], err, strings.Join(tail, "\n"))
	}
	return stdout.Bytes(), nil
}

// lock takes an exclusive lock on a file, waiting for another process that
// holds it. The kernel frees it when its holder dies.
func lock(ctx context.Context, path string, out io.Writer) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("locking the directory for built programs: %w", err)
	}
	for noted := false; ; noted = true {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = file.Close()
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		if !noted {
			fmt.Fprintf(out, "Another process is working in %s; waiting for it.\n", filepath.Dir(path))
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
