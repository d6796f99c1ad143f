package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// monitorBytes is how many bytes of events the kernel buffers.
const monitorBytes = 4 << 20

// Monitor receives the events of all tables.
type Monitor struct {
	file *os.File
}

// OpenMonitor subscribes in the network namespace of the calling thread.
func OpenMonitor() (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("follow the changes of nf_tables: %w", os.NewSyscallError("socket", err))
	}
	m := &Monitor{os.NewFile(uintptr(fd), "nf_tables")} //nolint:gosec // not negative
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, monitorBytes)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, unix.NFNLGRP_NFTABLES)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow the changes of nf_tables: %w", err), m.Close())
	}
	return m, nil
}

// Close ends the subscription.
func (m *Monitor) Close() error { return m.file.Close() } //nolint:wrapcheck // it names the file

// Run calls event with each datagram, which is valid until it returns, and lost if the kernel has
// dropped some, until ctx is done.
func (m *Monitor) Run(ctx context.Context, event func(datagram []byte), lost func()) error {
	defer context.AfterFunc(ctx, func() { _ = m.file.SetReadDeadline(time.Unix(1, 0)) })()
	buffer := make([]byte, receiveBytes)
	for {
		n, err := m.file.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			lost()
		case err != nil:
			return fmt.Errorf("follow the changes of nf_tables: %w", err)
		default:
			event(buffer[:n])
		}
	}
}
