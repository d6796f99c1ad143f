package detection

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// The kernel's interface to tables of the legacy variant: both options take and return a
// structure that begins with the table's name.
const (
	getInfo    = 64 // IPT_SO_GET_INFO
	getEntries = 65 // IPT_SO_GET_ENTRIES

	maxTableName = 32
	infoSize     = 84 // struct ipt_getinfo
	infoEntries  = 80 // offset of the field `size`: the size of all entries, in bytes
	entriesSize  = 40 // struct ipt_get_entries without the entries
)

// legacyHas reports whether a table of the legacy variant has a chain. It creates no table.
func legacyHas(family dataplane.Family, table, chain string) (bool, error) {
	file, domain, level := "ip_tables_names", unix.AF_INET, unix.IPPROTO_IP
	if family == dataplane.IPv6 {
		file, domain, level = "ip6_tables_names", unix.AF_INET6, unix.IPPROTO_IPV6
	}
	// Of the thread: /proc/net is that of the process's first one.
	names, err := os.ReadFile("/proc/thread-self/net/" + file)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("listing the tables of the legacy variant: %w", err)
	}
	if !slices.Contains(strings.Fields(string(names)), table) {
		return false, nil
	}
	entries, err := readLegacy(domain, level, table)
	if err != nil {
		return false, err
	}
	// A chain begins with an entry that holds its name, ended by a zero byte.
	return bytes.Contains(entries, append([]byte(chain), 0)), nil
}

// readLegacy reads the entries of a table.
func readLegacy(domain, level int, table string) ([]byte, error) {
	socket, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("opening a raw socket: %w", err)
	}
	defer func() { _ = unix.Close(socket) }() // nothing was written
	for {
		info := make([]byte, infoSize)
		copy(info[:maxTableName-1], table)
		if err := getOption(socket, level, getInfo, info); err != nil {
			return nil, fmt.Errorf("reading table %s of the legacy variant: %w", table, err)
		}
		size := binary.NativeEndian.Uint32(info[infoEntries:])
		entries := make([]byte, entriesSize+int(size))
		copy(entries[:maxTableName-1], table)
		binary.NativeEndian.PutUint32(entries[maxTableName:], size)
		err := getOption(socket, level, getEntries, entries)
		switch {
		case err == nil:
			return entries[entriesSize:], nil
		case !errors.Is(err, unix.EAGAIN): // it has been written in between
			return nil, fmt.Errorf("reading table %s of the legacy variant: %w", table, err)
		}
	}
}

// getOption reads a socket option, whose structure is also its argument.
func getOption(socket, level, option int, into []byte) error {
	size := uint32(len(into)) //nolint:gosec // a table has less than 4 GiB
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(socket), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&into[0])), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
