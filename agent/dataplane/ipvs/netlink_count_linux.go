package ipvs

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodeproxy-io/nodeproxy/agent/dataplane"
)

// getInfo is IP_VS_SO_GET_INFO of the kernel's ip_vs.h.
const getInfo = 64 + 1024 + 64 + 1

// info is struct ip_vs_getinfo.
type info struct {
	version, tableSize uint32
	services           uint32 // of IPv4 alone
}

// Count implements Kernel. For IPv6, of which the kernel keeps no number that can
// be asked for, the virtual servers are listed, once: IP_VS_SO_GET_INFO counts those
// of IPv4 alone, IPVS_CMD_GET_INFO tells no number, and /proc/net/ip_vs is a list too,
// with all real servers. Who asks often has to see to what that costs.
func (v *virtualServers) Count() (int, bool) {
	if v.family == dataplane.IPv6 {
		servers, err := v.read()
		return len(servers), err == nil
	}
	n, err := countIPv4()
	return n, err == nil
}

func countIPv4() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("opening a socket to ask IPVS: %w", err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	var out info
	size := uint32(unsafe.Sizeof(out))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, getInfo,
		uintptr(unsafe.Pointer(&out)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("asking IPVS for the number of virtual servers: %w", errno)
	}
	return int(out.services), nil
}
