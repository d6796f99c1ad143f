package dataplane

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// HasFamily returns nil, or an error that wraps ErrUnsupported where the node has
// no IPv6 or has switched it off. It always has IPv4. Proc and sysctl are the
// directories of the proc file system and of sysctls.
func HasFamily(family Family, proc, sysctl string) error {
	if family != IPv6 {
		return nil
	}
	// Of this thread: /proc/net is that of the process's first one.
	if _, err := os.Stat(filepath.Join(proc, "thread-self/net/if_inet6")); err != nil {
		return fmt.Errorf("%w: the node has no IPv6; start its kernel with the module ipv6 and without ipv6.disable=1: %w", ErrUnsupported, err)
	}
	const name = "net/ipv6/conf/all/disable_ipv6"
	if value, err := os.ReadFile(filepath.Join(sysctl, name)); err == nil && strings.TrimSpace(string(value)) == "1" {
		return fmt.Errorf("%w: IPv6 is switched off on the node; set the sysctl %s to 0", ErrUnsupported, strings.ReplaceAll(name, "/", "."))
	}
	return nil
}

// InterfaceAddresses reads the addresses of the node's interfaces, of both
// families, in the network namespace of the calling thread.
func InterfaceAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of the node's interfaces: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}
