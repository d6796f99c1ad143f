package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// sockets is how many sockets a process has.
func sockets(process *cluster.Process) (count int, err error) {
	directory := fmt.Sprintf("/proc/%d/fd/", process.PID())
	list, err := os.ReadDir(directory)
	if err != nil {
		return 0, errors.New("it has ended; " + process.Tail())
	}
	for _, one := range list {
		// One that has been closed meanwhile is none.
		if to, err := os.Readlink(directory + one.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			count++
		}
	}
	return count, nil
}

// allowDescriptors lets this process, and those that it starts, have so many file descriptors, or as many as
// it can, and returns how many.
func allowDescriptors(count uint64) (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("reading the limit of file descriptors: %w", err)
	}
	more := unix.Rlimit{Cur: max(limit.Cur, count), Max: max(limit.Max, count)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &more); err == nil {
		return more.Cur, nil
	}
	limit.Cur = limit.Max // root of a container may not exceed this
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("allowing %d file descriptors: %w", limit.Cur, err)
	}
	return limit.Cur, nil
}

// keepLimits is the argument before a program and its arguments that has this program become that one.
const keepLimits = "keep-limits"

// becomeWithLimits becomes another program, which has the limits of this one: where it sets others, nothing
// changes. kube-proxy in mode userspace ends unless it can have 64,000 file descriptors.
func becomeWithLimits(command []string) error {
	const (
		number  = 0          // where a filter finds the number of a system call
		pointer = 16 + 2*8   // and the third argument, which is nil if prlimit64 is only to read limits
		allow   = 0x7fff0000 // SECCOMP_RET_ALLOW
		success = 0x00050000 // SECCOMP_RET_ERRNO without an error: the call is skipped
	)
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jumpIf := func(value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: yes, Jf: no}
	}
	end := func(with uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: with} }
	filter := []unix.SockFilter{
		load(number), jumpIf(unix.SYS_SETRLIMIT, 3, 0), jumpIf(unix.SYS_PRLIMIT64, 0, 3),
		load(pointer), jumpIf(0, 1, 0),
		end(success), end(allow),
	}
	runtime.LockOSThread()                                                  // a filter is that of a thread
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]} //nolint:gosec // short
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0); err != nil {
		return fmt.Errorf("keeping the limits of %s: %w", command[0], err)
	}
	return unix.Exec(command[0], command, os.Environ())
}
