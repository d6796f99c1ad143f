package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// The words by which the programs tell failures apart. Their exit status does
// not: the nf_tables variant exits with 4 for whatever the kernel rejects, the
// legacy one for the lock as well.
const (
	saysLocked = "xtables lock"
	saysRoot   = "Permission denied"
)

// versionText makes "1.8.9 (nf_tables)" of "iptables v1.8.9 (nf_tables)".
func versionText(output string) string {
	_, version, ok := strings.Cut(strings.TrimSpace(output), " v")
	if !ok {
		return strings.TrimSpace(output)
	}
	return version
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
// the kernel rejects the nf_tables variant names every line, otherwise the first
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
	failed   failure = iota // in a way that says nothing about its input
	locked                  // another process holds the lock
	notRoot                 // it lacks the right to change the network
	rejected                // it ran and did not take its input
)

// programEnd is how a program has failed, as os/exec or the library tells it.
type programEnd interface {
	error
	Exited() bool
}

const maxOutput = 300

func newToolError(program string, err error, output string) *toolError {
	ran := false
	if end, failed := errors.AsType[programEnd](err); failed {
		if _, own := end.(*exec.ExitError); own {
			ran = end.Exited()
		} else { // the library's has the output
			output = end.Error()
		}
	}
	e := &toolError{program: program, err: err, output: strings.Join(strings.Fields(output), " "), faults: readFaults(output)}
	switch {
	case strings.Contains(e.output, saysLocked):
		e.cause = locked
	case strings.Contains(e.output, saysRoot):
		e.cause = notRoot
	case ran:
		e.cause = rejected
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

// isRejection reports whether a program ran and did not take its input.
func isRejection(err error) bool {
	var e *toolError
	return errors.As(err, &e) && e.cause == rejected
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
	var end programEnd
	switch {
	case e.cause == locked, errors.Is(e.err, context.Canceled), errors.Is(e.err, context.DeadlineExceeded):
		return true
	case errors.As(e.err, &end) && !end.Exited():
		return true // another program has killed it
	}
	// The programs print an error of the kernel as the C library words it, which is
	// as Go does but for a capital.
	text := strings.ToLower(e.Error())
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ENOMEM, syscall.ENOBUFS, syscall.ETIME, syscall.ETIMEDOUT, syscall.ENFILE, syscall.EMFILE,
	}, func(one syscall.Errno) bool { return strings.Contains(text, one.Error()) })
}
