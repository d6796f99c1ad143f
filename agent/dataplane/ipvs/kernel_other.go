//go:build !linux

package ipvs

import (
	"errors"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// KernelOptions configure a Kernel.
type KernelOptions struct {
	// SysctlFolder is where sysctls are read and written.
	SysctlFolder string
}

// elsewhere replaces the kernel of a node on other systems. Only Open is called, which
// fails.
type elsewhere struct{ Kernel }

// NewKernel returns a Kernel that cannot be opened.
func NewKernel(dataplane.Family, KernelOptions) Kernel { return elsewhere{} }

// Open implements Kernel.
func (elsewhere) Open() error { return errors.New("programming a kernel needs Linux") }
