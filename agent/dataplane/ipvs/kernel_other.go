//go:build !linux

package ipvs

import (
	"errors"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// elsewhere replaces the kernel of a node on other systems. Only Open is called, which
// fails.
type elsewhere struct{ Kernel }

// NewKernel returns a Kernel that cannot be opened.
func NewKernel(dataplane.Family, string) Kernel { return elsewhere{} }

// Open implements Kernel.
func (elsewhere) Open() error { return errors.New("programming a kernel needs Linux") }
