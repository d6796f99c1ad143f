package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// Messages of the programs by which failures are distinguished. Their exit status does
// not help: the nf_tables variant exits with 4 for anything that the kernel rejects, the
// legacy one for the lock as well.
const (
	textLocked  = "xtables lock"
	textNotRoot = "Permission denied"
)

type toolError struct {
	program string
	cause   failure
	output  string
	input   string
	faults  []int // lines of the input that the program names, from 1
	err     error
}

// faultLines finds the lines of its input that iptables-restore names. Of what
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
	failed   failure = iota // for no reason in its input
	locked                  // another process has the lock
	notRoot                 // it lacks permissions
	rejected                // it ran and rejected its input
)

// programEnd is how a program has failed, as os/exec or the library reports it.
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
	case strings.Contains(e.output, textLocked):
		e.cause = locked
	case strings.Contains(e.output, textNotRoot):
		e.cause = notRoot
	case ran:
		e.cause = rejected
	}
	if len(e.output) > maxOutput {
		e.output = e.output[:maxOutput] + "…"
	}
	return e
}

// Error includes what to do, if that is known.
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

// isRejection reports whether a program ran and rejected its input.
func isRejection(err error) bool {
	e, ok := errors.AsType[*toolError](err)
	return ok && e.cause == rejected
}

// probeError is why the table nat could not be listed. Unless another try may succeed, the node
// lacks it.
func probeError(command string, err *toolError) error {
	switch {
	case err.cause == locked:
		return err
	case err.temporary():
		return fmt.Errorf("%s cannot list the table nat at the moment: %w", command, err)
	default:
		return fmt.Errorf("%w: %s cannot list the table nat; the kernel may lack it: %w", dataplane.ErrUnsupported, command, err)
	}
}

// temporary reports whether a failure depends on the node's state at the moment and not on
// its abilities. The kernel loads modules at their first use, which fails in
// these ways under load.
func (e *toolError) temporary() bool {
	switch end, ended := errors.AsType[programEnd](e.err); {
	case e.cause == locked, errors.Is(e.err, context.Canceled), errors.Is(e.err, context.DeadlineExceeded):
		return true
	case ended && !end.Exited(): // killed
		return true
	}
	// The programs print the kernel's errors in the words of the C library, which are
	// Go's except for a capital.
	text := strings.ToLower(e.Error())
	return slices.ContainsFunc([]syscall.Errno{
		syscall.EINTR, syscall.EAGAIN, syscall.EBUSY, syscall.ENOMEM, syscall.ENOBUFS, syscall.ETIME, syscall.ETIMEDOUT, syscall.ENFILE, syscall.EMFILE,
	}, func(one syscall.Errno) bool { return strings.Contains(text, one.Error()) })
}
