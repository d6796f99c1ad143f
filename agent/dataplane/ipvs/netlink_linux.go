package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// KernelOptions are what a Kernel is made of.
type KernelOptions struct {
	// SysctlFolder is where sysctls are read and written. Empty: /proc/sys.
	SysctlFolder string
}

// nodeKernel is the kernel of the network namespace in which it is first used.
// Its parts open what they need when they are used, and anew after an error.
type nodeKernel struct {
	virtualServers
	device
	sets
	sysctls

	family dataplane.Family
	mu     sync.Mutex
	opened bool
}

// NewKernel returns the node's own kernel, for one IP family. It does nothing yet.
func NewKernel(family dataplane.Family, o KernelOptions) Kernel {
	return &nodeKernel{
		family:         family,
		virtualServers: virtualServers{family: family},
		device:         device{family: familyNumber(family)},
		sets:           sets{family: familyNumber(family)},
		sysctls:        sysctls{folder: cmp.Or(o.SysctlFolder, "/proc/sys")},
	}
}

// Open looks for IPVS, ipset with the types of our sets, and the driver of
// kube-ipvs0, which makes the kernel load their modules: an agent has neither the
// program for that nor the permission to. It writes nothing, but removes what a Probe
// has left that was killed.
func (k *nodeKernel) Open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened {
		return nil
	}
	if err := k.virtualServers.find(); err != nil {
		return err
	}
	if err := k.sets.find(); err != nil {
		return err
	}
	if err := k.device.find(); err != nil {
		return err
	}
	k.opened = true
	return nil
}

func familyNumber(f dataplane.Family) uint8 {
	if f == dataplane.IPv6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// unsupported says what the node lacks, why, and what to do, unless another try may
// go better. It does not wrap what the kernel answers, which would be taken for the
// answer about a virtual server.
func unsupported(lacks, remedy string, err error) error {
	if isPermission(err) {
		return fmt.Errorf("%w: the agent may not use %s: run it with the capability NET_ADMIN: %v", dataplane.ErrUnsupported, lacks, err) //nolint:errorlint // see above
	}
	if passes(err) {
		return fmt.Errorf("asking the kernel for %s: %v", lacks, err) //nolint:errorlint // see above
	}
	return fmt.Errorf("%w: the kernel has no %s: %s: %v", dataplane.ErrUnsupported, lacks, remedy, err) //nolint:errorlint // see above
}

// passes reports whether an error tells of the node's state at the moment, and not of
// what its kernel has.
func passes(err error) bool {
	return slices.ContainsFunc([]unix.Errno{
		unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ENOMEM, unix.ENOBUFS, unix.ETIME, unix.ETIMEDOUT, unix.ENFILE, unix.EMFILE,
	}, func(one unix.Errno) bool { return errors.Is(err, one) })
}

func isPermission(err error) bool {
	return err == unix.EPERM || err == unix.EACCES //nolint:errorlint // as the kernel answers
}
