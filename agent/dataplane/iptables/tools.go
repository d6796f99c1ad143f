package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	goiptables "github.com/coreos/go-iptables/iptables"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// lockWaitSeconds is how long a tool waits for the lock that programs of the
// legacy variant share.
const lockWaitSeconds = 5

// The words by which the programs tell failures apart. Their exit status does
// not: the nf_tables variant exits with 4 for whatever the kernel refuses, the
// legacy one for the lock as well.
const (
	saysLocked = "xtables lock"
	saysRoot   = "Permission denied"
)

// tools runs the iptables programs of one IP family.
type tools struct {
	family   dataplane.Family
	owner    owner // whose chains are watched
	programs *Programs
	// The following are set once the programs have been found.
	command string // such as iptables
	restore string
	save    string
	commits *Commits

	// ipt edits jumps from built-in chains and knows the version. Nil until the
	// programs have been found.
	ipt     *goiptables.IPTables
	version string
}

func newTools(family dataplane.Family, programs *Programs, commits *Commits) *tools {
	return &tools{family: family, programs: programs, commits: commits}
}

// find looks for the programs, once they have been found never again.
func (t *tools) find(ctx context.Context) error {
	if t.ipt != nil {
		return nil
	}
	found, err := t.programs.find(ctx, t.family)
	if err != nil {
		return err
	}
	t.command, t.restore, t.save = found.command, found.restore(), found.save()
	protocol := goiptables.ProtocolIPv4
	if t.family == dataplane.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	ipt, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Timeout(lockWaitSeconds), goiptables.Path(t.command))
	if err != nil { // it asks for the version again
		return notRunning(newToolError(t.command, err, ""))
	}
	major, minor, patch := ipt.GetIptablesVersion()
	// Since 1.6.2 iptables-restore waits for the lock with -w.
	if major < 1 || major == 1 && (minor < 6 || minor == 6 && patch < 2) {
		return fmt.Errorf("%w: %s is version %d.%d.%d, too old: 1.6.2 or newer is needed",
			dataplane.ErrUnsupported, t.command, major, minor, patch)
	}
	t.ipt = ipt
	t.version = found.version
	return nil
}

func (t *tools) warnings(ctx context.Context) []string { return t.programs.warnings(ctx, t.family) }

func (t *tools) all(ctx context.Context) ([]kernel, error) {
	programs, err := t.programs.all(ctx, t.family)
	if err != nil {
		return nil, err
	}
	var out []kernel
	for _, p := range programs {
		one := newTools(t.family, p, t.commits)
		one.owner = t.owner
		out = append(out, one)
	}
	return out, nil
}

// versionText makes "1.8.9 (nf_tables)" of "iptables v1.8.9 (nf_tables)".
func versionText(output string) string {
	_, version, ok := strings.Cut(strings.TrimSpace(output), " v")
	if !ok {
		return strings.TrimSpace(output)
	}
	return version
}

func (t *tools) randomFully() bool { return t.ipt.HasRandomFully() }

func (t *tools) probe() error {
	if _, err := t.ipt.List("nat", "POSTROUTING"); err != nil {
		return probeError(t.command, newToolError(t.command, err, ""))
	}
	return nil
}

// probeError is why the table nat could not be listed. It says that the node lacks
// it, unless another try may go better.
func probeError(command string, err *toolError) error {
	switch {
	case err.cause == locked:
		return err
	case err.passes():
		return fmt.Errorf("%s cannot list the table nat at the moment: %w", command, err)
	default:
		return fmt.Errorf("%w: %s cannot list the table nat; the kernel may lack it: %w", dataplane.ErrUnsupported, command, err)
	}
}

// passes reports whether a failure tells of the node's state at the moment and not of
// what it can do. The kernel loads what is asked for at the first use, which fails in
// these ways where there is much to do.
func (e *toolError) passes() bool {
	var (
		library *goiptables.Error
		exit    *exec.ExitError
	)
	switch {
	case e.cause == locked, errors.Is(e.err, context.Canceled), errors.Is(e.err, context.DeadlineExceeded):
		return true
	case errors.As(e.err, &library) && !library.Exited(), errors.As(e.err, &exit) && !exit.Exited():
		return true // somebody has killed it
	}
	// The programs print an error of the kernel as the C library words it, which is
	// as Go does but for a capital.
	text := strings.ToLower(e.Error())
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ENOMEM, syscall.ENOBUFS, syscall.ETIME, syscall.ETIMEDOUT, syscall.ENFILE, syscall.EMFILE,
	}, func(one syscall.Errno) bool { return strings.Contains(text, one.Error()) })
}

// What the programs print of a match that they know and the kernel does not, and of
// one that they do not know. They load the kernel's module for it where there is one.
const (
	saysUnknown    = "missing kernel module"
	saysNotPresent = "Couldn't load match"
)

