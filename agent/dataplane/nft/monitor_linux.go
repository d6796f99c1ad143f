package nft

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// monitorBytes is how many bytes of events the kernel may buffer: those of a batch of about 100,000 elements.
const monitorBytes = 32 << 20

// Monitor receives events of the kernel.
type Monitor struct {
	file *os.File
	of   string
}

// OpenMonitor subscribes to the events of all tables, in the network namespace of the calling
// thread.
func OpenMonitor() (*Monitor, error) {
	return openMonitor(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES, "the changes of nf_tables")
}

// OpenAddressMonitor subscribes to changes of the addresses of interfaces, of the family of a
// table, in the network namespace of the calling thread.
func OpenAddressMonitor(family byte) (*Monitor, error) {
	group := unix.RTNLGRP_IPV4_IFADDR
	if family == unix.NFPROTO_IPV6 {
		group = unix.RTNLGRP_IPV6_IFADDR
	}
	return openMonitor(unix.NETLINK_ROUTE, group, "the addresses of the node's interfaces")
}

func openMonitor(protocol, group int, of string) (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return nil, fmt.Errorf("follow %s: %w", of, os.NewSyscallError("socket", err))
	}
	m := &Monitor{os.NewFile(uintptr(fd), "netlink"), of} //nolint:gosec // not negative
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, monitorBytes)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("follow %s: %w", of, err), m.Close())
	}
	return m, nil
}

// Close ends the subscription.
func (m *Monitor) Close() error { return m.file.Close() } //nolint:wrapcheck // it names the file

// Run calls event with each datagram, which is valid until it returns, until ctx is done. The error
// wraps ErrLost if the kernel has dropped datagrams: it reports only the first that it drops until all that wait
// are read, so what this socket still has is worth nothing.
func (m *Monitor) Run(ctx context.Context, event func(datagram []byte)) error {
	defer context.AfterFunc(ctx, func() { _ = m.file.SetReadDeadline(time.Unix(1, 0)) })()
	buffer := make([]byte, receiveBytes)
	for {
		n, err := m.file.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			return fmt.Errorf("follow %s: %w", m.of, ErrLost)
		case err != nil:
			return fmt.Errorf("follow %s: %w", m.of, err)
		default:
			event(buffer[:n])
		}
	}
}
