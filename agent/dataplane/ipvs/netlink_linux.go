package ipvs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// nodeKernel is the kernel of the network namespace in which it is first used. Its parts
// open sockets when they need them, and again after an error.
type nodeKernel struct {
	virtualServers
	device
	ipsets
	sysctls

	mu     sync.Mutex
	opened bool
}

// NewKernel returns the node's own kernel, for one IP family. Sysctls are read and written in a
// directory; empty: /proc/sys. It does nothing yet.
func NewKernel(family dataplane.Family, sysctlDirectory string) Kernel {
	return &nodeKernel{
		virtualServers: virtualServers{family: family},
		device:         device{family: family.Number()},
		ipsets:         ipsets{family: family.Number()},
		sysctls:        sysctls{dataplane.Sysctls(cmp.Or(sysctlDirectory, "/proc/sys"))},
	}
}

// Open checks for IPVS, ipset with the types of our sets, and the driver of kube-ipvs0. That
// makes the kernel load their modules, for which an agent has neither the program nor the
// permission. It writes nothing, but removes what a killed Probe has left.
func (k *nodeKernel) Open() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.opened {
		return nil
	}
	for _, find := range []func() error{k.virtualServers.find, k.ipsets.find, k.device.find} {
		if err := find(); err != nil {
			return err
		}
	}
	k.opened = true
	return nil
}

// unsupported reports what the node lacks, why, and what to do, unless another try may succeed.
// It does not wrap the kernel's answer, which callers would mistake for the answer about a
// virtual server.
func unsupported(lacks, remedy string, err error) error {
	if isPermission(err) {
		return fmt.Errorf("%w: the agent is not allowed to use %s: run it with the capability NET_ADMIN: %v", dataplane.ErrUnsupported, lacks, err) //nolint:errorlint // see above
	}
	// The node's momentary state, not what its kernel has.
	if isOneOf(err, unix.EINTR, unix.EAGAIN, unix.EBUSY, unix.ENOMEM, unix.ENOBUFS, unix.ETIME, unix.ETIMEDOUT, unix.ENFILE, unix.EMFILE) {
		return fmt.Errorf("ask the kernel for %s: %v", lacks, err) //nolint:errorlint // see above
	}
	return fmt.Errorf("%w: the kernel has no %s: %s: %v", dataplane.ErrUnsupported, lacks, remedy, err) //nolint:errorlint // see above
}

func isPermission(err error) bool {
	return err == unix.EPERM || err == unix.EACCES //nolint:errorlint // the kernel's own answer
}

// isAnswer reports whether an error is the kernel's answer to a request, not one of the
// socket.
func isAnswer(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || isOneOf(err,
		unix.EEXIST, unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.EADDRNOTAVAIL, unix.EINVAL, unix.ERANGE,
		unix.EPERM, unix.EACCES, unix.ENOMEM, unix.EBUSY, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.ENOSPC)
}

func isOneOf(err error, list ...unix.Errno) bool {
	return slices.ContainsFunc(list, func(one unix.Errno) bool { return errors.Is(err, one) })
}

// sysctls are kernel settings, by their files. Those of IPVS exist once the kernel has IPVS,
// in each network namespace.
type sysctls struct{ directory dataplane.Sysctls }

// Sysctl implements Kernel.
func (s *sysctls) Sysctl(name string) (string, error) {
	value, err := s.directory.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the kernel has no sysctl %s: %w", dotted(name), err)
	}
	if err != nil {
		return "", fmt.Errorf("read the sysctl %s: %w", dotted(name), err)
	}
	return value, nil
}

// SetSysctl implements Kernel.
func (s *sysctls) SetSysctl(name, value string) error {
	has, err := s.Sysctl(name)
	if err != nil || has == value {
		return err
	}
	if err = s.directory.Write(name, value); err == nil {
		return nil
	}
	remedy := "set it on the node"
	switch {
	case errors.Is(err, unix.EROFS):
		remedy = string(s.directory) + " is read-only for the agent: mount the node's /proc/sys/net into its container and name the directory with --sysctl-directory, as config/agent/daemonset.yaml does, or set the value on the node"
	case errors.Is(err, fs.ErrPermission):
		remedy = "it cannot be written in the agent's network namespace: run the agent in that of the host, as root, or set the value there"
	}
	return fmt.Errorf("the sysctl %s is %s, not %s: %s: %w", dotted(name), has, value, remedy, err)
}