func (t *tools) lacks(ctx context.Context, matches []string) ([]string, error) {
	var out []string
	for _, m := range matches {
		cmd := exec.CommandContext(ctx, t.command, "-m", m, "--help")
		cmd.Env = environment()
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := cmd.Run()
		text := stderr.String()
		if err == nil {
			if strings.Contains(text, saysUnknown) {
				out = append(out, m)
			}
			continue
		}
		failure := newToolError(t.command, err, text)
		if failure.passes() || !strings.Contains(text, saysUnknown) && !strings.Contains(text, saysNotPresent) {
			return nil, fmt.Errorf("looking for the match %s: %w", m, failure)
		}
		out = append(out, m)
	}
	return out, nil
}

func (t *tools) insert(h hook) error {
	var args []string
	words := tokens{rest: h.spec}
	for word, ok := words.next(); ok; word, ok = words.next() {
		args = append(args, word)
	}
	err := t.commits.write(1, func() error { return t.ipt.Insert(h.in.table.String(), h.in.name, 1, args...) })
	if err != nil {
		return newToolError(t.command, err, "")
	}
	return nil
}

func (t *tools) legacy() bool { return variantOf(t.version) == Legacy }

func (t *tools) others() (uint32, bool) {
	if t.legacy() {
		return 0, false
	}
	return t.commits.others()
}

// read reads the tables nat and filter, in one run: the nf_tables variant gets
// the rules of all tables from the kernel whichever it is asked for.
func (t *tools) read(ctx context.Context) (*kernelState, error) {
	defer dataplane.Progress(ctx)
	cmd := exec.CommandContext(ctx, t.save)
	cmd.Env = environment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", t.save, err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("run %s: %w", t.save, err)
	}
	state := newKernelState()
	readErr := state.read(out)
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("read the rules: %w", newToolError(t.save, err, stderr.String()))
	}
	return state, readErr
}

// apply runs iptables-restore. Each section of input is applied as a whole or
// not at all.
func (t *tools) apply(ctx context.Context, input string) error {
	if input == "" {
		return nil
	}
	defer dataplane.Progress(ctx)
	cmd := exec.CommandContext(ctx, t.restore, "--noflush", "-w", fmt.Sprint(lockWaitSeconds))
	cmd.Env = environment()
	cmd.Stdin = strings.NewReader(input)
	// It ends with the agent, as all does in a container: one that outlived a killed
	// agent would write beside the next, which has read the rules by then. The
	// kernel goes by the thread that has started it, so that is kept until it ends.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr // what it lists is for nobody
	if err := t.commits.write(sections(input), func() error { return t.commits.run(cmd) }); err != nil {
		return newToolError(t.restore, err, stderr.String())
	}
	return nil
}

// environment keeps messages in a language that can be searched for.
func environment() []string { return append(os.Environ(), "LC_ALL=C") }

// toolError is a failed run of an iptables program.
type toolError struct {
	program string
	cause   failure
	output  string
	faults  []int // lines of the input that the program names, from 1
	err     error
}

// faultLines finds the lines of its input that iptables-restore names. For what
// the kernel refuses the nf_tables variant names every line, otherwise the first
// is named, or only that of COMMIT.
var faultLines = regexp.MustCompile(`\bline:? (\d+)\b`)

// readFaults returns the lines, from 1, that an output names.
func readFaults(output string) []int {
	var out []int
	for _, m := range faultLines.FindAllStringSubmatch(output, -1) {
		if n, err := strconv.Atoi(m[1]); err == nil {
			out = append(out, n)
		}
	}
	return out
}

// failure is why a program failed, as far as that decides what to do.
type failure int

const (
	failed  failure = iota // in a way that says nothing about its input
	locked                 // another process holds the lock
	notRoot                // it lacks the right to change the network
	refused                // it ran and did not take its input
)

const maxOutput = 300

func newToolError(program string, err error, output string) *toolError {
	var (
		exit    *exec.ExitError
		library *goiptables.Error
	)
	ran := errors.As(err, &exit) && exit.Exited()
	if errors.As(err, &library) {
		output, ran = library.Error(), false
	}
	e := &toolError{program: program, err: err, output: strings.Join(strings.Fields(output), " "), faults: readFaults(output)}
	switch {
	case strings.Contains(e.output, saysLocked):
		e.cause = locked
	case strings.Contains(e.output, saysRoot):
		e.cause = notRoot
	case ran:
		e.cause = refused
	}
	if len(e.output) > maxOutput {
		e.output = e.output[:maxOutput] + "…"
	}
	return e
}

// Error says what failed and, where it can, what to do.
func (e *toolError) Error() string {
	what := e.output
	if what == "" {
		what = e.err.Error()
	}
	switch e.cause {
	case locked:
		return fmt.Sprintf(`%s: another process holds the xtables lock; find it with "fuser -v /run/xtables.lock" on the node: %s`, e.program, what)
	case notRoot:
		return fmt.Sprintf("%s: not allowed to change rules; run the agent as root, with the capabilities NET_ADMIN and NET_RAW: %s", e.program, what)
	default:
		return fmt.Sprintf("%s: %s", e.program, what)
	}
}

func (e *toolError) Unwrap() error { return e.err }

// isRefusal reports whether a program ran and did not take its input.
func isRefusal(err error) bool {
	var e *toolError
	return errors.As(err, &e) && e.cause == refused
}
