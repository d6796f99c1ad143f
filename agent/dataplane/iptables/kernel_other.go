//go:build !linux

package iptables

import (
	"context"
	"errors"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// errNotLinux is the answer of everything but a Model.
var errNotLinux = errors.New("programming a kernel needs Linux")

// Commits counts what data planes have written, which is nothing here.
type Commits struct{}

// elsewhere stands in for the kernel of a node where there is none. Of its methods
// only these are called, as the first fails.
type elsewhere struct{ kernel }

func (elsewhere) find(context.Context) error            { return errNotLinux }
func (elsewhere) all(context.Context) ([]kernel, error) { return nil, errNotLinux }

func nodeKernel(dataplane.Family, *ownership, *Options) kernel { return elsewhere{} }

func (d *Dataplane) subscribe(<-chan struct{}) (<-chan struct{}, error) { return nil, errNotLinux }
