package main

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/test/cluster"
)

// announcements are the kernel's messages about changed nf_tables rules in one
// network namespace. They come when a transaction is in force.
type announcements struct {
	socket int
}

// watchRules subscribes to a node's announcements.
func watchRules(node *cluster.Node) (*announcements, error) {
	a := &announcements{}
	err := node.Do(func() (err error) {
		a.socket, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	wait := unix.Timeval{Sec: 1}
	err = errors.Join(
		unix.SetsockoptTimeval(a.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.SetsockoptInt(a.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.Bind(a.socket, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to changed rules: %w", err), a.Close())
	}
	return a, nil
}

// waitFor waits until an announcement names a chain.
func (a *announcements) waitFor(chain string) error {
	buffer := make([]byte, 64<<10)
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		n, _, err := unix.Recvfrom(a.socket, buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("read announcements of changed rules: %w", err)
		case bytes.Contains(buffer[:n], []byte(chain)):
			return nil
		}
	}
	return fmt.Errorf("chain %s did not come within 30 s", chain)
}

// Close ends the subscription.
func (a *announcements) Close() error { return unix.Close(a.socket) }
