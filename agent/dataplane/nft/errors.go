package nft

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrChanged is returned for a batch that was made for an earlier generation of the tables:
// another program has changed them since.
var ErrChanged = errors.New("another program has changed the tables")

// ErrLost is returned by a Monitor for which the kernel has dropped events.
var ErrLost = errors.New("the kernel has dropped events")

// ErrInterrupted is returned for a listing during which any table has changed. It is read to its end, but may
// lack something if the listed object itself has changed.
var ErrInterrupted = errors.New("the tables have changed while they were read")

// RejectedError is why the kernel rejects a batch: nothing of it was done.
type RejectedError struct {
	// Message is the number of the message at fault, from 0; -1: none in particular.
	Message int
	// Offset is where in the message the attribute at fault is; 0: unknown.
	Offset int
	// Text is what the kernel reports about it, if anything.
	Text string
	Err  syscall.Errno
}

func (e *RejectedError) Error() string {
	text := e.Err.Error()
	if e.Text != "" {
		text = e.Text + ": " + text
	}
	if e.Message < 0 {
		return "the kernel rejects the batch: " + text
	}
	return fmt.Sprintf("the kernel rejects message %d of the batch: %s", e.Message, text)
}

// Unwrap returns the kernel's error.
func (e *RejectedError) Unwrap() error { return e.Err }
