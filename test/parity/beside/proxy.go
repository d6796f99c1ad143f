package beside

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
	"github.com/nodeproxy-io/nodeproxy/test/install"
)

// Proxy is one of the two programs and the node that it serves.
type Proxy struct {
	// Name is human-readable.
	Name string
	// Node is where it runs.
	Node *cluster.Node
	// Process is nil while it does not run.
	Process *cluster.Process
}

// Stop stops the program if it runs. Pair.Running reports a program that has ended
// by itself.
func (p *Proxy) Stop() error {
	defer func() { p.Process = nil }()
	if p.Process == nil || install.Running(p.Process) != nil {
		return nil
	}
	// One that stands still does not end.
	return errors.Join(p.Thaw(), p.Process.Stop())
}

// Kill ends the program, which runs, without giving it a chance.
func (p *Proxy) Kill() error {
	defer func() { p.Process = nil }()
	return p.Process.Kill()
}

// Freeze lets the program stand still, if it runs, until Thaw.
func (p *Proxy) Freeze() error { return p.signal(syscall.SIGSTOP) }

// Thaw lets the program go on, if it runs.
func (p *Proxy) Thaw() error { return p.signal(syscall.SIGCONT) }

// signal sends the program a signal if it runs.
func (p *Proxy) signal(s syscall.Signal) error {
	if p.Process == nil {
		return nil
	}
	if err := syscall.Kill(p.Process.PID(), s); err != nil {
		return fmt.Errorf("signal %q for %s: %w", s, p.Name, err)
	}
	return nil
}
