package iptables

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// canaryPause is the time between checks of the legacy variant's tables.
const canaryPause = 250 * time.Millisecond

func (t *tools) entries() (int, bool) {
	if !t.legacy() {
		return 0, false
	}
	socket, err := openTables(t.family)
	if err != nil {
		return 0, false
	}
	defer func() { _ = unix.Close(socket.fd) }() // nothing is lost by that
	infos, err := socket.infos()
	return total(infos), err == nil
}

func total(infos [2]tableInfo) int { return int(infos[0].numEntries + infos[1].numEntries) }

// tableInfo is what the legacy kernel reports about a table: struct ipt_getinfo, which
// is that of ip6tables too.
type tableInfo struct {
	name       [32]byte
	validHooks uint32
	hookEntry  [5]uint32
	underflow  [5]uint32
	numEntries uint32
	size       uint32
}

// getInfo is the socket option that reads a tableInfo: IPT_SO_GET_INFO and
// IP6T_SO_GET_INFO.
const getInfo = 64

// watchEntries compares the sizes of the legacy kernel's tables to what they
// should be, until ctx is done. That is cheap, however many rules there are.
// Replacements of the same size between two checks are left to
// verifications.
func watchEntries(ctx context.Context, family dataplane.Family, expected *atomic.Pointer[entries], changed func(dataplane.Change)) error {
	socket, err := openTables(family)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket.fd) }() // nothing is lost by that
	ticker := time.NewTicker(canaryPause)
	defer ticker.Stop()
	var c canary
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		before := expected.Load()
		if before == nil {
			continue // unknown, as while we write
		}
		now, err := socket.infos()
		if err != nil {
			return err
		}
		if expected.Load() != before {
			continue // we have written meanwhile
		}
		if change, dead := c.compare(before, now); dead {
			changed(change)
		}
	}
}

type canary struct {
	expected *entries
	last     [2]tableInfo
}

// compare reports whether another program has changed the tables since its last call, or since
// other entries are expected.
func (c *canary) compare(expected *entries, now [2]tableInfo) (dataplane.Change, bool) {
	first := c.expected != expected
	same := !first && c.last == now
	c.expected, c.last = expected, now
	if same || first && total(now) == expected.total {
		return dataplane.Change{}, false
	}
	return dataplane.Change{Sure: total(now) < expected.ours}, true
}

// tablesSocket is a socket by which the legacy variant's tables are read.
type tablesSocket struct {
	fd    int
	level uintptr
}

func openTables(family dataplane.Family) (tablesSocket, error) {
	domain, level := unix.AF_INET, unix.IPPROTO_IP
	if family == dataplane.IPv6 {
		domain, level = unix.AF_INET6, unix.IPPROTO_IPV6
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return tablesSocket{}, fmt.Errorf("watch the tables of iptables: %w", err)
	}
	return tablesSocket{fd: fd, level: uintptr(level)}, nil
}

// infos reads what the kernel reports about the tables nat and filter.
func (s tablesSocket) infos() ([2]tableInfo, error) {
	var out [2]tableInfo
	for i, t := range []table{nat, filter} {
		copy(out[i].name[:], t)
		size := uint32(unsafe.Sizeof(out[i]))
		_, _, code := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s.fd), s.level, getInfo,
			uintptr(unsafe.Pointer(&out[i])), uintptr(unsafe.Pointer(&size)), 0)
		if code != 0 {
			return out, fmt.Errorf("watch the table %s of iptables: %w", t, code)
		}
	}
	return out, nil
}
