package uml

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ownProcessor chooses one of this machine's processors for a kernel that begins, one
// that no other kernel has; nil if all have one. The kernel and its processes wake each
// other up at each system call and never run at the same time: that is two to three
// times as fast on one processor as across two. It is the kernel's until release.
func ownProcessor() (processor *unix.CPUSet, release func(), err error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, nil, fmt.Errorf("listing the processors: %w", err)
	}
	for i := range len(allowed) * 64 {
		if !allowed.IsSet(i) {
			continue
		}
		socket, err := claim(i)
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		var one unix.CPUSet
		one.Set(i)
		return &one, func() { _ = unix.Close(socket) }, nil // nothing was written
	}
	return nil, func() {}, nil
}

// claim binds a socket to a name that stands for a processor: one process can at a
// time, and when it ends the name is free, with nothing left behind.
func claim(processor int) (socket int, err error) {
	socket, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("claiming processor %d: %w", processor, err)
	}
	name := fmt.Sprintf("@nodeproxy-uml-processor-%d", processor) // "@": in no file system
	if err := unix.Bind(socket, &unix.SockaddrUnix{Name: name}); err != nil {
		_ = unix.Close(socket) // the error above is returned
		return 0, fmt.Errorf("claiming processor %d: %w", processor, err)
	}
	return socket, nil
}
