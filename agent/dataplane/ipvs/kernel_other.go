//go:build !linux

package ipvs

import (
	"errors"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// KernelOptions are what a Kernel is made of.
type KernelOptions struct {
	// SysctlFolder is where sysctls are read and written.
	SysctlFolder string
}

// elsewhere stands in for the kernel of a node where there is none. Nothing else is
// called of it than Open, which fails.
type elsewhere struct{ Kernel }

// NewKernel returns a Kernel that cannot be opened.
func NewKernel(dataplane.Family, KernelOptions) Kernel { return elsewhere{} }

// Open implements Kernel.
func (elsewhere) Open() error { return errors.New("programming a kernel needs Linux") }
