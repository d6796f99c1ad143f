package ipvskernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/cluster/binaries"
	"github.com/nodeproxy-io/nodeproxy/test/programs"
	"github.com/nodeproxy-io/nodeproxy/test/uml"
)

const (
	// programsVariable names the directory of the programs for what runs in User-mode Linux.
	programsVariable = "NODEPROXY_TEST_PROGRAMS"
	// memoryMiB is enough for a control plane and some nodes.
	memoryMiB = 4096
	// limit is how long a kernel may run, unless the caller sets it.
	limit = 20 * time.Minute
)

// Here reports whether this process runs in a kernel with IPVS.
func Here() bool { return uml.Inside() || native() }

// native reports whether this machine's kernel has IPVS, and loads it if it can.
var native = sync.OnceValue(func() bool {
	if _, err := os.Stat("/proc/net/ip_vs"); err == nil {
		return true
	}
	if os.Geteuid() != 0 || exec.Command("modprobe", "--quiet", "ip_vs").Run() != nil {
		return false
	}
	_, err := os.Stat("/proc/net/ip_vs")
	return err == nil
})

// Missing states what keeps this user or this machine from running anything in a
// kernel with IPVS; nil: nothing.
func Missing() error {
	if err := cluster.Check(); err != nil {
		return err
	}
	if Here() {
		return nil
	}
	return uml.Missing()
}

// Programs is the directory with nodeproxy's programs and what cluster.Options.Programs
// needs. Tests under RunTests have it.
func Programs() string { return os.Getenv(programsVariable) }

// Tests are those of a package, such as *testing.M.
type Tests interface {
	// Run runs them and returns the exit status.
	Run() int
}

// RunTests runs the tests of the calling package in a kernel with IPVS, with the
// flags that the test binary was given, and exits; call it from TestMain. Where that
// is not possible the tests are run here: each of them has to skip itself, with the
// reason, unless Missing is nil. Programs besides are built for them as well.
func RunTests(tests Tests, besides ...binaries.Program) {
	uml.Boot()
	if uml.Inside() || Missing() != nil {
		os.Exit(tests.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status, err := withPrograms(ctx, besides, func(directory string) (int, error) {
		if native() {
			return tests.Run(), nil
		}
		return Run(ctx, directory, os.Stdout, os.Args[1:]...)
	})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// Run runs this program in User-mode Linux with the given arguments, and returns
// its exit status. What it prints goes to out. The directory is that of Programs there.
func Run(ctx context.Context, programs string, out io.Writer, args ...string) (status int, err error) {
	if _, bounded := ctx.Deadline(); !bounded {
		bounded, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		ctx = bounded
	}
	directory, err := os.MkdirTemp("", "nodeproxy-uml-")
	if err != nil {
		return 1, fmt.Errorf("making a directory for User-mode Linux: %w", err)
	}
	outcome, err := uml.Run(ctx, uml.Options{
		Args: args, Env: []string{programsVariable + "=" + programs}, Directory: directory, MemoryMiB: memoryMiB, Output: out,
	})
	return outcome.Status, errors.Join(err, os.RemoveAll(directory))
}

// withPrograms builds programs into a directory, which ends with f.
func withPrograms(ctx context.Context, besides []binaries.Program, f func(directory string) (int, error)) (status int, err error) {
	directory, err := os.MkdirTemp("", "nodeproxy-programs-")
	if err != nil {
		return 1, fmt.Errorf("making a directory for programs: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	if err := cluster.Build(ctx, os.Stderr, directory, besides...); err != nil {
		return 1, err
	}
	if err := programs.Into(ctx, directory, programs.Controller, programs.Agent); err != nil {
		return 1, err
	}
	if err := os.Setenv(programsVariable, filepath.Clean(directory)); err != nil {
		return 1, fmt.Errorf("passing on where the programs are: %w", err)
	}
	return f(directory)
}
