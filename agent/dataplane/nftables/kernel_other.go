//go:build !linux

package nftables

import "errors"

// errNotLinux is the answer of everything but a Model.
var errNotLinux = errors.New("programming a kernel needs Linux")

func openKernel() (kernel, error) { return nil, errNotLinux }

func openMonitor() (monitor, error) { return nil, errNotLinux }

func openAddressMonitor(byte) (monitor, error) { return nil, errNotLinux }
