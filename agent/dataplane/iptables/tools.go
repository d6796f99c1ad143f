package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

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
	family  dataplane.Family
	command string // iptables or ip6tables
	restore string // iptables-restore or ip6tables-restore
	save    string

	// ipt edits jumps from built-in chains and knows the version. Nil until the
	// programs have been found.
	ipt     *goiptables.IPTables
	version string
}

func newTools(family dataplane.Family, folder string) *tools {
	command := "iptables"
	if family == dataplane.IPv6 {
		command = "ip6tables"
	}
	if folder != "" {
		command = strings.TrimSuffix(folder, "/") + "/" + command
	}
	return &tools{family: family, command: command, restore: command + "-restore", save: command + "-save"}
}

// find looks for the programs, once they have been found never again.
func (t *tools) find(ctx context.Context) error {
	if t.ipt != nil {
		return nil
	}
	for _, program := range []string{t.command, t.restore, t.save} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: %s not found; install the iptables package on the node: %w",
				dataplane.ErrUnsupported, program, err)
		}
	}
	version, err := exec.CommandContext(ctx, t.command, "--version").Output()
	if err != nil {
		return fmt.Errorf("%w: %s --version: %w", dataplane.ErrUnsupported, t.command, err)
	}
	protocol := goiptables.ProtocolIPv4
	if t.family == dataplane.IPv6 {
		protocol = goiptables.ProtocolIPv6
	}
	ipt, err := goiptables.New(goiptables.IPFamily(protocol), goiptables.Timeout(lockWaitSeconds), goiptables.Path(t.command))
	if err != nil {
		return fmt.Errorf("%w: %s: %w", dataplane.ErrUnsupported, t.command, err)
	}
	major, minor, patch := ipt.GetIptablesVersion()
	// Since 1.6.2 iptables-restore waits for the lock with -w.
	if major < 1 || major == 1 && (minor < 6 || minor == 6 && patch < 2) {
		return fmt.Errorf("%w: %s is version %d.%d.%d, too old: 1.6.2 or newer is needed",
			dataplane.ErrUnsupported, t.command, major, minor, patch)
	}
	t.ipt = ipt
	t.version = versionText(string(version))
	return nil
}

// versionText makes "1.8.9 (nf_tables)" of "iptables v1.8.9 (nf_tables)".
func versionText(output string) string {
	_, version, ok := strings.Cut(strings.TrimSpace(output), " v")
	if !ok {
		return strings.TrimSpace(output)
	}
	return version
}

func (t *tools) describe() string { return t.version }

func (t *tools) randomFully() bool { return t.ipt.HasRandomFully() }

func (t *tools) probe() error {
	_, err := t.ipt.List("nat", "POSTROUTING")
	if err == nil {
		return nil
	}
	err = newToolError(t.command, err, "")
	if isLocked(err) {
		return err
	}
	return fmt.Errorf("%w: %s cannot list the table nat; the kernel may lack it: %w",
		dataplane.ErrUnsupported, t.command, err)
}

func (t *tools) insert(h hook) error {
	var args []string
	words := tokens{rest: h.spec}
	for word, ok := words.next(); ok; word, ok = words.next() {
		args = append(args, word)
	}
	if err := t.ipt.Insert(h.in.table.String(), h.in.name, 1, args...); err != nil {
		return newToolError(t.command, err, "")
	}
	return nil
}

func (t *tools) legacy() bool { return !strings.Contains(t.version, "nf_tables") }

// read reads the tables nat and filter.
func (t *tools) read(ctx context.Context) (*kernelState, error) {
	state := newKernelState()
	for _, in := range []table{nat, filter} {
		if err := t.readTable(ctx, in, state); err != nil {
			return nil, err
		}
	}
	return state, nil
}

func (t *tools) readTable(ctx context.Context, in table, state *kernelState) error {
	cmd := exec.CommandContext(ctx, t.save, "-t", in.String())
	cmd.Env = environment()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run %s: %w", t.save, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", t.save, err)
	}
	readErr := state.read(out)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("read table %s: %w", in, newToolError(t.save, err, stderr.String()))
	}
	return readErr
}

// apply runs iptables-restore. Each section of input is applied as a whole or
// not at all.
func (t *tools) apply(ctx context.Context, input string) error {
	if input == "" {
		return nil
	}
	cmd := exec.CommandContext(ctx, t.restore, "--noflush", "-w", fmt.Sprint(lockWaitSeconds))
	cmd.Env = environment()
	cmd.Stdin = strings.NewReader(input)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stderr, &stderr
	if err := cmd.Run(); err != nil {
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

func isLocked(err error) bool {
	var e *toolError
	return errors.As(err, &e) && e.cause == locked
}

// isRefusal reports whether a program ran and did not take its input.
func isRefusal(err error) bool {
	var e *toolError
	return errors.As(err, &e) && e.cause == refused
}
